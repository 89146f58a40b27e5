"""Makes the tree of a package: its source and everything its tests need, usable offline.

Input: a Requirement, a folder for downloads, a folder for trees. Output: a Package, whose tree holds the source at the
top and its requirements in `.deps`.
Invariants: the network is used only to download; downloaded code runs only in sandboxes without a network; the tree
holds exactly one copy of the package's own source.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from slipstream.atomic import replace_folder
from slipstream.sandbox.base import SandboxProvider
from slipstream.tasks.factory.package.install import (
    add_metadata,
    add_requirements,
    check_modules,
    compile_requirements,
    find_interpreter,
    importable,
)
from slipstream.tasks.factory.package.layout import Layout, read_layout
from slipstream.tasks.factory.package.runner import spec_of
from slipstream.tasks.factory.package.sources import (
    Requirement,
    Skipped,
    download_source,
    normal_name,
    unpack_source,
)
from slipstream.types import SandboxSpec

DROPPED = ("build", "dist", ".git", ".github", ".tox", "debian", ".hypothesis", ".pytest_cache")
CONFIGURATION = ("pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "conftest.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package whose tests can be run."""

    layout: Layout
    tree: Path

    @property
    def label(self) -> str:
        return f"{normal_name(self.layout.name)}-{self.layout.version}"

    @property
    def spec(self) -> SandboxSpec:
        return spec_of(self.tree, self.layout.root)

    def text(self, path: str) -> str:
        """A file of the tree; bytes that are not UTF-8 survive a round trip."""
        return (self.tree / path).read_bytes().decode("utf-8", "surrogateescape")


async def fetch(wanted: Requirement, trees: Path, downloads: Path, *, provider: SandboxProvider) -> Package:
    """Make the tree of a package. Raises Skipped, with the reason, if that is not possible."""
    python = await find_interpreter(provider)
    if normal_name(wanted.name) in python.runners_own:
        raise Skipped("the test runner itself needs it: a bug in it would be a bug in the runner")
    await asyncio.to_thread(downloads.mkdir, parents=True, exist_ok=True)
    archive = wanted.path
    if archive is None:
        archive = await asyncio.to_thread(download_source, wanted, downloads)
    with tempfile.TemporaryDirectory(dir=trees, prefix=".part-") as part:
        unpacked = Path(part, "source")
        await asyncio.to_thread(unpack_source, archive, unpacked)
        layout = read_layout(unpacked, name=wanted.name, version=wanted.version or "0")
        clear(unpacked)
        await check_modules(layout, provider)
        await add_requirements(unpacked, layout, downloads, python)
        add_metadata(unpacked, layout)
        unpacked = await importable(unpacked, layout, downloads, python, provider)
        await compile_requirements(unpacked, layout, provider)
        tree = trees / f"{normal_name(layout.name)}-{layout.version}"
        replace_folder(unpacked, tree)
    return Package(layout=layout, tree=tree)


def clear(folder: Path) -> None:
    """Remove what would be a second copy of the source, or is not needed."""
    for name in DROPPED:
        shutil.rmtree(folder / name, ignore_errors=True)
    for cache in list(folder.rglob("__pycache__")):
        shutil.rmtree(cache, ignore_errors=True)
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755 if place.is_dir() or place.stat().st_mode & 0o100 else 0o644)

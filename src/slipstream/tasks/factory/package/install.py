"""Makes a tree usable offline: its requirements in `.deps`, an interpreter that sees nothing else, its metadata.

Input: a tree with a Layout, a folder for downloads. Output: the tree's `.deps`, ready for any number of sandboxes.
Invariants: the network is used only to download wheels, none of whose code runs outside of sandboxes; the tree holds
one copy of the package's own source; packages that are installed on the host are not seen.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.errors import SandboxFileError
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.factory.package.layout import Layout
from slipstream.tasks.factory.package.runner import DEPS, START_TIMEOUT_S, WORKDIR, first_error, last_line, spec_of
from slipstream.tasks.factory.package.sources import Skipped, download_wheels, normal_name, unpack_wheel
from slipstream.types import SandboxSpec

BASE_REQUIRES = ("pytest>=8,<9",)
BUILD_TIMEOUT_S = 300.0
IMPORT_TIMEOUT_S = 60.0
BUILD_TOOLS = ".build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The sandbox's own Python."""

    path: str
    version: tuple[int, int]

    @property
    def label(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def runners_own(self) -> frozenset[str]:
        """Projects that the test runner itself needs here."""
        before_311 = {"exceptiongroup", "tomli"} if self.version < (3, 11) else set()
        return frozenset({"pytest", "pluggy", "iniconfig", "packaging", "pygments"} | before_311)


async def find_interpreter(provider: SandboxProvider) -> Interpreter:
    code = "import sys; print('%d %d' % sys.version_info[:2], sys.executable)"
    exit_code, output = await run_inside(SandboxSpec(), provider, ["python3", "-I", "-S", "-c", code])
    parts = output.split()
    if exit_code != 0 or len(parts) != 3:
        raise Skipped(f"the sandbox has no Python: {last_line(output)}")
    return Interpreter(path=parts[2], version=(int(parts[0]), int(parts[1])))


async def check_modules(layout: Layout, provider: SandboxProvider) -> None:
    """Raises Skipped if the standard library has a module of the package's name."""
    for module in layout.modules:
        exit_code, _ = await run_inside(SandboxSpec(), provider, ["python3", "-I", "-S", "-c", f"import {module}"])
        if exit_code == 0:
            raise Skipped(f"the sandbox's Python already has the module {module}")


def add_interpreter(tree: Path, python: Interpreter) -> None:
    """A Python for the tree that does not see the packages of the host, as `runner.environment` finds it."""
    (tree / DEPS / "bin").mkdir(parents=True, exist_ok=True)
    (tree / DEPS / "pyvenv.cfg").write_text(
        f"home = {Path(python.path).parent}\ninclude-system-site-packages = false\nversion = {python.label}\n"
    )
    for name in ("python3", "python"):
        (tree / DEPS / "bin" / name).symlink_to(python.path)


async def add_requirements(tree: Path, layout: Layout, downloads: Path, python: Interpreter) -> tuple[str, ...]:
    """Unpack the wheels of the requirements. Returns the tests' requirements of which there are none: tests that need
    them will fail, and be left out."""
    missing: list[str] = []
    wheels = downloads / f"wheels-{python.label}-{normal_name(layout.name)}"
    shutil.rmtree(wheels, ignore_errors=True)
    needed = (*BASE_REQUIRES, *layout.requires)
    await asyncio.to_thread(download_wheels, needed, wheels, python=python.label)
    if extra := [one for one in layout.test_requires if normal_name(one) != normal_name(layout.name)]:
        try:
            await asyncio.to_thread(download_wheels, (*needed, *extra), wheels, python=python.label)
        except Skipped:
            for one in extra:
                try:
                    await asyncio.to_thread(download_wheels, (*needed, one), wheels, python=python.label)
                except Skipped:
                    missing.append(one)
    deps = tree / DEPS
    deps.mkdir()
    for wheel in sorted(wheels.glob("*.whl")):
        if normal_name(wheel.name.partition("-")[0]) == normal_name(layout.name):
            continue
        try:
            await asyncio.to_thread(unpack_wheel, wheel, deps)
        except (zipfile.BadZipFile, OSError) as raised:
            raise Skipped(f"{wheel.name} cannot be unpacked: {raised}") from raised
    for module in layout.modules:
        if (deps / module).exists() or (deps / f"{module}.py").exists():
            raise Skipped(f"its requirements contain a second copy of its module {module}")
    add_interpreter(tree, python)
    return tuple(missing)


def add_metadata(tree: Path, layout: Layout) -> None:
    """Write the metadata that `importlib.metadata` has of an installed package."""
    info = tree / DEPS / f"{layout.name.replace('-', '_')}-{layout.version}.dist-info"
    info.mkdir(exist_ok=True)
    source_info = tree / "PKG-INFO"
    head = f"Metadata-Version: 2.1\nName: {layout.name}\nVersion: {layout.version}\n"
    (info / "METADATA").write_bytes(source_info.read_bytes() if source_info.is_file() else head.encode())
    for points in tree.glob("**/*.egg-info/entry_points.txt"):
        shutil.copy(points, info / "entry_points.txt")


async def importable(
    tree: Path, layout: Layout, downloads: Path, python: Interpreter, provider: SandboxProvider
) -> Path:
    """Check that the package can be imported, and build it in a sandbox if it cannot. Returns its folder: sandboxes see
    a tree as it was when the first of them opened, so a changed tree gets another name."""
    command = ["python3", "-c", "; ".join(f"import {module}" for module in layout.modules)]
    exit_code, output = await run_inside(spec_of(tree, layout.root), provider, command)
    if exit_code == 0:
        return tree
    tree = await asyncio.to_thread(tree.rename, tree.with_name("building"))
    await _build(tree, layout, downloads, python, provider)
    tree = await asyncio.to_thread(tree.rename, tree.with_name("built"))
    exit_code, output = await run_inside(spec_of(tree, layout.root), provider, command)
    if exit_code != 0:
        raise Skipped(f"it cannot be imported: {last_line(output)}")
    return tree


async def _build(tree: Path, layout: Layout, downloads: Path, python: Interpreter, provider: SandboxProvider) -> None:
    """Build a wheel offline, and copy from it the files that the source lacks."""
    build_system = _build_system(tree)
    needs = [str(one) for one in build_system.get("requires", ["setuptools"])] + ["wheel"]
    wheels = downloads / f"build-{python.label}-{normal_name(layout.name)}"
    await asyncio.to_thread(download_wheels, needs, wheels, python=python.label)
    tools = tree / BUILD_TOOLS
    try:
        for wheel in sorted(wheels.glob("*.whl")):
            await asyncio.to_thread(unpack_wheel, wheel, tools)
        built = await built_wheel(spec_of(tree, layout.root), build_system, provider)
    finally:
        shutil.rmtree(tools, ignore_errors=True)
    archive = downloads / f"{normal_name(layout.name)}-built.whl"
    await asyncio.to_thread(_copy_missing, built, archive, tree / layout.root)


async def built_wheel(spec: SandboxSpec, build_system: Mapping[str, Any], provider: SandboxProvider) -> bytes:
    """Run the package's own build backend in a sandbox without a network."""
    backend, _, inner = str(build_system.get("build-backend", "setuptools.build_meta:__legacy__")).partition(":")
    paths = [f"{WORKDIR}/{BUILD_TOOLS}", ".", *map(str, build_system.get("backend-path", []))]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; import {backend} as backend; "
        f"print('BUILT', backend{'.' + inner if inner else ''}.build_wheel('/tmp'))"
    )
    sandbox = await open_sandbox(provider, spec, timeout_s=START_TIMEOUT_S)
    try:
        done = await sandbox.exec(["/usr/bin/env", "python3", "-c", code], timeout_s=BUILD_TIMEOUT_S)
        output = done.stdout.text()
        if done.exit_code != 0 or "BUILT " not in output:
            raise Skipped(f"it does not build without a network: {first_error(done.stderr.text() or output)}")
        return await sandbox.read(f"/tmp/{output.rsplit('BUILT ', 1)[1].split()[0]}", max_bytes=64 << 20)
    except SandboxFileError as raised:
        raise Skipped(f"it does not build: {raised}") from raised
    finally:
        await sandbox.aclose()


def _copy_missing(wheel: bytes, archive: Path, root: Path) -> None:
    archive.write_bytes(wheel)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place, "made")
        try:
            unpack_wheel(archive, made)
        except zipfile.BadZipFile as raised:
            raise Skipped(f"it does not build: its wheel cannot be read ({raised})") from raised
        for path in sorted(made.rglob("*")):
            target = root / path.relative_to(made)
            if path.is_file() and ".dist-info" not in path.as_posix() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def _build_system(tree: Path) -> dict[str, Any]:
    try:
        build_system = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8")).get("build-system", {})
    except (OSError, ValueError):
        return {}
    return build_system if isinstance(build_system, dict) else {}


async def compile_requirements(tree: Path, layout: Layout, provider: SandboxProvider) -> None:
    """Compile the requirements once, so that no sandbox has to; valid whatever the files' times are."""
    sandbox = await open_sandbox(provider, spec_of(tree, layout.root), timeout_s=START_TIMEOUT_S)
    command = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", f"{WORKDIR}/{DEPS}"]
    try:
        await sandbox.exec(["/usr/bin/env", *command], timeout_s=BUILD_TIMEOUT_S)
        found = await sandbox.read_tree(DEPS, max_bytes=512 << 20, max_files=100_000)
    finally:
        await sandbox.aclose()
    for path, file in found.files.items():
        if path.endswith(".pyc"):
            place = tree / DEPS / path
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(file.data)


async def run_inside(spec: SandboxSpec, provider: SandboxProvider, argv: list[str]) -> tuple[int | None, str]:
    sandbox = await open_sandbox(provider, spec, timeout_s=START_TIMEOUT_S)
    try:
        done = await sandbox.exec(["/usr/bin/env", *argv], timeout_s=IMPORT_TIMEOUT_S)
    finally:
        await sandbox.aclose()
    return done.exit_code, done.stdout.text() + done.stderr.text()

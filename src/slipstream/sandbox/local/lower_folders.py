"""The folders below a local sandbox's writable layer: base, tree and snapshots, and where the sandbox can write.

Input: a SandboxSpec, and snapshots on top of its base or tree. Output: LowerFolders, for a sandbox and for its forks.
Invariants: LowerFolders never changes, and a fork keeps all lower folders of its original; `check_folder` refuses a
base or a tree that no sandbox could use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError, SandboxFileError
from slipstream.sandbox.files.overlay import OverlayLayer
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.keeper_client import KeptLayer
from slipstream.types import File, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerFolders:
    """A sandbox's spec, its writable areas, and the snapshots below them."""

    spec: SandboxSpec
    areas: tuple[bwrap.Area, ...]
    """An area's first lower folder, if any, is the base or the tree; snapshots come on top."""
    snapshots: tuple[KeptLayer, ...] = ()
    """Bottom to top. Each has a folder for every area."""

    def area_of(self, path: str) -> tuple[bwrap.Area, str]:
        """The area that contains a folder, and its path there."""
        place = PurePosixPath(bwrap.workdir_of(self.spec), path)
        for area in reversed(self.areas):
            if place.is_relative_to(area.place):
                return area, str(place.relative_to(area.place))
        raise SandboxFileError(f"{place}: this folder is read-only, so it has no changes")

    def written(self, files: Mapping[str, File]) -> dict[str, OverlayLayer] | None:
        """The contents of the areas, by name, if these files were written and nothing else happened. None if unknown:
        lower folders, or a path that is not normalized, may lead elsewhere."""
        if any(area.lowers for area in self.areas):
            return None
        workdir = bwrap.workdir_of(self.spec)
        found: dict[str, dict[str, File]] = {area.name: {} for area in self.areas}
        for path, file in files.items():
            whole = path if path.startswith("/") else f"{workdir}/{path}"
            area = next((area for area in reversed(self.areas) if whole.startswith(f"{area.place}/")), None)
            if area is None or not {"", ".", ".."}.isdisjoint(whole[1:].split("/")):
                return None
            found[area.name][whole[len(area.place) + 1 :]] = file
        return {name: OverlayLayer(files=held, folders=_folders_above(held)) for name, held in found.items()}

    def on_top_of(self, snapshot: KeptLayer) -> LowerFolders:
        """The LowerFolders of a fork."""
        return replace(
            self,
            areas=tuple(
                replace(
                    area,
                    lowers=(*area.lowers, f"{snapshot.path}/{area.name}"),
                    starts_empty=area.starts_empty or not area.lowers,
                )
                for area in self.areas
            ),
            snapshots=(*self.snapshots, snapshot),
        )


def _folders_above(paths: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return frozenset(found)


def check_folder(what: str, folder: str) -> None:
    """Raise ConfigError if no sandbox could use this base or tree."""
    path = Path(folder)
    if not path.is_absolute() or not path.is_dir():
        raise ConfigError(
            f"the {what} {folder!r} of a local sandbox is not a folder: use 'host', the absolute path of a folder, or "
            "sandbox.provider=oci if it is an image"
            if what == "base"
            else f"the {what} {folder!r} of a local sandbox is not a folder: give the absolute path of one"
        )
    if what == "base" and not (path / "usr/bin").is_dir() and not (path / "bin").is_dir():
        raise ConfigError(f"the base {folder!r} has no programs: it must be a root file system that contains usr/bin")
    if what == "base" and os.geteuid() == 0 and not bwrap.can_be_reached(path):
        raise ConfigError(
            f"the base {folder!r} is not readable by other users: run `chmod a+rx` on it and on its parent folders"
        )

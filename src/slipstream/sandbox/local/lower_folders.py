"""What a local sandbox stands on: folders that lie below, and where it can be written to.

Input: a SandboxSpec, and the snapshots that lie above its base or its tree. Output: a Ground; that of a fork too.
Invariants: a Ground never changes, and a fork stands on all that the sandbox it was taken from stood on; a base or a
tree that no sandbox could stand on is refused by `check_folder`.
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
    """What a sandbox stands on: its spec, and where it can be written to."""

    spec: SandboxSpec
    areas: tuple[bwrap.Area, ...]
    """The first lower of one that has any is the base or the tree; snapshots lie above it."""
    snapshots: tuple[KeptLayer, ...] = ()
    """The lowest first. Each has a folder for every area."""

    def area_of(self, path: str) -> tuple[bwrap.Area, str]:
        """The area that a folder lies in, and its path from there."""
        place = PurePosixPath(bwrap.workdir_of(self.spec), path)
        for area in reversed(self.areas):
            if place.is_relative_to(area.place):
                return area, str(place.relative_to(area.place))
        raise SandboxFileError(f"{place}: nothing can be written there, so there are no changes to tell")

    def written(self, files: Mapping[str, File]) -> dict[str, OverlayLayer] | None:
        """What the areas hold, by their names, if these files were written and nothing else happened. None if that
        cannot be told: what lies below, or a path that goes round about, may lead elsewhere."""
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
        """That of a fork."""
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
    """Raise ConfigError if a base or a tree is none that a sandbox could stand on."""
    path = Path(folder)
    if not path.is_absolute() or not path.is_dir():
        raise ConfigError(
            f"the {what} {folder!r} of a local sandbox is no folder: use 'host', the absolute path of one, or "
            "sandbox.provider=oci if it is an image"
            if what == "base"
            else f"the {what} {folder!r} of a local sandbox is no folder: give the absolute path of one"
        )
    if what == "base" and not (path / "usr/bin").is_dir() and not (path / "bin").is_dir():
        raise ConfigError(f"the base {folder!r} has no programs: it must be the root of a system, with usr/bin in it")
    if what == "base" and os.geteuid() == 0 and not bwrap.can_be_reached(path):
        raise ConfigError(f"the base {folder!r} cannot be read by others: `chmod a+rx` it and the folders above it")

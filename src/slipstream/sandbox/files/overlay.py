"""Reads what changed in a sandbox from the writable layer of its overlay.

Input: descriptors of the layer and of the folder below it. Output: an `OverlayLayer`, and the old files at the paths it
changes. Invariants: those of `safe_walk.py`; below the layer, only paths that it names are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slipstream.errors import SandboxFileError
from slipstream.sandbox.files.safe_open import FOLDER, PLACE, open_inside
from slipstream.sandbox.files.safe_walk import (
    MAX_ENTRIES,
    Listing,
    Stat,
    list_folder,
    read_entries,
    sandbox_file_errors,
    stat_tree,
)
from slipstream.types import File, FileTree


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayLayer:
    """The contents of an overlay's writable layer. Paths are relative."""

    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    """Lower files and folders that were deleted."""
    opaque: frozenset[str] = frozenset()
    """Those of `folders` that hide the lower folder of the same name (`.` is the layer's root)."""
    left_out: Mapping[str, str] = field(default_factory=dict)

    def shows(self, path: str) -> bool:
        """Whether a lower file with this path is visible through the layer."""
        hiding = (self.files, self.links, self.deleted, self.left_out)
        if path in self.folders or any(path in hidden for hidden in hiding) or "." in self.opaque:
            return False
        above = path.rpartition("/")[0]
        while above:
            if above in self.opaque or any(above in hidden for hidden in hiding):
                return False
            above = above.rpartition("/")[0]
        return True


def read_layer(
    upper_fd: int,
    path: str = ".",
    max_bytes: int = 64 << 20,
    max_files: int = 10_000,
    *,
    skip: Collection[str] = (),
    prefix: str = "user.overlay.",
    max_entries: int = MAX_ENTRIES,
) -> OverlayLayer:
    """The contents of an overlay's upper folder; empty if `path` does not exist in it.

    `prefix` is that of the overlay's own attributes: `trusted.overlay.` if it was mounted without `userxattr`. It must
    be the right one, since programs inside can set the other.
    """
    with sandbox_file_errors(path):
        try:
            folder = open_inside(upper_fd, os.fsencode(path), FOLDER, links=False)
        except FileNotFoundError:
            return OverlayLayer()
    try:
        folders: set[str] = set()
        listing = list_folder(folder, skip, max_entries, folders)
        marks = _Marks(folder, prefix)
        deleted, left_out, kept = set(), dict(listing.left_out), []
        for entry in listing.entries:
            above = entry.path.rpartition("/")[0]
            if marks.is_whiteout(entry, above):
                deleted.add(entry.path)
            elif stat.S_ISREG(entry.mode) and marks.get(entry.path, "metacopy") is not None:
                left_out[entry.path] = "its data is in another layer"
            else:
                kept.append(entry)
        opaque = {name for name in (".", *folders) if marks.get(name, "opaque") == b"y"}
        for name in folders:
            if marks.get(name, "redirect") is not None:
                left_out[name] = "a folder renamed as a whole"
        tree = read_entries(folder, Listing(entries=kept, left_out=left_out), max_bytes, max_files)
        return OverlayLayer(
            files=tree.files,
            links=tree.links,
            folders=frozenset(folders),
            deleted=frozenset(deleted),
            opaque=frozenset(opaque),
            left_out=tree.left_out,
        )
    finally:
        os.close(folder)


class _Marks:
    """The overlay's attributes of files and folders."""

    def __init__(self, folder: int, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._holding: dict[str, bool] = {}

    def get(self, path: str, name: str) -> bytes | None:
        try:
            place = open_inside(self._folder, os.fsencode(path), PLACE | os.O_NOFOLLOW, links=False)
        except OSError:
            return None
        try:
            return os.getxattr(f"/proc/self/fd/{place}", self._prefix + name)
        except OSError:
            return None
        finally:
            os.close(place)

    def is_whiteout(self, entry: Stat, above: str) -> bool:
        if stat.S_ISCHR(entry.mode):
            return self._device(entry.path) == 0
        if not stat.S_ISREG(entry.mode) or entry.size:
            return False
        if above not in self._holding:
            self._holding[above] = self.get(above or ".", "opaque") == b"x"
        return self._holding[above] and self.get(entry.path, "whiteout") is not None

    def _device(self, path: str) -> int | None:
        try:
            return os.stat(path, dir_fd=self._folder, follow_symlinks=False).st_rdev
        except OSError:
            return None


def read_below(
    lower_fd: int,
    path: str,
    layer: OverlayLayer,
    max_bytes: int = 64 << 20,
    max_files: int = 10_000,
    *,
    max_entries: int = MAX_ENTRIES,
) -> FileTree:
    """The lower files at the paths that a layer changes: the old side of a comparison whose new side is the layer.
    `path` is the one given to `read_layer`."""
    try:
        with sandbox_file_errors(path):
            folder = open_inside(lower_fd, os.fsencode(path), FOLDER, links=False)
    except SandboxFileError:
        return FileTree()
    try:
        entries: dict[str, Stat] = {}
        left_out: dict[str, str] = {}
        for name in (*layer.files, *layer.links, *layer.deleted, *layer.folders, *layer.opaque):
            found = _look(folder, name)
            if found is None:
                continue
            if not stat.S_ISDIR(found.mode):
                entries[name] = found
            elif name not in layer.folders or name in layer.opaque:
                listing = stat_tree(folder, name, max_entries=max(1, max_entries - len(entries)))
                prefix = "" if name == "." else f"{name}/"
                entries |= {prefix + entry.path: entry._replace(path=prefix + entry.path) for entry in listing.entries}
                left_out |= {f"{prefix}{below}": why for below, why in listing.left_out.items()}
        listing = Listing(entries=list(entries.values()), left_out=left_out)
        return read_entries(folder, listing, max_bytes, max_files)
    finally:
        os.close(folder)


def _look(folder: int, path: str) -> Stat | None:
    try:
        place = open_inside(folder, os.fsencode(path), PLACE | os.O_NOFOLLOW, links=False)
    except OSError:
        return None
    try:
        known = os.fstat(place)
        return Stat(path, known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino, known.st_mode)
    finally:
        os.close(place)

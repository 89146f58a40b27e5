"""What was changed in a folder of a sandbox: its writable layer then and now, over the same folders below.

Input: descriptors of the folders. Output: a Changed.
Invariants: of the folders below only what a layer names is read; no link is followed; how much is read is bounded by a
Room, and what an agent wrote beyond that is an error of its own or is left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from slipstream.errors import SandboxFileError
from slipstream.offload import OffloadLimits
from slipstream.patches.apply import Entry, PatchError, entries_of, make_patch
from slipstream.sandbox.base import Changed
from slipstream.sandbox.files.overlay import OverlayLayer, read_below, read_layer
from slipstream.types import FileTree

MAX_MARKED_BYTES = 256 << 20
MAX_MARKED_FILES = 100_000
MAX_CHANGED_FILES = 20_000
MAX_CHANGED_NAMES = 50_000
MAX_LEFT_OUT = 100
"""How many paths that are left out are named."""

T = TypeVar("T")
Seen: TypeAlias = dict[str, Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBudget:
    """How much of a layer, and of what lies below it, is read."""

    num_bytes: int
    num_files: int
    num_names: int

    def beside(self, then: OverlayLayer) -> ReadBudget:
        """The same for a layer that held something when it was marked."""
        num_files = len(then.files) + len(then.links)
        num_names = num_files + len(then.folders) + len(then.deleted) + len(then.left_out)
        return replace(self, num_files=self.num_files + num_files, num_names=self.num_names + num_names)


SMALL = ReadBudget(num_bytes=1 << 20, num_files=200, num_names=1_000)
"""What takes some milliseconds, and is looked at in a thread."""
LARGE = ReadBudget(num_bytes=MAX_MARKED_BYTES, num_files=MAX_CHANGED_FILES, num_names=MAX_CHANGED_NAMES)
LIMITS = OffloadLimits(cpu_s=60)
"""Of the process that looks at more than that."""


def take(upper_fd: int) -> OverlayLayer:
    """The layer as it is now."""
    return read_layer(upper_fd, ".", MAX_MARKED_BYTES, MAX_MARKED_FILES)


def small_differences(
    then: OverlayLayer, upper_fd: int, *, base_fd: int | None, snapshot_fds: Sequence[int], path: str, max_bytes: int
) -> Changed | None:
    """`differences`, if that is little work; else None."""
    if len(then.files) > SMALL.num_files or sum(len(file.data) for file in then.files.values()) > SMALL.num_bytes:
        return None
    layers = _read(then, upper_fd, base_fd, snapshot_fds, SMALL.beside(then))
    return _compared(layers, path, max_bytes) if layers.is_whole else None


def differences(
    then: OverlayLayer, upper_fd: int, base_fd: int | None, snapshot_fds: Sequence[int], path: str, max_bytes: int
) -> Changed:
    """From `then` to what the layer holds now, of what lies below `path`. Below both lie the same base, if there is
    one, and on it layers that were kept, the lowest first. Raises SandboxFileError if that is too much."""
    return _compared(_read(then, upper_fd, base_fd, snapshot_fds, LARGE.beside(then)), path, max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """A folder then and now, as it is seen through all layers."""

    old: Seen
    new: Seen
    left_out: Mapping[str, str]
    """What is not told now, and may differ from then."""
    is_whole: bool
    """Whether there was room for all."""


def _read(
    then: OverlayLayer, upper_fd: int, base_fd: int | None, snapshot_fds: Sequence[int], room: ReadBudget
) -> _Layers:
    now = read_layer(upper_fd, ".", room.num_bytes, room.num_files, max_entries=room.num_names)
    if len(now.files) + len(now.links) >= room.num_files and room.num_files >= LARGE.num_files:
        raise SandboxFileError(f"more files were made than the {LARGE.num_files} that may be: remove what is not work")
    left_out = {name: why for name, why in now.left_out.items() if then.left_out.get(name) != why}
    is_whole = not now.left_out
    below: Seen = {}
    if base_fd is not None:
        for layer in (then, now):
            tree = read_below(base_fd, ".", layer, room.num_bytes, room.num_files, max_entries=room.num_names)
            below |= entries_of(tree)
            left_out |= tree.left_out
            is_whole = is_whole and not tree.left_out
    for fd in snapshot_fds:
        layer = read_layer(fd, ".", room.num_bytes, MAX_MARKED_FILES)
        below = _through(layer, below)
        is_whole = is_whole and not layer.left_out
    return _Layers(old=_through(then, below), new=_through(now, below), left_out=left_out, is_whole=is_whole)


def _compared(layers: _Layers, path: str, max_bytes: int) -> Changed:
    old, new, left_out = _below(path, layers.old), _below(path, layers.new), _below(path, layers.left_out)
    paths = sorted(name for name in {*old, *new} if old.get(name) != new.get(name) and name not in left_out)
    try:
        patch = make_patch(
            {name: old.get(name) for name in paths}, {name: new.get(name) for name in paths}, max_bytes=max_bytes
        )
    except PatchError as raised:
        raise SandboxFileError(str(raised)) from raised
    return Changed(patch=patch, paths=tuple(paths), left_out=some_of(left_out))


def some_of(left_out: Mapping[str, str]) -> dict[str, str]:
    """The first of many paths, with their reasons; and how many more there are."""
    if len(left_out) <= MAX_LEFT_OUT:
        return dict(left_out)
    kept = {name: left_out[name] for name in sorted(left_out)[:MAX_LEFT_OUT]}
    return {**kept, f"{len(left_out) - MAX_LEFT_OUT} more": "left out too"}


def _through(layer: OverlayLayer, below: Seen) -> Seen:
    """What is seen from above."""
    own = entries_of(FileTree(files=layer.files, links=layer.links))
    return {name: entry for name, entry in below.items() if layer.shows(name)} | own


def _below(path: str, named: Mapping[str, T]) -> dict[str, T]:
    """Of what has a path, that which lies below one, by its path from there."""
    if path == ".":
        return dict(named)
    return {name[len(path) + 1 :]: what for name, what in named.items() if name.startswith(f"{path}/")}

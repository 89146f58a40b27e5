"""Finds what changed in a folder of a sandbox, by comparing its writable layer with an earlier state of it.

Input: descriptors of the layer and of the folders below it. Output: a Changed. Invariants: of the lower folders, only
paths named in a layer are read; no link is followed; a ReadBudget bounds how much is read, and what an agent wrote
beyond it is an error of the agent or is left out and named.
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
"""How many of the left-out paths are named."""

T = TypeVar("T")
Seen: TypeAlias = dict[str, Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBudget:
    """How much of a layer and of the folders below it is read."""

    num_bytes: int
    num_files: int
    num_names: int

    def beside(self, then: OverlayLayer) -> ReadBudget:
        """The same budget on top of what the layer held when it was marked."""
        num_files = len(then.files) + len(then.links)
        num_names = num_files + len(then.folders) + len(then.deleted) + len(then.left_out)
        return replace(self, num_files=self.num_files + num_files, num_names=self.num_names + num_names)


SMALL = ReadBudget(num_bytes=1 << 20, num_files=200, num_names=1_000)
"""Takes a few milliseconds, so it is read in a thread."""
LARGE = ReadBudget(num_bytes=MAX_MARKED_BYTES, num_files=MAX_CHANGED_FILES, num_names=MAX_CHANGED_NAMES)
LIMITS = OffloadLimits(cpu_s=60)
"""For the process that compares larger layers."""


def read_marked_layer(upper_fd: int) -> OverlayLayer:
    """The current state of the layer."""
    return read_layer(upper_fd, ".", MAX_MARKED_BYTES, MAX_MARKED_FILES)


def compare_small(
    then: OverlayLayer, upper_fd: int, *, base_fd: int | None, snapshot_fds: Sequence[int], path: str, max_bytes: int
) -> Changed | None:
    """`compare_layers`, if that is little work; otherwise None."""
    if len(then.files) > SMALL.num_files or sum(len(file.data) for file in then.files.values()) > SMALL.num_bytes:
        return None
    layers = _read(then, upper_fd, base_fd, snapshot_fds, SMALL.beside(then))
    return _compared(layers, path, max_bytes) if layers.is_whole else None


def compare_layers(
    then: OverlayLayer, upper_fd: int, base_fd: int | None, snapshot_fds: Sequence[int], path: str, max_bytes: int
) -> Changed:
    """The changes below `path` from `then` to the layer's current state. Both lie on the same base, if there is one,
    and on the same snapshots, bottom to top. Raises SandboxFileError if there are too many changes."""
    return _compared(_read(then, upper_fd, base_fd, snapshot_fds, LARGE.beside(then)), path, max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """A folder then and now, as seen through all layers."""

    old: Seen
    new: Seen
    left_out: Mapping[str, str]
    """Paths that could not be read now, and may have changed."""
    is_whole: bool
    """Whether everything fit the budget."""


def _read(
    then: OverlayLayer, upper_fd: int, base_fd: int | None, snapshot_fds: Sequence[int], room: ReadBudget
) -> _Layers:
    now = read_layer(upper_fd, ".", room.num_bytes, room.num_files, max_entries=room.num_names)
    if len(now.files) + len(now.links) >= room.num_files and room.num_files >= LARGE.num_files:
        raise SandboxFileError(f"more than {LARGE.num_files} files were created: remove those that are not work")
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
    """The first of many paths with their reasons, and the number of further ones."""
    if len(left_out) <= MAX_LEFT_OUT:
        return dict(left_out)
    kept = {name: left_out[name] for name in sorted(left_out)[:MAX_LEFT_OUT]}
    return {**kept, f"{len(left_out) - MAX_LEFT_OUT} more": "also left out"}


def _through(layer: OverlayLayer, below: Seen) -> Seen:
    """The files as seen through a layer."""
    own = entries_of(FileTree(files=layer.files, links=layer.links))
    return {name: entry for name, entry in below.items() if layer.shows(name)} | own


def _below(path: str, named: Mapping[str, T]) -> dict[str, T]:
    """The entries below a path, keyed by their path relative to it."""
    if path == ".":
        return dict(named)
    return {name[len(path) + 1 :]: what for name, what in named.items() if name.startswith(f"{path}/")}

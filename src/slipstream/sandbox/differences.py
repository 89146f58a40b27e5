"""What was changed in a folder of a sandbox: its writable layer then and now, over the same folders below.

Enters: descriptors of the folders. Leaves: a Changed.
Always holds: of the folders below only what a layer names is read; no link is followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from slipstream.errors import SandboxFileError
from slipstream.sandbox.base import Changed, Tree
from slipstream.sandbox.layer import Layer, read_below, read_layer
from slipstream.sandbox.patch import Entry, entries_of, make_patch

MAX_MARKED_BYTES = 256 << 20
MAX_MARKED_FILES = 100_000

T = TypeVar("T")
Seen: TypeAlias = dict[str, Entry]


def take(upper_fd: int) -> Layer:
    """The layer as it is now."""
    return read_layer(upper_fd, ".", MAX_MARKED_BYTES, MAX_MARKED_FILES)


def differences(
    then: Layer, now: Layer, *, base_fd: int | None, snapshot_fds: Sequence[int], path: str, max_bytes: int
) -> Changed:
    """From `then` to `now`, of what lies below `path`. Below both lie the same base, if there is one, and on it layers
    that were kept, the lowest first."""
    below: Seen = {}
    if base_fd is not None:
        below = entries_of(read_below(base_fd, ".", then)) | entries_of(read_below(base_fd, ".", now))
    for layer in map(take, snapshot_fds):
        below = _through(layer, below)
    old, new = _below(path, _through(then, below)), _below(path, _through(now, below))
    paths = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    patch = make_patch({name: old.get(name) for name in paths}, {name: new.get(name) for name in paths})
    if len(patch) > max_bytes:
        raise SandboxFileError(f"the changes make a patch of {len(patch)} bytes, where {max_bytes} are allowed")
    left_out = {name: why for name, why in now.left_out.items() if then.left_out.get(name) != why}
    return Changed(patch=patch, paths=tuple(paths), left_out=_below(path, left_out))


def _through(layer: Layer, below: Seen) -> Seen:
    """What is seen from above."""
    own = entries_of(Tree(files=layer.files, links=layer.links))
    return {name: entry for name, entry in below.items() if layer.shows(name)} | own


def _below(path: str, named: Mapping[str, T]) -> dict[str, T]:
    """Of what has a path, that which lies below one, by its path from there."""
    if path == ".":
        return dict(named)
    return {name[len(path) + 1 :]: what for name, what in named.items() if name.startswith(f"{path}/")}

"""What local sandboxes stand on together: views, and copies of trees.

Input: a View, or the folder of a tree. Output: the layer with it, made once and held for the caller.
Invariants: nobody can write to it; what is held is there until it is released; of what nobody holds only so many are
kept; what could not be made is made anew for the next who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from slipstream.errors import SandboxError
from slipstream.sandbox.files.copy import copy_tree
from slipstream.sandbox.local.keeper_client import KeeperClient, KeptLayer
from slipstream.sandbox.local.process import NOBODY
from slipstream.sandbox.local.view import HostView

MAX_VIEWS = 8
"""That nobody uses. Each takes memory and mounts; those that were not used for longest go."""
MAX_TREES = 8
"""That nobody uses. Each takes as much memory as its files are large; those that were not used for longest go."""
TREE_BYTES = 1 << 36
"""Of a layer that holds a tree: as much as there is."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

What = TypeVar("What", bound=Hashable)


class SharedLayers:
    """What one keeper has made. Owns the keeper."""

    def __init__(self, keeper: KeeperClient) -> None:
        self.keeper = keeper
        self._views: _Kept[HostView] = _Kept(keeper, keeper.furnish, MAX_VIEWS)
        self._trees: _Kept[str] = _Kept(keeper, functools.partial(_copied, keeper), MAX_TREES)

    async def hold_view(self, view: HostView) -> KeptLayer:
        """The layer with a view."""
        return await self._views.hold(view)

    async def hold_tree(self, folder: str) -> KeptLayer | None:
        """The layer with a copy of a tree, if the sandboxes' user needs one: he could not change what belongs to
        another, not even in a layer above it."""
        return await self._trees.hold(folder) if os.geteuid() == 0 else None

    async def release(self, layer: KeptLayer) -> None:
        """Let go of what was held: a view, a tree, or any other layer of the keeper's."""
        await self.keeper.release(layer)
        await self._views.released(layer)
        await self._trees.released(layer)

    async def aclose(self) -> None:
        """Let go of all of it, and of the keeper. No sandbox may stand on it any more."""
        try:
            await self.keeper.aclose()
        finally:
            await self._views.aclose()
            await self._trees.aclose()


class _Kept(Generic[What]):
    """Layers by what is in them. Each is held here too, for as long as it is kept."""

    def __init__(self, keeper: KeeperClient, make: Callable[[What], Awaitable[KeptLayer]], max_idle: int) -> None:
        self._keeper = keeper
        self._make = make
        self._max_idle = max_idle
        self._made: dict[What, asyncio.Task[KeptLayer]] = {}
        """The one used last comes last."""

    async def hold(self, what: What) -> KeptLayer:
        while True:
            making = self._made.pop(what, None)
            if making is None:
                making = asyncio.ensure_future(self._make_held(what))
                making.add_done_callback(functools.partial(self._settle, what))
            self._made[what] = making
            layer = await asyncio.shield(making)
            if self._made.get(what) is making:  # else it may be gone by now
                self._keeper.hold(layer)
                return layer

    async def _make_held(self, what: What) -> KeptLayer:
        layer = await self._make(what)
        self._keeper.hold(layer)
        return layer

    def _settle(self, what: What, making: asyncio.Task[KeptLayer]) -> None:
        """Forget what could not be made, for whatever reason; what has just been made is the last to go."""
        if self._made.get(what) is making:
            del self._made[what]
            if _layer_of(making) is not None:
                self._made[what] = making

    async def released(self, layer: KeptLayer) -> None:
        """Somebody has let go of a layer, perhaps one of these."""
        what = next((what for what, made in self._made.items() if _layer_of(made) is layer), None)
        if what is None:
            return
        self._made[what] = self._made.pop(what)
        idle = {
            what: kept
            for what, made in self._made.items()
            if (kept := _layer_of(made)) is not None and self._keeper.num_holders(kept) == 1
        }
        old = list(idle)[: -self._max_idle]
        for what in old:
            del self._made[what]
        for what in old:
            await self._keeper.release(idle[what])

    async def aclose(self) -> None:
        made = [*self._made.values()]
        self._made.clear()
        if made:
            await asyncio.wait(made)
        for layer in map(_layer_of, made):
            if layer is not None:
                await self._keeper.release(layer)


def _layer_of(making: asyncio.Task[KeptLayer]) -> KeptLayer | None:
    """If it is made."""
    return making.result() if making.done() and not making.cancelled() and making.exception() is None else None


def place_of(tree: KeptLayer) -> str:
    """Where bwrap finds the files of a tree's copy."""
    return f"{tree.path}/tree"


@contextlib.contextmanager
def folder(path: str, layers: Sequence[KeptLayer]) -> Iterator[int]:
    """A descriptor of a base or a tree; if it is a tree's copy, that is among `layers`."""
    layer = next((layer for layer in layers if path == place_of(layer)), None)
    if layer is None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        fd = os.open("tree", FOLDER, dir_fd=layer.fd)
    try:
        yield fd
    finally:
        os.close(fd)


async def _copied(keeper: KeeperClient, folder: str) -> KeptLayer:
    """A layer with the files of a folder, as the sandboxes' user's own."""
    layer = await keeper.make(TREE_BYTES, {"tree": 0o755})

    def copy() -> None:
        source = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            target = os.open("tree", FOLDER, dir_fd=layer.fd)
            try:
                copy_tree(source, target, uid=NOBODY, gid=NOBODY)
            finally:
                os.close(target)
        finally:
            os.close(source)

    try:
        await asyncio.to_thread(copy)
    except OSError as error:
        await keeper.drop(layer)
        raise SandboxError(f"the tree {folder} cannot be copied: {error}") from error
    return layer

"""Layers that local sandboxes share: views, and copies of trees.

Input: a HostView, or the folder of a tree. Output: a layer with it, made once and held for the caller.
Invariants: shared layers are read-only; a held layer exists until it is released; a limited number of unused layers is
kept; if making one fails, the next caller tries again.
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
"""Unused ones to keep; the least recently used go first. Each takes memory and mounts."""
MAX_TREES = 8
"""Unused ones to keep; the least recently used go first. Each takes the memory of its files."""
TREE_BYTES = 1 << 36
"""The size of a layer with a tree: unlimited, in effect."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

What = TypeVar("What", bound=Hashable)


class SharedLayers:
    """The shared layers of one keeper. Owns the keeper."""

    def __init__(self, keeper: KeeperClient) -> None:
        self.keeper = keeper
        self._views: _Kept[HostView] = _Kept(keeper, keeper.make_view, MAX_VIEWS)
        self._trees: _Kept[str] = _Kept(keeper, functools.partial(_copied, keeper), MAX_TREES)

    async def hold_view(self, view: HostView) -> KeptLayer:
        """The layer with a view."""
        return await self._views.hold(view)

    async def hold_tree(self, folder: str) -> KeptLayer | None:
        """The layer with a copy of a tree, if the sandboxes' user needs one: that user could not change another user's
        files, not even in a layer on top."""
        return await self._trees.hold(folder) if os.geteuid() == 0 else None

    async def release(self, layer: KeptLayer) -> None:
        """Release a held layer: a view, a tree, or any other."""
        await self.keeper.release(layer)
        await self._views.released(layer)
        await self._trees.released(layer)

    async def aclose(self) -> None:
        """Release everything and close the keeper. No sandbox may use it any more."""
        try:
            await self.keeper.aclose()
        finally:
            await self._views.aclose()
            await self._trees.aclose()


class _Kept(Generic[What]):
    """Layers by their contents. The cache holds a reference to each."""

    def __init__(self, keeper: KeeperClient, make: Callable[[What], Awaitable[KeptLayer]], max_idle: int) -> None:
        self._keeper = keeper
        self._make = make
        self._max_idle = max_idle
        self._made: dict[What, asyncio.Task[KeptLayer]] = {}
        """The most recently used one comes last."""

    async def hold(self, what: What) -> KeptLayer:
        while True:
            making = self._made.pop(what, None)
            if making is None:
                making = asyncio.ensure_future(self._make_held(what))
                making.add_done_callback(functools.partial(self._settle, what))
            self._made[what] = making
            layer = await asyncio.shield(making)
            if self._made.get(what) is making:  # otherwise it may already be gone
                self._keeper.hold(layer)
                return layer

    async def _make_held(self, what: What) -> KeptLayer:
        layer = await self._make(what)
        self._keeper.hold(layer)
        return layer

    def _settle(self, what: What, making: asyncio.Task[KeptLayer]) -> None:
        """Forget a layer that could not be made; a new one becomes the most recently used."""
        if self._made.get(what) is making:
            del self._made[what]
            if _layer_of(making) is not None:
                self._made[what] = making

    async def released(self, layer: KeptLayer) -> None:
        """A layer, perhaps one of these, was released."""
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
    """The layer, if it is ready."""
    return making.result() if making.done() and not making.cancelled() and making.exception() is None else None


def place_of(tree: KeptLayer) -> str:
    """Where the keeper finds the files in a copy of a tree."""
    return f"{tree.path}/tree"


@contextlib.contextmanager
def folder(path: str, layers: Sequence[KeptLayer]) -> Iterator[int]:
    """A descriptor of a base or a tree; the copy of a tree is one of `layers`."""
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
    """A layer with a copy of a folder, owned by the sandboxes' user."""
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

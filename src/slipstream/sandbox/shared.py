"""What local sandboxes stand on together: views, and copies of trees.

Enters: a View, or the folder of a tree. Leaves: the layer with it, made once.
Always holds: nobody can write to it; what a sandbox holds is there until it is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

from slipstream.errors import SandboxError, SlipstreamError
from slipstream.sandbox.copying import copy_tree
from slipstream.sandbox.keeping import Keeper, Layer
from slipstream.sandbox.launch import NOBODY
from slipstream.sandbox.view import View

MAX_VIEWS = 8
"""Each takes memory and mounts; those that were not asked for longest go."""
TREE_BYTES = 1 << 36
"""Of a layer that holds a tree: as much as there is."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Shared:
    """What one keeper has made. Owns the keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self._views: dict[View, asyncio.Task[Layer]] = {}
        """The one asked for last comes last."""
        self._trees: dict[str, asyncio.Task[Layer]] = {}

    async def hold_view(self, view: View) -> Layer:
        """The layer with a view, held for the caller."""
        while True:
            making = self._views.pop(view, None) or asyncio.ensure_future(self._furnished(view))
            self._views[view] = making
            await self._drop_old_views()
            try:
                layer = await asyncio.shield(making)
            except SlipstreamError:
                if self._views.get(view) is making:
                    del self._views[view]
                raise
            if self._views.get(view) is making:  # else it may be gone by now
                self.keeper.hold(layer)
                return layer

    async def _furnished(self, view: View) -> Layer:
        layer = await self.keeper.furnish(view)
        self.keeper.hold(layer)
        return layer

    async def _drop_old_views(self) -> None:
        while len(self._views) > MAX_VIEWS:
            made = self._views.pop(next(iter(self._views)))
            with contextlib.suppress(SlipstreamError):
                await self.keeper.release(await asyncio.shield(made))

    async def aclose(self) -> None:
        """Let go of all of it, and of the keeper. No sandbox may stand on it any more."""
        views, trees = [*self._views.values()], [*self._trees.values()]
        self._views.clear()
        self._trees.clear()
        for made in views:
            with contextlib.suppress(SlipstreamError):
                await self.keeper.release(await made)
        for made in trees:
            with contextlib.suppress(SlipstreamError):
                await self.keeper.drop(await made)
        await self.keeper.aclose()

    async def tree(self, folder: str) -> str:
        """Where the sandboxes' user finds a tree: at its place if the files are his own, else in a layer with a copy,
        since he could not change what belongs to another, not even in a layer above it."""
        if os.geteuid() != 0:
            return folder
        if folder not in self._trees:
            self._trees[folder] = asyncio.ensure_future(_copied(self.keeper, folder))
        try:
            layer = await asyncio.shield(self._trees[folder])
        except SlipstreamError:
            self._trees.pop(folder, None)
            raise
        return f"{layer.path}/tree"

    @contextlib.contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A descriptor of a base or a tree."""
        made = [task.result() for task in self._trees.values() if task.done() and task.exception() is None]
        layer = next((layer for layer in made if path == f"{layer.path}/tree"), None)
        if layer is None:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            fd = os.open("tree", FOLDER, dir_fd=layer.fd)
        try:
            yield fd
        finally:
            os.close(fd)


async def _copied(keeper: Keeper, folder: str) -> Layer:
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

"""The sandbox that a rollout gets from the pool: it wraps the provider's, and notifies the pool when closed.

Invariants: it has the methods of exactly those capabilities that the provider lists; closing it closes the provider's
sandbox, which is never reused.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import cast

from slipstream.sandbox.base import (
    Capability,
    Changed,
    Changes,
    Endpoints,
    ExecResult,
    OnConnect,
    Rooted,
    Sandbox,
    Shell,
    Snapshot,
    Snapshots,
)
from slipstream.types import File, FileTree

Close = Callable[[Sandbox], Awaitable[None]]
OpenFork = Callable[[Callable[[], Awaitable[Sandbox]]], Awaitable[Sandbox]]


class PooledSandbox:
    """A leased sandbox. `inner` is the provider's."""

    def __init__(self, inner: Sandbox, close: Close, open_fork: OpenFork) -> None:
        self.inner = inner
        self._close = close
        self._open_fork = open_fork

    @property
    def id(self) -> str:
        return self.inner.id

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        return await self.inner.exec(
            argv, stdin=stdin, env=env, cwd=cwd, timeout_s=timeout_s, max_output_bytes=max_output_bytes
        )

    async def shell(self) -> Shell:
        return await self.inner.shell()

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        return await self.inner.read(path, max_bytes=max_bytes)

    async def read_tree(self, path: str, *, max_bytes: int = 64 << 20, max_files: int = 10_000) -> FileTree:
        return await self.inner.read_tree(path, max_bytes=max_bytes, max_files=max_files)

    async def write(self, files: Mapping[str, File]) -> None:
        await self.inner.write(files)

    async def healthy(self) -> bool:
        return await self.inner.healthy()

    async def aclose(self) -> None:
        await self._close(self.inner)


class _WithChanges(PooledSandbox):
    async def mark(self) -> None:
        await cast("Changes", self.inner).mark()

    async def changes(self, path: str | None = None, *, max_bytes: int = 16 << 20) -> Changed:
        return await cast("Changes", self.inner).changes(path, max_bytes=max_bytes)


class _WithSnapshots(PooledSandbox):
    async def snapshot(self) -> Snapshot:
        return _Snapshot(await cast("Snapshots", self.inner).snapshot(), self._open_fork)


class _WithEndpoints(PooledSandbox):
    async def serve(self, name: str, on_connect: OnConnect) -> str:
        return await cast("Endpoints", self.inner).serve(name, on_connect)


class _WithRoot(PooledSandbox):
    def root(self) -> AbstractContextManager[int]:
        return cast("Rooted", self.inner).root()

    def rights(self) -> AbstractContextManager[None]:
        return cast("Rooted", self.inner).rights()


class _Snapshot:
    """A snapshot whose forks count as sandboxes of the pool."""

    def __init__(self, inner: Snapshot, open_fork: OpenFork) -> None:
        self._inner = inner
        self._open_fork = open_fork

    @property
    def id(self) -> str:
        return self._inner.id

    async def open(self) -> Sandbox:
        return await self._open_fork(self._inner.open)

    async def aclose(self) -> None:
        await self._inner.aclose()


_PARTS: Mapping[Capability, type[PooledSandbox]] = {
    Capability.CHANGES: _WithChanges,
    Capability.SNAPSHOTS: _WithSnapshots,
    Capability.ENDPOINTS: _WithEndpoints,
    Capability.ROOT: _WithRoot,
}


@functools.cache
def pooled_type(capabilities: frozenset[Capability]) -> type[PooledSandbox]:
    """The PooledSandbox class with these capabilities."""
    parts = tuple(_PARTS[capability] for capability in Capability if capability in capabilities)
    return type("Leased", parts, {}) if parts else PooledSandbox

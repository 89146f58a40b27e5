"""Decides who is to blame for a sandbox that failed: the programs that ran inside, or the host.

An agent's programs can bring down their own sandbox in more ways than can be listed. So a failure after the first
program has run counts as the agent's, unless there is evidence against the host: a process that was killed from
outside, a resource shortage in this process, or a fresh sandbox of the same kind that does not work either.

`Probe` opens that fresh sandbox. A caller that asks while a probe is running shares the next one, which starts after
the failure in question: a burst of failures costs two starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from slipstream.errors import SlipstreamError, is_shortage
from slipstream.sandbox.base import Sandbox
from slipstream.types import SandboxSpec

PROBE_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 20.0


class Probe:
    """Tests whether this host can still open a sandbox and run a program in it. `opens` is the provider's `open`."""

    def __init__(
        self, opens: Callable[[SandboxSpec], Awaitable[Sandbox]], *, timeout_s: float = PROBE_TIMEOUT_S
    ) -> None:
        self._opens = opens
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._next: dict[tuple[str, str, str], asyncio.Task[str | None]] = {}
        """Probes that have not started, by what they will open."""
        self._tasks: set[asyncio.Task[str | None]] = set()
        self.num_started = 0

    async def fault(self, spec: SandboxSpec) -> str | None:
        """What is wrong with the host; None if a fresh sandbox works."""
        key = (spec.base, spec.tree, spec.workdir)
        if key not in self._next:
            self._next[key] = task = asyncio.create_task(self._run(key, replace(spec, files={}, setup=())))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        shared = self._next[key]
        await asyncio.wait([shared])  # a cancelled caller must not cancel it for the others
        return "the provider was closed" if shared.cancelled() else shared.result()

    async def aclose(self) -> None:
        """Cancel running probes and wait for them to end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._next.clear()

    async def _run(self, key: tuple[str, str, str], spec: SandboxSpec) -> str | None:
        async with self._turn:
            del self._next[key]  # failures from now on need another probe
            self.num_started += 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._try(spec)
            except TimeoutError:
                return f"a fresh sandbox did not work within {self._timeout_s:g} s"
            except (SlipstreamError, OSError) as raised:
                return f"a fresh sandbox failed too: {raised}"

    async def _try(self, spec: SandboxSpec) -> str | None:
        sandbox = await self._opens(spec)
        try:
            result = await sandbox.exec(["true"], timeout_s=RUN_TIMEOUT_S)
        finally:
            await sandbox.aclose()
        if result.exit_code != 0:
            return f"`true` in a fresh sandbox exited with {result.exit_code}: {result.stderr.text()[-200:]}"
        return None


def is_local_shortage(error: BaseException) -> bool:
    """Whether a failure came from a lack of memory, threads, processes or descriptors in this process."""
    cause: BaseException | None = error
    while cause is not None:
        if is_shortage(cause) or (isinstance(cause, RuntimeError) and "new thread" in str(cause)):
            return True
        cause = cause.__cause__
    return False

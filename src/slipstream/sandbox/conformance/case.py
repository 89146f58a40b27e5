"""Building blocks of the conformance cases.

Invariants: a failing case raises an AssertionError that says what was promised; no test framework is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from slipstream.sandbox.base import Capability, ExecResult, Sandbox, SandboxProvider
from slipstream.types import SandboxSpec

SpecMaker: TypeAlias = Callable[..., SandboxSpec]
"""Takes the fields of a SandboxSpec; the caller of the suite adds the base."""
Body: TypeAlias = Callable[[SandboxProvider, SpecMaker], Awaitable[None]]
LONG_S = 60.0
"""The timeout for what should take no time at all."""
PATIENCE_S = 10.0


class Need(StrEnum):
    """What a case needs from a provider beyond files and `true`, `echo`, `sleep` and `exit`."""

    PROGRAMS = "programs"
    """Real programs run inside: sh and the usual Unix tools."""
    DISK_LIMIT = "disk_limit"
    """`SandboxLimits.disk_mb` and `file_mb` are enforced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One promise, and a test of it."""

    name: str
    body: Body
    needs: frozenset[Need]
    capabilities: frozenset[Capability]

    async def __call__(self, provider: SandboxProvider, make_spec: SpecMaker) -> None:
        await self.body(provider, make_spec)

    def __str__(self) -> str:
        return self.name


class Cases:
    """Collects the functions that it decorates."""

    def __init__(self) -> None:
        self.all: list[Case] = []

    def case(self, *needs: Need | Capability) -> Callable[[Body], Body]:
        def keep(body: Body) -> Body:
            case = Case(
                name=getattr(body, "__name__", str(body)),
                body=body,
                needs=frozenset(need for need in needs if isinstance(need, Need)),
                capabilities=frozenset(need for need in needs if isinstance(need, Capability)),
            )
            self.all.append(case)
            return body

        return keep


@contextlib.asynccontextmanager
async def opened(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    sandbox = await provider.open(spec)
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


@contextlib.contextmanager
def expecting(error: type[BaseException], match: str = "") -> Iterator[None]:
    """The body must raise this error, with this in its message."""
    try:
        yield
    except error as raised:
        assert re.search(match, str(raised)), f"the message should match {match!r}, but is {str(raised)!r}"
    else:
        raise AssertionError(f"{error.__name__} should have been raised ({match!r})")


async def sh(sandbox: Sandbox, script: str, timeout_s: float = LONG_S) -> ExecResult:
    return await sandbox.exec(["sh", "-c", script], timeout_s=timeout_s)


async def output(sandbox: Sandbox, script: str) -> str:
    """The output of a script that must succeed."""
    result = await sh(sandbox, script)
    assert result.exit_code == 0, f"{script!r} exited with {result.exit_code}: {result.stderr.text()}"
    return result.stdout.text()


_LIST = 'for p in /proc/[0-9]*; do echo "${p#/proc/} $(tr "\\0" " " < $p/cmdline)"; done 2>/dev/null'


async def command_lines(sandbox: Sandbox) -> dict[int, str]:
    """The command lines of all processes inside, found with only a shell."""
    lines = [line.split(" ", 1) for line in (await output(sandbox, _LIST)).splitlines()]
    return {int(line[0]): line[-1].strip() for line in lines}


async def comes_true(what: str, seen: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not await seen():
        assert loop.time() < deadline, f"this should become true within {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(0.02)


async def becomes(sandbox: Sandbox, pid: int, command: str) -> None:
    """Wait until a process runs `command`: right after its fork it is still a copy of its parent."""

    async def seen() -> bool:
        return (await command_lines(sandbox)).get(pid) == command

    await comes_true(f"process {pid} is {command!r}", seen)


async def all_gone(sandbox: Sandbox, *words: str) -> None:
    """Wait until no process has one of these words in its command line."""

    async def gone() -> bool:
        commands = [command for command in (await command_lines(sandbox)).values() if "/proc/[0-9]" not in command]
        return not any(word in command for word in words for command in commands)

    await comes_true(f"no process has one of {words} in its command line", gone)

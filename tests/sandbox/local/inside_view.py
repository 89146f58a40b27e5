"""What runs in a sandbox, seen from inside with nothing but a shell: a minimal Debian has neither ps nor pgrep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slipstream.sandbox import Sandbox

_LIST = 'for p in /proc/[0-9]*; do echo "${p#/proc/} $(tr "\\0" " " < $p/cmdline)"; done 2>/dev/null'


async def command_lines(sandbox: Sandbox) -> dict[int, str]:
    """Of every process inside but those that do the listing: pid -> command line."""
    result = await sandbox.exec(["sh", "-c", _LIST], timeout_s=30)
    assert result.exit_code == 0
    lines = (line.split(" ", 1) for line in result.stdout.text().splitlines())
    listed = {int(pid): command.strip() for pid, command in lines}
    assert "slipstream-lease=" in listed[1], "the supervisor"
    return {pid: command for pid, command in listed.items() if command and "/proc/[0-9]" not in command}


async def until_listed(sandbox: Sandbox, holds: Callable[[dict[int, str]], bool]) -> None:
    """A process that is killed takes a moment to be gone."""
    async with asyncio.timeout(300):
        while not holds(await command_lines(sandbox)):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)

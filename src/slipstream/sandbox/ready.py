"""Opening a sandbox that is ready for the agent: started, files written, setup commands run.

Input: a provider and a SandboxSpec. Output: a Sandbox, the caller's to close.
Invariants: if it does not come to that, nothing is left open.
"""

from __future__ import annotations

import asyncio

from slipstream.errors import SandboxBroken, SandboxError
from slipstream.sandbox.base import Changes, Sandbox, SandboxProvider
from slipstream.types import SandboxSpec

SHOWN_CHARACTERS = 2000
"""How much of a failed setup command's output an error shows."""
SHOWN_COMMAND = 80
"""How much of the command itself: what it said counts."""


async def open_sandbox(provider: SandboxProvider, spec: SandboxSpec, *, timeout_s: float) -> Sandbox:
    """Open a sandbox and set it up, all within `timeout_s`. Raises SandboxError if that fails."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        async with asyncio.timeout_at(deadline) as limit:
            sandbox = await provider.open(spec)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise SandboxError(f"the sandbox did not start within {timeout_s:g} s") from error
    try:
        for command in spec.setup:
            await _set_up(sandbox, command, timeout_s=deadline - loop.time())
        if spec.setup and isinstance(sandbox, Changes):
            await sandbox.mark()
    except SandboxBroken as broken:  # by the setup: no agent was there yet
        await sandbox.aclose()
        raise SandboxError(f"the setup broke the sandbox: {broken}") from broken
    except BaseException:
        await sandbox.aclose()
        raise
    return sandbox


async def _set_up(sandbox: Sandbox, command: str, *, timeout_s: float) -> None:
    result = await sandbox.exec(["/bin/sh", "-c", command], timeout_s=max(0.0, timeout_s))
    if result.exit_code == 0:
        return
    how = "ran out of time" if result.timed_out else f"ended with {result.exit_code}"
    said = (result.stdout.text() + result.stderr.text())[-SHOWN_CHARACTERS:].strip()
    shown = command if len(command) <= SHOWN_COMMAND else f"{command[:SHOWN_COMMAND]}..."
    raise SandboxError(f"the setup command {shown!r} {how}: {said or 'no output'}")

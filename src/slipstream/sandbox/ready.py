"""Opens a sandbox that is ready for the agent: started, files written, setup commands run.

Input: a provider and a SandboxSpec. Output: a Sandbox, which the caller closes.
Invariants: if any of this fails, nothing is left open.
"""

from __future__ import annotations

import asyncio

from slipstream.errors import AgentError, SandboxError
from slipstream.sandbox.activation import check_python
from slipstream.sandbox.base import Changes, Sandbox, SandboxProvider
from slipstream.types import SandboxSpec

MAX_OUTPUT_CHARS = 2000
"""How much of a failed setup command's output an error shows."""
MAX_COMMAND_CHARS = 80


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
    except AgentError as raised:  # no agent was there yet
        raise SandboxError(f"the sandbox cannot be set up: {raised}") from raised
    try:
        await check_python(sandbox, spec)
        for command in spec.setup:
            await _set_up(sandbox, command, timeout_s=deadline - loop.time())
        if spec.setup and isinstance(sandbox, Changes):
            await sandbox.mark()
    except AgentError as raised:  # by the setup, since no agent has run yet
        await sandbox.aclose()
        raise SandboxError(f"the setup broke the sandbox: {raised}") from raised
    except BaseException:
        await sandbox.aclose()
        raise
    return sandbox


async def _set_up(sandbox: Sandbox, command: str, *, timeout_s: float) -> None:
    result = await sandbox.exec(["/bin/sh", "-c", command], timeout_s=max(0.0, timeout_s))
    if result.exit_code == 0:
        return
    how = "timed out" if result.timed_out else f"failed with exit code {result.exit_code}"
    output = (result.stdout.text() + result.stderr.text())[-MAX_OUTPUT_CHARS:].strip()
    shown = command if len(command) <= MAX_COMMAND_CHARS else f"{command[:MAX_COMMAND_CHARS]}..."
    raise SandboxError(f"the setup command {shown!r} {how}: {output or 'no output'}")

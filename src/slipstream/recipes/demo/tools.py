"""The demo's two tools: the usual ones, with the shortest descriptions, since a small model reads them every time."""

from __future__ import annotations

from slipstream.tools.base import Effect, Finish, Observation, ToolContext
from slipstream.tools.bash import Bash
from slipstream.tools.define import class_tool, tool


class _Bash:
    def __init__(self) -> None:
        self._bash = Bash()

    async def call(self, command: str, *, ctx: ToolContext) -> Observation:
        """Run a command."""
        return await self._bash.call(command, ctx=ctx)

    async def aclose(self) -> None:
        await self._bash.aclose()


bash = class_tool(_Bash, name="bash", effect=Effect.SANDBOX, timeout_s=20.0, max_output_chars=2_000)


@tool(effect=Effect.PURE, concurrent=False)
async def finish() -> Finish:
    """End."""
    return Finish()

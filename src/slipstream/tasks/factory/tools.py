"""Tools with the shortest schemas, for the lowest tier: a small model reads them in every prompt."""

from __future__ import annotations

from slipstream.errors import ToolError
from slipstream.tools.base import Effect, Finish, Observation, ToolContext
from slipstream.tools.bash import Bash
from slipstream.tools.define import class_tool, tool
from slipstream.types import File

MAX_CHARS = 2_000


class _Bash:
    def __init__(self) -> None:
        self._bash = Bash()

    async def call(self, command: str, *, ctx: ToolContext) -> Observation:
        """Run a command."""
        return await self._bash.call(command, ctx=ctx)

    async def aclose(self) -> None:
        await self._bash.aclose()


bash = class_tool(_Bash, name="bash", effect=Effect.SANDBOX, timeout_s=30.0, max_output_chars=MAX_CHARS)


@tool(effect=Effect.SANDBOX, concurrent=False, max_output_chars=MAX_CHARS)
async def replace(path: str, old: str, new: str, *, ctx: ToolContext) -> Observation:
    """Replace text that is once in a file."""
    sandbox = ctx.need_sandbox()
    text = (await sandbox.read(path)).decode("utf-8", "surrogateescape")
    num = text.count(old) if old else 0
    if num != 1:
        raise ToolError(f"the text is {num} times in {path}: give text that is in it once")
    await sandbox.write({path: File(data=text.replace(old, new).encode("utf-8", "surrogateescape"))})
    return Observation(text="done")


@tool(effect=Effect.PURE, concurrent=False)
async def finish() -> Finish:
    """End."""
    return Finish()

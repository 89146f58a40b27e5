"""The demo's two tools: the usual ones, with the shortest descriptions, since a small model reads them every time."""

from __future__ import annotations

import slipstream as ss


@ss.tool(name="bash", effect=ss.Effect.SANDBOX, timeout_s=20.0, max_output_chars=2_000)
class bash:  # noqa: N801
    def __init__(self) -> None:
        self._bash = ss.bash.fresh()

    async def call(self, command: str, *, ctx: ss.ToolContext) -> ss.Outcome:
        """Run a command."""
        return await self._bash.call({"command": command}, ctx)

    async def aclose(self) -> None:
        await self._bash.aclose()


@ss.tool(effect=ss.Effect.PURE, concurrent=False)
async def finish() -> ss.Finish:
    """End."""
    return ss.Finish()

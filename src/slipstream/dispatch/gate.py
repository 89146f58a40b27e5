"""The turn gate that admits every turn at once and counts those under way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from slipstream.seams import TurnPass
from slipstream.types import JobKey


class OpenGate:
    def __init__(self) -> None:
        self.num_turns_under_way = 0

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        self.num_turns_under_way += 1
        try:
            yield TurnPass(num_under_way=self.num_turns_under_way)
        finally:
            self.num_turns_under_way -= 1

    def room(self) -> int | None:
        return None

    def held_s(self, key: JobKey) -> float:
        return 0.0

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None: ...

    def on_room(self, callback: Callable[[], None]) -> None: ...

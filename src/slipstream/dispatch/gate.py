"""The turn gate that admits every turn, at once or in the next passes of the event loop, and counts those under way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from slipstream.aio import PerPass
from slipstream.seams import TurnPass
from slipstream.types import JobKey

MAX_TURNS_PER_PASS = 300
"""Turns that begin in one pass of the event loop; a turn takes the loop some 50 microseconds."""


class _OpenTurn(AbstractAsyncContextManager[TurnPass]):
    __slots__ = ("_gate", "_nested")

    def __init__(self, gate: OpenGate, *, nested: bool) -> None:
        self._gate = gate
        self._nested = nested

    async def __aenter__(self) -> TurnPass:
        gate = self._gate
        if not (self._nested or gate.per_pass.is_through()):
            await gate.per_pass.through()
        gate.num_turns_under_way += 1
        return TurnPass(num_under_way=gate.num_turns_under_way)

    async def __aexit__(self, *raised: object) -> None:
        self._gate.num_turns_under_way -= 1


class OpenGate:
    def __init__(self) -> None:
        self.num_turns_under_way = 0
        self.per_pass = PerPass(MAX_TURNS_PER_PASS)

    def turn(
        self, key: JobKey, num_context_tokens: int, *, nested: bool = False
    ) -> AbstractAsyncContextManager[TurnPass]:
        return _OpenTurn(self, nested=nested)

    def room(self) -> int | None:
        return None

    def held_s(self, key: JobKey) -> float:
        return 0.0

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None: ...

    def on_room(self, callback: Callable[[], None]) -> None: ...

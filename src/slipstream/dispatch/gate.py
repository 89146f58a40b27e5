"""The turn gate that admits every turn at once and counts those under way."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.seams import TurnPass
from slipstream.types import JobKey


class _OpenTurn:
    __slots__ = ("_gate",)

    def __init__(self, gate: OpenGate) -> None:
        self._gate = gate

    async def __aenter__(self) -> TurnPass:
        self._gate.num_turns_under_way += 1
        return TurnPass(num_under_way=self._gate.num_turns_under_way)

    async def __aexit__(self, *raised: object) -> None:
        self._gate.num_turns_under_way -= 1


class OpenGate:
    def __init__(self) -> None:
        self.num_turns_under_way = 0

    def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> _OpenTurn:
        return _OpenTurn(self)

    def room(self) -> int | None:
        return None

    def held_s(self, key: JobKey) -> float:
        return 0.0

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None: ...

    def on_room(self, callback: Callable[[], None]) -> None: ...

"""Turns at the gate of the run's own process, for a helper that asks the model itself: both ends of the link.

Input: turns as a dialogue asks for them in the helper. Output: each begins once the gate has let it in, and the gate is
told when it is over; nothing else of a model call passes the run's own process.
Invariants: every turn that was let in leaves the gate, also if its helper dies.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from slipstream.errors import InfrastructureError
from slipstream.link import Link, portable
from slipstream.placement.messages import KeyFields, key_fields, key_of
from slipstream.seams import TurnGate, TurnPass
from slipstream.types import JobKey


class PermitGate:
    """A TurnGate in a helper: the gate is in the run's own process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._asking: dict[int, asyncio.Future[TurnPass]] = {}

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        number, passed = next(self._numbers), None
        self._asking[number] = permit = asyncio.get_running_loop().create_future()
        self._link.tell("ask_turn", number, key_fields(key), num_context_tokens, nested)
        try:
            try:
                passed = await permit
            finally:
                del self._asking[number]
            yield passed
        finally:
            self._link.tell("end_turn", number, 0 if passed is None else passed.num_sampled)

    def let_in(self, number: int, num_under_way: int, waited_s: float) -> None:
        if (permit := self._asking.get(number)) is not None and not permit.done():
            permit.set_result(TurnPass(num_under_way=num_under_way, waited_s=waited_s))

    def refuse(self, number: int, why: BaseException) -> None:
        if (permit := self._asking.get(number)) is not None and not permit.done():
            permit.set_exception(why)


@dataclass(slots=True, kw_only=True)
class _Turn:
    over: asyncio.Future[int]
    """Once it is over, with the tokens of the reply."""
    task: asyncio.Task[None] = field(init=False)
    is_let_in: bool = False


class TurnPermits:
    """The gate's side, for one helper."""

    def __init__(self, gate: TurnGate, link: Link) -> None:
        self._gate = gate
        self._link = link
        self._turns: dict[int, _Turn] = {}

    def ask(self, number: int, key: KeyFields, num_context_tokens: int, nested: bool) -> None:
        loop = asyncio.get_running_loop()
        self._turns[number] = turn = _Turn(over=loop.create_future())
        turn.task = loop.create_task(self._hold(turn, number, key_of(key), num_context_tokens, nested))

    def end(self, number: int, num_sampled: int = 0) -> None:
        """The turn is over, or no longer wanted."""
        turn = self._turns.pop(number, None)
        if turn is None:
            return
        if turn.is_let_in:
            turn.over.set_result(num_sampled)
        else:
            turn.task.cancel()

    def close(self) -> None:
        """The helper is gone."""
        for number in tuple(self._turns):
            self.end(number)

    async def _hold(self, turn: _Turn, number: int, key: JobKey, num_context_tokens: int, nested: bool) -> None:
        try:
            async with self._gate.turn(key, num_context_tokens, nested=nested) as passed:
                turn.is_let_in = True
                self._link.tell("let_in", number, passed.num_under_way, passed.waited_s)
                passed.num_sampled = await turn.over
        except Exception as raised:  # the helper's turn fails, and no other
            self._link.tell("refuse_turn", number, portable(InfrastructureError(f"the turn gate: {raised!r}")))

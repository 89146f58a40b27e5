"""A helper process of a run: agents, tools, sandboxes and graders, away from the process that has the model.

    python -m slipstream.placement.helper FD

Input: over a link from the run's own process, attempts and the stages to run. Output: their results; meanwhile,
requests to the turn gate and the journal, which stay in the run's process, and to the model. That is there too, unless
the helper is given another socket: this leads to a model in a process of its own, and is asked directly (`turns`).
Invariants: when the link is lost all attempts end, their sandboxes are closed, and the process exits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from slipstream.aio import collect_rarely
from slipstream.link import Link, exit_after, given_ends, own_end
from slipstream.model.base import ChatReply
from slipstream.model.direct import DirectClient
from slipstream.names import load_object
from slipstream.placement.inprocess import InProcess
from slipstream.placement.journal import RemoteJournal
from slipstream.placement.messages import AskedTurn, AttemptSpec, span_fields
from slipstream.placement.turns import PermitGate
from slipstream.printable import log_printable
from slipstream.rollout.attempt import RolloutAttempt
from slipstream.seams import TurnPass
from slipstream.types import (
    Ending,
    EndReason,
    EngineLoad,
    Job,
    JobKey,
    Message,
    Rollout,
    Sampled,
    SampleParams,
    ToolSpec,
)

logger = logging.getLogger(__name__)

NICENESS = 12
"""Of a helper and its sandboxes: when cores are scarce, engine and learner come first, as everything waits for them."""
GRACE_S = 10.0
"""How long attempts may take to end when the run's own process is gone."""
EXIT_AFTER_S = 25.0
"""After which this process ends, whatever hangs in it."""
_SO_FAR = Ending(reason=EndReason.INFRASTRUCTURE)


class RemoteModel:
    """The model in the run's own process, as a Completer and as a ChatModel: the settings say which it is."""

    def __init__(self, link: Link) -> None:
        """`link` leads to the model and the gate: a turn is asked for in the same message."""
        self._link = link

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        named = {"session": session, "priority": priority, "cache_salt": cache_salt, "timeout_s": timeout_s}
        sampled: Sampled = await self._ask("complete", (prompt_ids, params), named)
        return sampled

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        named = {"session": session, "timeout_s": timeout_s}
        reply: ChatReply = await self._ask("chat", (tuple(messages), tuple(tools), params), named)
        return reply

    async def _ask(self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        turn = _turn.get()
        answer, passed = await self._link.call("ask", None if turn is None else turn.asked, method, arguments, named)
        if turn is not None:
            turn.let_in(passed)
        return answer

    def end_session(self, session: str) -> None:
        self._link.tell("end_session", session)

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A turn that its model call will ask for."""

    asked: AskedTurn
    passed: TurnPass

    def let_in(self, passed: TurnPass) -> None:
        self.passed.num_under_way, self.passed.waited_s = passed.num_under_way, passed.waited_s


_turn: ContextVar[_Turn | None] = ContextVar("the turn of a model call", default=None)


class RemoteGate:
    """The gate in the run's own process. Entering it sends nothing: the model call asks for the turn, and ends it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._turns: dict[int, _Turn] = {}

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        asked = AskedTurn(number=next(self._numbers), key=key, num_context_tokens=num_context_tokens, nested=nested)
        self._turns[asked.number] = turn = _Turn(asked=asked, passed=TurnPass(num_under_way=0, waited_s=inf))
        _turn.set(turn)
        try:
            yield turn.passed
        finally:
            _turn.set(None)
            del self._turns[asked.number]

    def let_in(self, number: int, passed: TurnPass) -> None:
        """For a turn whose model call failed; the answers of others say it themselves."""
        if (turn := self._turns.get(number)) is not None:
            turn.let_in(passed)


class Helper:
    """The helper's end of the link."""

    def __init__(self, model_end: socket.socket | None) -> None:
        """`model_end` leads to a model in a process of its own."""
        stages = {name: self._stage(name) for name in ("init", "run", "release", "grade", "aclose")}
        tells: dict[str, Callable[..., None]] = {"expect": self._expect, "forget": self._forget}
        self.link = Link(calls={"open": self._open_deps, **stages}, tells=tells, peer="the run's own process")
        self._journal = RemoteJournal(self.link)
        tells |= {"durable": self._journal.durable, "refuse_events": self._journal.refuse}
        self._model_end = model_end
        self._gate: RemoteGate | PermitGate
        if model_end is None:
            self._model: RemoteModel | DirectClient = RemoteModel(self.link)
            self._gate = RemoteGate()
        else:
            self._model = DirectClient()
            self._gate = permits = PermitGate(self.link)
            tells["refuse_turn"] = permits.refuse
        tells["let_in"] = self._gate.let_in
        self._stack = AsyncExitStack()
        self._placement: InProcess | None = None
        self._attempts: dict[int, RolloutAttempt] = {}
        self._num_spans_sent: dict[int, int] = {}
        """How many spans of an attempt the other process has."""

    async def _open_deps(self, opener: str, work: Any) -> None:
        """`opener` names a function of the work, the model, the gate and the journal that opens what the attempts
        share, and the tasks they are of."""
        opens: Any = load_object(opener, "what opens a helper")
        opened = opens(work, model=self._model, gate=self._gate, journal=self._journal)
        self._placement = InProcess(*await self._stack.enter_async_context(opened))

    def _open(self, number: int, opening: AttemptSpec) -> None:
        assert self._placement is not None, "`open` is called first"
        self._attempts[number] = self._placement.open(opening.job, opening.number, opening.past)
        self._num_spans_sent[number] = 0

    def _expect(self, job: Job) -> None:
        if self._placement is not None:
            self._placement.expect(job)

    def _forget(self, number: int) -> None:
        self._attempts.pop(number, None)
        self._num_spans_sent.pop(number, None)

    def _stage(self, name: str) -> Any:
        async def work(number: int, opening: AttemptSpec | None) -> Rollout | None:
            if opening is not None and number not in self._attempts:
                self._open(number, opening)
            if name == "aclose" and number not in self._attempts:
                return None  # its first stage was cancelled before it began
            attempt = self._attempts[number]
            try:
                result = await getattr(attempt, name)()
                # Turns were sent as they were taken, and spans are sent now.
                return replace(result, turns=(), spans=()) if isinstance(result, Rollout) else None
            finally:
                spans = attempt.as_ended(_SO_FAR).spans
                num_sent = self._num_spans_sent.get(number, len(spans))
                if len(spans) > num_sent or name == "run":
                    self.link.tell("so_far", number, span_fields(spans[num_sent:]), attempt.grade_weight)
                    self._num_spans_sent[number] = len(spans)

        return work

    async def serve(self, own: socket.socket) -> None:
        """Until the link is lost. Attempts that ignore their cancellation are abandoned."""
        if self._model_end is not None and isinstance(self._model, DirectClient):
            await self._model.connect(self._model_end)
        await self.link.connect(own)
        await self.link.over(grace_s=GRACE_S)
        await self._stack.aclose()


def main() -> None:
    log_printable()
    collect_rarely()
    os.nice(NICENESS)
    own = own_end(sys.argv)
    given = given_ends(sys.argv)
    threading.Thread(target=exit_after, args=(own.fileno(), EXIT_AFTER_S), daemon=True).start()
    asyncio.run(_serve(own, given[0] if given else None))


async def _serve(own: socket.socket, model_end: socket.socket | None) -> None:
    try:
        await Helper(model_end).serve(own)
    except Exception:
        logger.exception("a helper process could not close all it had")
    finally:
        sys.stderr.flush()
        os._exit(0)  # asyncio would wait for what ignores its cancellation


if __name__ == "__main__":
    main()

"""Attempts in helper processes on this machine, so that none waits for another's Python, nor the engine's or the
learner's for theirs.

Input: how many processes, and what each opens. Output: attempts, each in the process that has the fewest, of those with
room for its sandbox. The turn gate and the journal stay in this process, and so does the model unless it has one of its
own, which helpers then ask themselves (`model.process`): helpers send requests (`helper`).
Invariants: what a helper does is in this journal before it continues, and in the same order. A helper that dies fails
only the stages under way in it: another takes its place as soon as one can be started, and a run that had ended is
graded there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from slipstream.aio import outlast
from slipstream.errors import GraderError, InfrastructureError
from slipstream.link import Link, start_linked, wait_or_kill
from slipstream.model.base import ChatModel, ChatReply, Completer, Connectable, SessionKeeper
from slipstream.placement.journal import HelpersJournal
from slipstream.placement.messages import AskedTurn, AttemptSpec, Fields, spans_of
from slipstream.placement.restarts import Restarts
from slipstream.placement.turns import TurnPermits
from slipstream.seams import Event, Journal, PastAttempt, RunEnded, TurnGate, TurnPass, TurnTaken
from slipstream.types import Ending, Job, JobKey, Rollout, Sampled, Span, Turn

T = TypeVar("T")
logger = logging.getLogger(__name__)

CLOSE_S = 30.0
"""How long a helper may take to close before it is killed."""

Launch: TypeAlias = Callable[[str, Link, Sequence[socket.socket]], Awaitable[subprocess.Popen[bytes]]]
"""Runs a module as a process, with a link to it and other sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSpec:
    """What each helper process opens what its attempts share from (see `helper`)."""

    opener: str
    """The name of a function of the work, the model, the gate and the journal."""
    works: tuple[Any, ...]
    """What to give it, for each process."""
    max_sandboxes: tuple[int | None, ...] = ()
    """How many each process may have at once; None is no limit, and so is an empty tuple."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Helper:
    place: int
    """Its index among the processes."""
    room: int | None
    link: Link = field(init=False)
    permits: TurnPermits = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)
    attempts: dict[int, RemoteAttempt] = field(default_factory=dict)
    num_held: int = 0
    """Sandboxes that its attempts have, or are about to open."""

    def has_room(self, num: int) -> bool:
        """For `num` more sandboxes."""
        return self.room is None or num == 0 or self.num_held + num <= self.room


class Processes:
    """A Placement. Open it with `open_processes`; `journal` is set before the first attempt."""

    def __init__(
        self,
        spec: HelperSpec,
        *,
        model: Completer | ChatModel,
        gate: TurnGate,
        grade_weight: Callable[[Job, RunEnded], int],
        launch: Launch = start_linked,
    ) -> None:
        self.num_lost = 0
        """Helpers that died."""
        self._spec = spec
        self._model = model
        self._gate = gate
        self._grade_weight = grade_weight
        self._launch = launch
        self._helpers: list[_Helper] = []
        self._coming: set[_Helper] = set()
        """Helpers that are opening what their attempts share."""
        self._starting: set[asyncio.Task[_Helper]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._numbers = itertools.count()
        self._attempts: dict[tuple[JobKey, int], RemoteAttempt] = {}
        self._expected = itertools.count()
        self._restarts = Restarts(len(spec.works))
        self._journaling = HelpersJournal(self._see)
        self._is_open = False
        """From when all have started until they are closed: those that die meanwhile are replaced."""

    @property
    def journal(self) -> Journal | None:
        return self._journaling.journal

    @journal.setter
    def journal(self, journal: Journal) -> None:
        self._journaling.journal = journal

    # ---------------------------------------------------------------- the Placement

    def expect(self, job: Job) -> None:
        if self._helpers:
            self._helpers[next(self._expected) % len(self._helpers)].link.tell("expect", job)

    def open(self, job: Job, number: int, past: PastAttempt | None) -> RemoteAttempt:
        ended = None if past is None else past.run_ended
        return RemoteAttempt(
            self, job, number, past, grade_weight=0 if ended is None else self._grade_weight(job, ended)
        )

    # ---------------------------------------------------------------- attempts and their places

    async def place(self, attempt: RemoteAttempt) -> tuple[_Helper, int]:
        """Choose a helper for an attempt: one with room for its sandbox, and of these the one with the fewest attempts.
        Waits while there is no helper, unless starting one is hopeless."""
        while not self._helpers:
            if (wrong := self._restarts.hopeless()) is not None:
                raise InfrastructureError(wrong)
            if not self._starting:
                raise InfrastructureError("the helper processes are closed")
            self._changed.clear()
            await self._changed.wait()
        num = attempt.num_held
        helper = min(self._helpers, key=lambda each: (not each.has_room(num), len(each.attempts)))
        number = next(self._numbers)
        helper.attempts[number] = attempt
        helper.num_held += num
        self._attempts[attempt.job.key, attempt.number] = attempt
        return helper, number

    def has_room(self, num: int) -> bool:
        """Whether any has."""
        return any(helper.has_room(num) for helper in self._helpers)

    def forget(self, helper: _Helper, number: int) -> None:
        attempt = helper.attempts.pop(number, None)
        helper.link.tell("forget", number)
        if attempt is not None:
            helper.num_held -= attempt.num_held
            self._attempts.pop((attempt.job.key, attempt.number), None)

    # ---------------------------------------------------------------- helpers

    async def start(self) -> None:
        """All of them, side by side. Raises what any of them raises."""
        starts = [self._start_soon(place) for place in range(len(self._spec.works))]
        await asyncio.wait(starts)
        failed = [raised for start in starts if (raised := start.exception()) is not None]
        if failed:
            raise failed[0]
        self._is_open = True
        for place in set(range(len(starts))) - {helper.place for helper in self._helpers}:
            self._replace(place)  # it died before the others had started

    def _start_soon(self, place: int, pause_s: float = 0.0) -> asyncio.Task[_Helper]:
        task = asyncio.create_task(self._start(place, pause_s), name=f"starting helper process {place}")
        self._starting.add(task)
        task.add_done_callback(lambda task: self._started(task, place))
        return task

    async def _start(self, place: int, pause_s: float) -> _Helper:
        await asyncio.sleep(pause_s)
        helper = _Helper(place=place, room=self._spec.max_sandboxes[place] if self._spec.max_sandboxes else None)
        helper.link = Link(
            calls=self._calls(helper),
            tells=self._tells(helper),
            on_lost=lambda: self._lost(helper),
            peer=f"helper process {place}",
        )
        helper.permits = TurnPermits(self._gate, helper.link)
        with ExitStack() as given:
            ends = [given.enter_context(self._model.connect_another())] if isinstance(self._model, Connectable) else []
            helper.process = await self._launch("slipstream.placement.helper", helper.link, ends)
        self._coming.add(helper)
        try:
            await helper.link.call("open", self._spec.opener, self._spec.works[place])
        except BaseException:
            helper.link.close()
            await wait_or_kill(helper.process, CLOSE_S)
            raise
        finally:
            self._coming.discard(helper)
        self._helpers.append(helper)
        if helper.link.is_lost:  # since it answered
            self._lost(helper)
        return helper

    def _started(self, task: asyncio.Task[_Helper], place: int) -> None:
        self._starting.discard(task)
        if self._is_open and not task.cancelled() and (raised := task.exception()) is not None:
            logger.warning("a helper process did not start: %s", raised)
            self._replace(place, raised)
        self._changed.set()

    def _replace(self, place: int, raised: BaseException | None = None) -> None:
        self._start_soon(place, self._restarts.pause_s(place, raised))

    def _lost(self, helper: _Helper) -> None:
        helper.permits.close()
        self._journaling.forget(helper.link)
        if helper not in self._helpers:  # it never came up, which its start reports
            return
        self._helpers.remove(helper)
        leaving = asyncio.create_task(wait_or_kill(helper.process, CLOSE_S))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if self._is_open:
            self.num_lost += 1
            logger.warning("helper process %d is gone, with %d attempts", helper.process.pid, len(helper.attempts))
            self._replace(helper.place)

    async def aclose(self) -> None:
        """Close all of them, and wait until they are gone."""
        self._is_open = False
        await outlast([asyncio.create_task(self._close_all())])

    async def _close_all(self) -> None:
        helpers = list(self._helpers)
        for helper in (*helpers, *self._coming):
            helper.link.close()
        for start in self._starting:
            start.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(helper.link.over(grace_s=CLOSE_S) for helper in helpers))
        await asyncio.gather(*self._leaving)
        await self._journaling.aclose()

    # ---------------------------------------------------------------- requests from helpers

    def _calls(self, helper: _Helper) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        model: Any = self._model

        async def ask(
            turn: AskedTurn | None, method: str, arguments: Sequence[Any], named: Mapping[str, Any]
        ) -> tuple[Any, TurnPass | None]:
            """The model's answer, inside the gate if a turn is asked for with it."""
            if turn is None:
                return await getattr(model, method)(*arguments, **named), None
            passed = None
            try:
                async with self._gate.turn(turn.key, turn.num_context_tokens, nested=turn.nested) as passed:
                    answer = await getattr(model, method)(*arguments, **named)
                    passed.num_sampled = _num_sampled(answer)
                    return answer, passed
            except BaseException:
                if passed is not None:
                    helper.link.tell("let_in", turn.number, passed)
                raise

        return {"ask": ask}

    def _tells(self, helper: _Helper) -> Mapping[str, Callable[..., None]]:
        def so_far(number: int, spans: Sequence[Fields], grade_weight: int) -> None:
            if (attempt := helper.attempts.get(number)) is not None:
                attempt.learn(spans_of(spans), grade_weight)

        def end_session(session: str) -> None:
            if isinstance(self._model, SessionKeeper):
                self._model.end_session(session)

        def worked(append: Callable[[Link, T], None], written: T) -> None:
            self._restarts.worked(helper.place)
            append(helper.link, written)

        return {
            "append": partial(worked, self._journaling.append),
            "append_turn": partial(worked, self._journaling.append_turn),
            "so_far": so_far,
            "end_session": end_session,
            "ask_turn": lambda *asked: helper.permits.ask(*asked),
            "end_turn": lambda *over: helper.permits.end(*over),
        }

    def _see(self, event: Event) -> None:
        if isinstance(event, TurnTaken | RunEnded):
            attempt = self._attempts.get((event.key, event.attempt))
            if attempt is not None:
                attempt.see(event)


class RemoteAttempt:
    """An attempt in a helper process, which is chosen at its first stage."""

    def __init__(
        self, processes: Processes, job: Job, number: int, past: PastAttempt | None, *, grade_weight: int
    ) -> None:
        self.job = job
        self.number = number
        self.grade_weight = grade_weight
        self.num_held = 0
        """Sandboxes that it has, or is about to have."""
        self._processes = processes
        self._past = past
        self._ended = None if past is None else past.run_ended
        self._turns: list[Turn] = [] if past is None or past.run_ended is None else list(past.turns)
        self._spans: list[Span] = []
        self._place: tuple[_Helper, int] | None = None
        self._is_released = False
        """Whether there is nothing left to close there."""
        self._to_open: AttemptSpec | None = None
        """What the helper opens it from, until a stage has ended there: a cancelled one may not have begun."""

    async def init(self) -> None:
        self._hold(self.job.weight)
        await self._find_place(self._past)
        await self._do("init")

    async def run(self) -> None:
        if self._past is not None:
            self._turns = list(self._past.turns)
        await self._do("run")

    async def release(self) -> None:
        try:
            if self._has_place:
                await self._do("release")
                self._is_released = True
        finally:
            self._hold(0)

    async def grade(self) -> Rollout:
        if self._ended is None:
            raise GraderError("there is nothing to grade: the agent's run did not end")
        weight = self.grade_weight
        if self._place is not None and not self._place[0].has_room(weight) and self._processes.has_room(weight):
            await self.aclose()  # others came meanwhile, and it would wait for their sandboxes
        self._hold(weight)
        try:
            if not self._has_place:
                past = PastAttempt(attempt=self.number, turns=tuple(self._turns), run_ended=self._ended)
                await self._find_place(past)
            graded = await self._do("grade")
        finally:
            self._hold(0)
        assert isinstance(graded, Rollout), "that is what grading gives"
        return replace(graded, turns=tuple(self._turns), spans=tuple(self._spans))

    def as_ended(self, ending: Ending) -> Rollout:
        return Rollout(
            job=self.job, attempt=self.number, ending=ending, turns=tuple(self._turns), spans=tuple(self._spans)
        )

    async def aclose(self) -> None:
        place, alive, self._place = self._place, self._has_place, None
        if place is None:
            return
        helper, number = place
        try:
            if alive and not self._is_released:
                await helper.link.call("aclose", number, None)
        finally:
            self._processes.forget(helper, number)

    def see(self, event: TurnTaken | RunEnded) -> None:
        """The helper wrote this into the journal."""
        if isinstance(event, RunEnded):
            self._ended = event
        else:
            self._turns.append(event.turn)

    def learn(self, spans: Sequence[Span], grade_weight: int) -> None:
        self._spans += spans
        self.grade_weight = grade_weight

    def _hold(self, num: int) -> None:
        if self._place is not None:
            self._place[0].num_held += num - self.num_held
        self.num_held = num

    @property
    def _has_place(self) -> bool:
        return self._place is not None and not self._place[0].link.is_lost

    async def _find_place(self, past: PastAttempt | None) -> None:
        self._place = await self._processes.place(self)
        self._is_released = False
        self._to_open = AttemptSpec(job=self.job, number=self.number, past=past)

    async def _do(self, stage: str) -> Rollout | None:
        if self._place is None:
            raise InfrastructureError(f"{stage} of an attempt that has no place")
        helper, number = self._place
        result: Rollout | None = await helper.link.call(stage, number, self._to_open)
        self._to_open = None
        return result


def _num_sampled(answer: Sampled | ChatReply) -> int:
    return answer.num_sampled_tokens if isinstance(answer, ChatReply) else len(answer.ids)


@asynccontextmanager
async def open_processes(
    spec: HelperSpec,
    *,
    model: Completer | ChatModel,
    gate: TurnGate,
    grade_weight: Callable[[Job, RunEnded], int],
    launch: Launch = start_linked,
) -> AsyncIterator[Processes]:
    """`grade_weight`: what `Attempt.grade_weight` is once the agent's run has ended."""
    processes = Processes(spec, model=model, gate=gate, grade_weight=grade_weight, launch=launch)
    try:
        await processes.start()
        yield processes
    finally:
        await processes.aclose()

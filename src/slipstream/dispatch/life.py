"""The life of one job: its attempts, their three stages, and what is left when they fail.

Enters: a job. Leaves: exactly one rollout; or a cancellation, after which nothing of the job is alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from slipstream.aio import outlast
from slipstream.dispatch.admission import Admission
from slipstream.dispatch.base import Attempt, Deadlines, Placement, Retries, Stage
from slipstream.dispatch.stage import StageDeadline, StageRunner
from slipstream.errors import InfrastructureError, JournalError
from slipstream.types import Ending, EndReason, Failure, Job, Rollout, Span, SpanKind, Turn

T = TypeVar("T")

logger = logging.getLogger(__name__)

_WAIT = {Stage.INIT: SpanKind.WAIT_INIT, Stage.RUN: SpanKind.WAIT_RUN, Stage.GRADE: SpanKind.WAIT_GRADE}
_WORK = {Stage.INIT: SpanKind.INIT, Stage.RUN: SpanKind.RUN, Stage.GRADE: SpanKind.GRADE}


class _Failed(Exception):
    """One attempt, or one grading, failed for a reason that is not the agent's."""

    def __init__(self, *, reason: EndReason, again: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        """Whether trying again may help."""


class Life:
    """Drives one job. Made anew for each."""

    def __init__(
        self,
        job: Job,
        *,
        placement: Placement,
        admission: Admission,
        stages: StageRunner,
        deadlines: Deadlines,
        retries: Retries,
        first_number: int = 1,
        past_turns: Sequence[Turn] = (),
    ) -> None:
        self._job = job
        self._placement = placement
        self._admission = admission
        self._stages = stages
        self._deadlines = deadlines
        self._retries = retries
        self._number = first_number
        self._past_turns = past_turns
        self._spans: list[Span] = []
        self._failures: list[Failure] = []
        self._ends_at_s: float | None = None
        self._attempt_now: Attempt | None = None
        self._loop = asyncio.get_running_loop()

    async def live(self) -> Rollout:
        """The job's one rollout."""
        last = self._number + self._retries.attempts - 1
        while True:
            rollout, again = await self._attempt()
            if not again or self._number >= last or self._time_left() <= 0:
                break
            self._number += 1
            self._past_turns = ()
        spans = sorted((*self._spans, *rollout.spans), key=lambda span: span.start_s)
        return replace(rollout, spans=tuple(spans), failures=tuple(self._failures))

    def nothing(self, ending: Ending) -> Rollout:
        """The rollout of a job that never got as far as an attempt."""
        return Rollout(job=self._job, attempt=self._number, ending=ending, failures=tuple(self._failures))

    async def _attempt(self) -> tuple[Rollout, bool]:
        """One attempt: its rollout, and whether another one may be worth it."""
        try:
            await self._enter(Stage.INIT, weight=self._job.weight)
        except _Failed as failed:
            return self._as_failed(failed), False
        if self._ends_at_s is None:
            self._ends_at_s = self._loop.time() + self._deadlines.job_s
        try:
            try:
                attempt = await self._init_and_run()
            finally:
                self._admission.give_back(self._job.weight)
            return await self._grade(attempt), False
        except _Failed as failed:
            return self._as_failed(failed), failed.again
        finally:
            self._admission.end_attempt()
            if self._attempt_now is not None:
                await self._tidy(self._attempt_now.aclose(), "close")
            self._attempt_now = None

    def _as_failed(self, failed: _Failed) -> Rollout:
        ending = Ending(reason=failed.reason, detail=self._failures[-1].message)
        return self.nothing(ending) if self._attempt_now is None else self._attempt_now.as_ended(ending)

    async def _init_and_run(self) -> Attempt:
        """Both stages that hold the agent's sandbox; it is closed when this returns or raises."""
        try:
            async with self._inside(Stage.INIT):
                self._attempt_now = attempt = self._open()
                await self._stage(Stage.INIT, attempt.init(), self._deadlines.init_s, again_after_deadline=True)
            await self._enter(Stage.RUN)
            async with self._inside(Stage.RUN):
                await self._stage(Stage.RUN, attempt.run(), self._deadlines.run_s, again_after_deadline=False)
            self._admission.ran(self._job, self._spans[-1].seconds)
            return attempt
        finally:
            if self._attempt_now is not None:
                start_s = self._loop.time()
                await self._tidy(self._attempt_now.release(), "release")
                self._span(SpanKind.RELEASE, start_s)

    async def _grade(self, attempt: Attempt) -> Rollout:
        for number in range(1, self._retries.grades + 1):
            weight = attempt.grade_weight
            await self._enter(Stage.GRADE, weight=weight)
            try:
                async with self._inside(Stage.GRADE):
                    return await self._stage(
                        Stage.GRADE, attempt.grade(), self._deadlines.grade_s, again_after_deadline=True
                    )
            except _Failed as failed:
                if not failed.again or number == self._retries.grades:
                    raise _Failed(reason=EndReason.NO_VERDICT, again=False) from failed
            finally:
                self._admission.give_back(weight)
        raise AssertionError("unreachable: at least one grading is tried")

    def _open(self) -> Attempt:
        try:
            return self._placement.open(self._job, self._number, self._past_turns)
        except Exception as raised:
            raise self._failed(Stage.INIT, raised, again=True) from raised

    async def _stage(
        self, stage: Stage, work: Coroutine[Any, Any, T], deadline_s: float, *, again_after_deadline: bool
    ) -> T:
        """Run one stage under its deadline and the job's. The one broad except of the dispatcher is here."""
        start_s = self._loop.time()
        try:
            return await self._stages.run(
                work, timeout_s=min(deadline_s, self._time_left()), name=f"{stage} of {self._job.key}"
            )
        except JournalError:
            raise
        except StageDeadline as raised:
            raise self._failed(stage, raised, again=again_after_deadline, reason=EndReason.DEADLINE) from raised
        except Exception as raised:
            raise self._failed(stage, raised, again=True) from raised
        finally:
            self._span(_WORK[stage], start_s)

    async def _tidy(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Clean-up: bounded, never the reason for a failure, and carried out even while being cancelled."""
        await outlast([asyncio.create_task(self._tidied(work, what))])

    async def _tidied(self, work: Coroutine[Any, Any, None], what: str) -> None:
        try:
            await self._stages.run(work, timeout_s=self._deadlines.release_s, name=f"{what} of {self._job.key}")
        except Exception as raised:
            logger.warning("%s of %s failed: %r", what, self._job.key, raised)

    async def _enter(self, stage: Stage, *, weight: int = 0) -> None:
        start_s = self._loop.time()
        left_s = None if self._ends_at_s is None else self._time_left()
        try:
            async with asyncio.timeout(left_s):
                await self._admission.enter(stage, self._job, weight=weight)
        except TimeoutError as raised:
            message = InfrastructureError(f"waited for a place in {stage} until the job's deadline")
            raise self._failed(stage, message, again=False, reason=EndReason.WAITED) from raised
        finally:
            self._span(_WAIT[stage], start_s)

    @asynccontextmanager
    async def _inside(self, stage: Stage) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._admission.leave(stage)

    def _failed(
        self, stage: Stage, raised: Exception, *, again: bool, reason: EndReason = EndReason.INFRASTRUCTURE
    ) -> _Failed:
        self._failures.append(
            Failure(attempt=self._number, stage=stage.value, error=type(raised).__name__, message=str(raised))
        )
        return _Failed(reason=reason, again=again)

    def _time_left(self) -> float:
        return float("inf") if self._ends_at_s is None else self._ends_at_s - self._loop.time()

    def _span(self, kind: SpanKind, start_s: float) -> None:
        self._spans.append(Span(kind=kind, start_s=start_s, end_s=self._loop.time(), attempt=self._number))

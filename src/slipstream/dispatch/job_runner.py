"""The life of one job: its attempts, their three stages, and what is left when they fail.

Enters: a job. Leaves: exactly one rollout; or a cancellation, after which nothing of the job is alive. `stop` ends a
life from outside, and a rollout comes out all the same. Whatever a placement or an attempt raises, wherever it is
called, is that attempt's failure alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from slipstream.aio import outlast
from slipstream.dispatch.admission import Admission, need_of
from slipstream.dispatch.base import Attempt, Deadlines, Placement, Retries, Stage
from slipstream.dispatch.common_failure import Alike
from slipstream.dispatch.stage import StageAbandoned, StageDeadline, StageRunner
from slipstream.errors import GraderError, InfrastructureError, JournalError, ReplayError
from slipstream.seams import PastAttempt
from slipstream.types import Ending, EndReason, Failure, Job, Rollout, Span, SpanKind

T = TypeVar("T")

logger = logging.getLogger(__name__)

_WAIT = {Stage.INIT: SpanKind.WAIT_INIT, Stage.RUN: SpanKind.WAIT_RUN, Stage.GRADE: SpanKind.WAIT_GRADE}
_NO_COUNTS: Mapping[str, int] = {}
_WORK = {Stage.INIT: SpanKind.INIT, Stage.RUN: SpanKind.RUN, Stage.GRADE: SpanKind.GRADE}


class _Failed(Exception):
    """One attempt, or one grading, failed for a reason that is not the agent's."""

    def __init__(self, *, reason: EndReason, again: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        """Whether trying again may help."""
        self.abandoned = False
        """Whether it may still be at work."""


class JobRunner:
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
        alike: Alike,
        past: PastAttempt | None = None,
    ) -> None:
        """`past`: in a resumed run, the attempt that goes on."""
        self._job = job
        self._placement = placement
        self._admission = admission
        self._stages = stages
        self._deadlines = deadlines
        self._retries = retries
        self._alike = alike
        self._past = past if past is not None and past.attempt else None
        self._number = 1 if self._past is None else self._past.attempt
        self._last = self._number + retries.attempts - 1
        self._spans: list[Span] = []
        self._failures: list[Failure] = []
        self._ends_at_s: float | None = None
        self._attempt_now: Attempt | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        """The one that `live` runs in, while it does."""
        self._is_over = False
        self._stopped: Ending | None = None
        self._last_words: Rollout | None = None
        """What comes out if the job is stopped now. One that has come to its own end, and is being closed, keeps it."""

    async def live(self) -> Rollout:
        """The job's one rollout."""
        before = self._stopped
        if before is not None:
            return self.nothing(before)
        self._task = task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            return await self._tries()
        except asyncio.CancelledError:
            if self._stopped is None or task.uncancel() > 0:
                raise
            return self._told(self._last_words) if self._last_words else self.nothing(self._stopped)
        finally:
            self._is_over, self._task = True, None

    def stop(self, ending: Ending) -> None:
        """End the job: `live` cleans up and returns what there is, with this ending. Too late, it changes nothing."""
        if self._is_over or self._stopped is not None:
            return
        self._stopped = ending
        if self._task is not None:
            self._task.cancel()

    async def _tries(self) -> Rollout:
        while True:
            rollout, again = await self._attempt()
            if not self._goes_on(again):
                break
            self._spans += rollout.spans
            self._number += 1
            self._past = None
        return self._told(rollout)

    def _goes_on(self, again: bool) -> bool:
        return again and self._number < self._last and self._time_left() > 0

    def _told(self, rollout: Rollout) -> Rollout:
        """The last attempt's rollout, with what is known of all of them."""
        self._spans += rollout.spans
        return replace(rollout, spans=self._spans_in_order(), failures=tuple(self._failures))

    def nothing(self, ending: Ending) -> Rollout:
        """The rollout of a job of which no attempt is left, with all that is known of it."""
        return Rollout(
            job=self._job,
            attempt=self._number,
            ending=ending,
            spans=self._spans_in_order(),
            failures=tuple(self._failures),
        )

    async def _attempt(self) -> tuple[Rollout, bool]:
        """One attempt: its rollout, and whether another one may be worth it.

        Where the agent's part is on record nothing is left but grading, which needs no place in another stage."""
        only_grade = self._past is not None and self._past.run_ended is not None
        try:
            if not only_grade:
                await self._enter(Stage.INIT, weight=self._job.weight)
        except _Failed as failed:
            return self._as_failed(failed), False
        if self._ends_at_s is None:
            self._ends_at_s = self._loop.time() + self._deadlines.job_s
        try:
            if only_grade:
                self._attempt_now = attempt = self._open()
            else:
                try:
                    attempt = await self._init_and_run()
                finally:
                    self._admission.give_back(need_of(self._job, self._job.weight))
            self._last_words = graded = await self._grade(attempt)
            return graded, False
        except _Failed as failed:
            rollout = self._as_failed(failed)
            if not self._goes_on(failed.again):
                self._last_words = rollout
            return rollout, failed.again
        except asyncio.CancelledError:
            if self._stopped is not None:
                self._last_words = self._as_ended(self._stopped)
            raise
        finally:
            if not only_grade:
                self._admission.end_attempt()
            if self._attempt_now is not None:
                await self._tidy("close", self._attempt_now.aclose)
            self._attempt_now = None

    def _as_failed(self, failed: _Failed) -> Rollout:
        return self._as_ended(Ending(reason=failed.reason, detail=self._failures[-1].message))

    def _as_ended(self, ending: Ending) -> Rollout:
        """What there is of the attempt; of one that cannot even say that, nothing."""
        bare = Rollout(job=self._job, attempt=self._number, ending=ending)
        if self._attempt_now is None:
            return bare
        try:
            rollout = _called(partial(self._attempt_now.as_ended, ending))
            return rollout if self._is_own(rollout) and rollout.ending == ending else bare
        except Exception as raised:
            logger.warning("what there is of %s is lost: %r", self._job.key, raised)
            return bare

    def _is_own(self, rollout: object) -> bool:
        return isinstance(rollout, Rollout) and rollout.job == self._job and rollout.attempt == self._number

    async def _init_and_run(self) -> Attempt:
        """Both stages that hold the agent's sandbox; it is closed when this returns or raises."""
        try:
            async with self._inside(Stage.INIT):
                self._attempt_now = attempt = self._open()
                await self._stage(Stage.INIT, attempt.init, self._deadlines.init_s, again_after_deadline=True)
            await self._enter(Stage.RUN)
            async with self._inside(Stage.RUN):
                try:
                    await self._stage(Stage.RUN, attempt.run, self._deadlines.run_s, again_after_deadline=False)
                finally:
                    left_behind = self._stages.has_left_behind(self._name(Stage.RUN))
                    self._admission.run_over(self._job.key, left_behind=left_behind)
            if self._past is None:  # otherwise it was not the whole run
                self._admission.ran(self._job, self._spans[-1].seconds)
            return attempt
        finally:
            if self._attempt_now is not None:
                await self._release(self._attempt_now)

    async def _release(self, attempt: Attempt) -> None:
        """Close the agent's sandbox. If that fails all of the attempt is closed: its place is given back next."""
        start_s = self._loop.time()
        try:
            await self._tidy("release", attempt.release, otherwise=attempt.aclose)
        finally:
            self._span(SpanKind.RELEASE, start_s)

    async def _grade(self, attempt: Attempt) -> Rollout:
        for number in range(1, self._retries.grades + 1):
            weight = self._grade_weight(attempt)
            await self._enter(Stage.GRADE, weight=weight)
            try:
                async with self._inside(Stage.GRADE):
                    return await self._stage(
                        Stage.GRADE,
                        lambda: self._graded(attempt),
                        self._deadlines.grade_s,
                        again_after_deadline=True,
                        counts={"try": number, "sandboxes": weight},
                    )
            except _Failed as failed:
                if failed.abandoned:
                    await self._tidy("close", attempt.aclose)  # before its place is given back
                if not failed.again or number == self._retries.grades or self._time_left() <= 0:
                    raise _Failed(reason=EndReason.NO_VERDICT, again=False) from failed
            except asyncio.CancelledError:
                await self._tidy("close", attempt.aclose)
                raise
            finally:
                self._admission.give_back(need_of(self._job, weight))
        raise AssertionError("unreachable: at least one grading is tried")

    def _grade_weight(self, attempt: Attempt) -> int:
        try:
            weight = _called(lambda: attempt.grade_weight)
            self._admission.check_need(f"the grader of {self._job.key}", need_of(self._job, weight))
            return weight
        except Exception as raised:  # one too heavy would wait for ever, and nobody would start meanwhile
            raise self._failed(Stage.GRADE, raised, again=False, reason=EndReason.NO_VERDICT) from raised

    async def _graded(self, attempt: Attempt) -> Rollout:
        rollout = await attempt.grade()
        if not self._is_own(rollout):
            raise GraderError(f"grading gave no rollout of attempt {self._number} of {self._job.key}")
        return rollout

    def _open(self) -> Attempt:
        try:
            return _called(lambda: self._placement.open(self._job, self._number, self._past))
        except Exception as raised:
            raise self._failed(Stage.INIT, raised, again=True) from raised

    async def _stage(
        self,
        stage: Stage,
        work: Callable[[], Awaitable[T]],
        deadline_s: float,
        *,
        again_after_deadline: bool,
        counts: Mapping[str, int] = _NO_COUNTS,
    ) -> T:
        """Run one stage under its deadline and the job's. The one broad except of the dispatcher is here."""
        start_s = self._loop.time()
        told: Mapping[str, int] = {**counts, "failed": 1}
        try:
            result = await self._stages.run(
                work,
                timeout_s=deadline_s,
                most_s=self._time_left(),
                name=self._name(stage),
                held_s=self._held_s if stage is Stage.RUN else lambda: 0.0,
            )
            told = counts
            self._alike.succeeded(self._job, stage)
            return result
        except JournalError:
            raise
        except StageAbandoned as raised:
            again = again_after_deadline and stage is not Stage.GRADE  # an attempt is never graded twice at once
            failed = self._failed(stage, raised, again=again, reason=EndReason.DEADLINE)
            failed.abandoned = True
            raise failed from raised
        except StageDeadline as raised:
            raise self._failed(stage, raised, again=again_after_deadline, reason=EndReason.DEADLINE) from raised
        except ReplayError as raised:
            if self._past is not None:
                self._last += 1  # nothing failed: the job is where it was before the run stopped, all its tries ahead
            raise self._failed(stage, raised, again=True) from raised
        except Exception as raised:
            raise self._failed(stage, raised, again=True) from raised
        finally:
            self._span(_WORK[stage], start_s, told)
            self._admission.took(stage, self._loop.time() - start_s)

    def _name(self, stage: Stage) -> str:
        return f"{stage} of {self._job.key}"

    def _held_s(self) -> float:
        return self._admission.held_s(self._job.key)

    async def _tidy(
        self, what: str, work: Callable[[], Awaitable[None]], *, otherwise: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Clean-up: bounded, never the reason for a failure, and carried out even while being cancelled."""
        await outlast([asyncio.create_task(self._tidied(what, work, otherwise))])

    async def _tidied(
        self, what: str, work: Callable[[], Awaitable[None]], otherwise: Callable[[], Awaitable[None]] | None
    ) -> None:
        try:
            await self._stages.run(work, timeout_s=self._deadlines.release_s, name=f"{what} of {self._job.key}")
        except Exception as raised:
            logger.warning("%s of %s failed: %r", what, self._job.key, raised)
            if otherwise is not None:
                await self._tidied("close", otherwise, None)

    async def _enter(self, stage: Stage, *, weight: int = 0) -> None:
        start_s = self._loop.time()
        left_s = None if self._ends_at_s is None else self._time_left()
        if left_s is not None and left_s <= 0:
            message = InfrastructureError(f"the job's deadline passed before it waited for a place in {stage}")
            raise self._failed(stage, message, again=False, reason=EndReason.DEADLINE)
        try:
            async with asyncio.timeout(left_s):
                await self._admission.enter(stage, self._job, need=need_of(self._job, weight))
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
        self._alike.failed(self._job, stage, raised)
        return _Failed(reason=reason, again=again)

    def _time_left(self) -> float:
        return float("inf") if self._ends_at_s is None else self._ends_at_s - self._loop.time()

    def _span(self, kind: SpanKind, start_s: float, counts: Mapping[str, int] = _NO_COUNTS) -> None:
        end_s = self._loop.time()
        self._spans.append(Span(kind=kind, start_s=start_s, end_s=end_s, attempt=self._number, counts=counts))

    def _spans_in_order(self) -> tuple[Span, ...]:
        return tuple(sorted(self._spans, key=lambda span: span.start_s))


def _called(call: Callable[[], T]) -> T:
    """The same, with what would end the event loop, or look like a cancellation, made a failure."""
    try:
        return call()
    except (SystemExit, asyncio.CancelledError) as raised:
        raise InfrastructureError(f"{raised!r} was raised") from raised

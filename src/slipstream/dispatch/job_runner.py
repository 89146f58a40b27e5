"""Runs one job: its attempts, their three stages, and what is left when they fail.

Input: a job. Output: exactly one rollout; or a cancellation, after which nothing of the job is alive. `stop` ends a
job from outside, and its rollout comes out all the same.
Invariants: whatever a placement or an attempt raises, wherever it is called, fails that attempt alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from slipstream.dispatch.admission import Admission, need_of
from slipstream.dispatch.base import Attempt, Deadlines, Placement, Retries, Stage
from slipstream.dispatch.common_failure import CommonFailure
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
    """An attempt or a grading failed, and not by the agent's doing."""

    def __init__(self, *, reason: EndReason, retry: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        """Whether another try may help."""
        self.abandoned = False
        """Whether the stage may still be running."""


class JobRunner:
    """Drives one job."""

    def __init__(
        self,
        job: Job,
        *,
        placement: Placement,
        admission: Admission,
        stages: StageRunner,
        deadlines: Deadlines,
        retries: Retries,
        common_failure: CommonFailure,
        past: PastAttempt | None = None,
    ) -> None:
        """`past`: in a resumed run, the attempt to resume."""
        self._job = job
        self._placement = placement
        self._admission = admission
        self._stages = stages
        self._deadlines = deadlines
        self._retries = retries
        self._common_failure = common_failure
        self._past = past if past is not None and past.attempt else None
        self._number = 1 if self._past is None else self._past.attempt
        self._last = self._number + retries.attempts - 1
        self._spans: list[Span] = []
        self._failures: list[Failure] = []
        self._ends_at_s: float | None = None
        self._attempt_now: Attempt | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        """The task that `run` runs in, meanwhile."""
        self._is_over = False
        self._stopped: Ending | None = None
        self._result_if_stopped: Rollout | None = None
        """The rollout to return if the job is stopped now: that of an attempt which has ended and is being closed."""

    async def run(self) -> Rollout:
        """The job's one rollout."""
        before = self._stopped
        if before is not None:
            return self.nothing(before)
        self._task = task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            return await self._run_attempts()
        except asyncio.CancelledError:
            if self._stopped is None or task.uncancel() > 0:
                raise
            return self._completed(self._result_if_stopped) if self._result_if_stopped else self.nothing(self._stopped)
        finally:
            self._is_over, self._task = True, None

    def stop(self, ending: Ending) -> None:
        """End the job: `run` cleans up and returns what there is, with this ending. No effect once it is over."""
        if self._is_over or self._stopped is not None:
            return
        self._stopped = ending
        if self._task is not None:
            self._task.cancel()

    async def _run_attempts(self) -> Rollout:
        while True:
            rollout, retry = await self._attempt()
            if not self._will_retry(retry):
                break
            self._spans += rollout.spans
            self._number += 1
            self._past = None
        return self._completed(rollout)

    def _will_retry(self, retry: bool) -> bool:
        return retry and self._number < self._last and self._time_left() > 0

    def _completed(self, rollout: Rollout) -> Rollout:
        """The last attempt's rollout, with the spans and failures of all of them."""
        self._spans += rollout.spans
        return replace(rollout, spans=self._spans_in_order(), failures=tuple(self._failures))

    def nothing(self, ending: Ending) -> Rollout:
        """The rollout of a job that has no attempt left, with its spans and failures."""
        return Rollout(
            job=self._job,
            attempt=self._number,
            ending=ending,
            spans=self._spans_in_order(),
            failures=tuple(self._failures),
        )

    async def _attempt(self) -> tuple[Rollout, bool]:
        """One attempt: its rollout, and whether another one may be worth it.

        If the agent's part is on record only grading is left, which needs no place in another stage."""
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
            self._result_if_stopped = graded = await self._grade(attempt)
            return graded, False
        except _Failed as failed:
            rollout = self._as_failed(failed)
            if not self._will_retry(failed.retry):
                self._result_if_stopped = rollout
            return rollout, failed.retry
        except asyncio.CancelledError:
            if self._stopped is not None:
                self._result_if_stopped = self._as_ended(self._stopped)
            raise
        finally:
            if not only_grade:
                self._admission.end_attempt()
            if self._attempt_now is not None:
                await self._clean_up("close", self._attempt_now.aclose)
            self._attempt_now = None

    def _as_failed(self, failed: _Failed) -> Rollout:
        return self._as_ended(Ending(reason=failed.reason, detail=self._failures[-1].message))

    def _as_ended(self, ending: Ending) -> Rollout:
        """What there is of the attempt; nothing if it cannot say even that."""
        bare = Rollout(job=self._job, attempt=self._number, ending=ending)
        if self._attempt_now is None:
            return bare
        try:
            rollout = _contained_call(partial(self._attempt_now.as_ended, ending))
            return rollout if self._is_own(rollout) and rollout.ending == ending else bare
        except Exception as raised:
            logger.warning("the turns of %s are lost, as its attempt failed to report them: %r", self._job.key, raised)
            return bare

    def _is_own(self, rollout: object) -> bool:
        return isinstance(rollout, Rollout) and rollout.job == self._job and rollout.attempt == self._number

    async def _init_and_run(self) -> Attempt:
        """Both stages that hold the agent's sandbox; it is closed when this returns or raises."""
        try:
            try:
                self._attempt_now = attempt = self._open()
                await self._stage(Stage.INIT, attempt.init, self._deadlines.init_s, retry_after_deadline=True)
            finally:
                self._admission.leave(Stage.INIT)
            await self._enter(Stage.RUN)
            try:
                await self._stage(Stage.RUN, attempt.run, self._deadlines.run_s, retry_after_deadline=False)
            finally:
                left_behind = self._stages.has_left_behind(self._name(Stage.RUN))
                self._admission.run_over(self._job.key, left_behind=left_behind)
                self._admission.leave(Stage.RUN)
            if self._past is None:  # otherwise it was not the whole run
                self._admission.ran(self._job, self._spans[-1].seconds)
            return attempt
        finally:
            if self._attempt_now is not None:
                await self._release(self._attempt_now)

    async def _release(self, attempt: Attempt) -> None:
        """Close the agent's sandbox; if that fails, the whole attempt, as its place is given back next."""
        start_s = self._loop.time()
        try:
            await self._clean_up("release", attempt.release, otherwise=attempt.aclose)
        finally:
            self._span(SpanKind.RELEASE, start_s)

    async def _grade(self, attempt: Attempt) -> Rollout:
        for number in range(1, self._retries.grades + 1):
            weight = self._grade_weight(attempt)
            await self._enter(Stage.GRADE, weight=weight)
            try:
                try:
                    return await self._stage(
                        Stage.GRADE,
                        lambda: self._graded(attempt),
                        self._deadlines.grade_s,
                        retry_after_deadline=True,
                        counts={"try": number, "sandboxes": weight},
                    )
                finally:
                    self._admission.leave(Stage.GRADE)
            except _Failed as failed:
                if failed.abandoned:
                    await self._clean_up("close", attempt.aclose)  # before its place is given back
                if not failed.retry or number == self._retries.grades or self._time_left() <= 0:
                    raise _Failed(reason=EndReason.NO_VERDICT, retry=False) from failed
            except asyncio.CancelledError:
                await self._clean_up("close", attempt.aclose)
                raise
            finally:
                self._admission.give_back(need_of(self._job, weight))
        raise AssertionError("unreachable: at least one grading is tried")

    def _grade_weight(self, attempt: Attempt) -> int:
        try:
            weight = _contained_call(lambda: attempt.grade_weight)
            self._admission.check_need(f"the grader of {self._job.key}", need_of(self._job, weight))
            return weight
        except Exception as raised:  # too heavy a grading would wait for ever, and block every other start
            raise self._failed(Stage.GRADE, raised, retry=False, reason=EndReason.NO_VERDICT) from raised

    async def _graded(self, attempt: Attempt) -> Rollout:
        rollout = await attempt.grade()
        if not self._is_own(rollout):
            raise GraderError(f"grading gave no rollout of attempt {self._number} of {self._job.key}")
        return rollout

    def _open(self) -> Attempt:
        try:
            return _contained_call(lambda: self._placement.open(self._job, self._number, self._past))
        except Exception as raised:
            raise self._failed(Stage.INIT, raised, retry=True) from raised

    async def _stage(
        self,
        stage: Stage,
        work: Callable[[], Awaitable[T]],
        deadline_s: float,
        *,
        retry_after_deadline: bool,
        counts: Mapping[str, int] = _NO_COUNTS,
    ) -> T:
        """Run one stage under its deadline and the job's. The one broad except of the dispatcher is here."""
        start_s = self._loop.time()
        counted: Mapping[str, int] = {**counts, "failed": 1}
        try:
            result = await self._stages.run(
                work,
                timeout_s=deadline_s,
                most_s=self._time_left(),
                name=self._name(stage),
                held_s=self._held_s if stage is Stage.RUN else lambda: 0.0,
            )
            counted = counts
            self._common_failure.succeeded(self._job, stage)
            return result
        except JournalError:
            raise
        except StageAbandoned as raised:
            retry = retry_after_deadline and stage is not Stage.GRADE  # an attempt is never graded twice at once
            failed = self._failed(stage, raised, retry=retry, reason=EndReason.DEADLINE)
            failed.abandoned = True
            raise failed from raised
        except StageDeadline as raised:
            raise self._failed(stage, raised, retry=retry_after_deadline, reason=EndReason.DEADLINE) from raised
        except ReplayError as raised:
            if self._past is not None:
                self._last += 1  # nothing failed, so this attempt does not count
            raise self._failed(stage, raised, retry=True) from raised
        except Exception as raised:
            raise self._failed(stage, raised, retry=True) from raised
        finally:
            self._span(_WORK[stage], start_s, counted)
            self._admission.took(stage, self._loop.time() - start_s, failed=counted is not counts)

    def _name(self, stage: Stage) -> str:
        return f"{stage} of {self._job.key}"

    def _held_s(self) -> float:
        return self._admission.held_s(self._job.key)

    async def _clean_up(
        self, what: str, work: Callable[[], Awaitable[None]], *, otherwise: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Clean up in bounded time: never a reason to fail, and done even while being cancelled."""
        name = f"{what} of {self._job.key}"
        failed, cancelled = await self._stages.finish(work, timeout_s=self._deadlines.release_s, name=name)
        if failed is not None:
            logger.warning("%s failed: %r", name, failed)
            if otherwise is not None:
                await self._clean_up("close", otherwise)
        if cancelled is not None:
            raise cancelled

    async def _enter(self, stage: Stage, *, weight: int = 0) -> None:
        start_s = self._loop.time()
        left_s = None if self._ends_at_s is None else self._time_left()
        if left_s is not None and left_s <= 0:
            message = InfrastructureError(f"the job's deadline passed before it waited for a place in {stage}")
            raise self._failed(stage, message, retry=False, reason=EndReason.DEADLINE)
        entered = self._admission.enter(stage, self._job, need=need_of(self._job, weight))
        try:
            if left_s is None:
                await entered
            else:
                async with asyncio.timeout(left_s):
                    await entered
        except TimeoutError as raised:
            message = InfrastructureError(f"waited for a place in {stage} until the job's deadline")
            raise self._failed(stage, message, retry=False, reason=EndReason.WAITED) from raised
        finally:
            self._span(_WAIT[stage], start_s)

    def _failed(
        self, stage: Stage, raised: Exception, *, retry: bool, reason: EndReason = EndReason.INFRASTRUCTURE
    ) -> _Failed:
        self._failures.append(
            Failure(attempt=self._number, stage=stage.value, error=type(raised).__name__, message=str(raised))
        )
        self._common_failure.failed(self._job, stage, raised)
        return _Failed(reason=reason, retry=retry)

    def _time_left(self) -> float:
        return float("inf") if self._ends_at_s is None else self._ends_at_s - self._loop.time()

    def _span(self, kind: SpanKind, start_s: float, counts: Mapping[str, int] = _NO_COUNTS) -> None:
        end_s = self._loop.time()
        self._spans.append(Span(kind=kind, start_s=start_s, end_s=end_s, attempt=self._number, counts=counts))

    def _spans_in_order(self) -> tuple[Span, ...]:
        return tuple(sorted(self._spans, key=lambda span: span.start_s))


def _contained_call(call: Callable[[], T]) -> T:
    """The result of `call`. SystemExit and CancelledError become a failure, as they would stop more than this job."""
    try:
        return call()
    except (SystemExit, asyncio.CancelledError) as raised:
        raise InfrastructureError(f"{raised!r} was raised") from raised

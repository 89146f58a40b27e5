"""The dispatcher: jobs go in with back-pressure, rollouts come out as they finish.

    async with Dispatcher(placement, policy=Bounded(slots=8), journal=journal) as dispatcher:
        rollouts = await dispatcher.collect(jobs)

Invariants: the promises of `dispatch.base`. A rollout is given out only after it is durable in the journal. Leaving
the context with jobs under way cancels them, closes their sandboxes and records nothing of them, so a resumed run
does them again. A journal or scheduling policy that fails ends the run, and so does user code that fails every attempt
in the same way (`common_failure`): `finished` raises what it raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from slipstream.aio import PerPass, outlast, task_group
from slipstream.dispatch.admission import MAX_PER_PASS, Admission
from slipstream.dispatch.base import (
    Deadlines,
    DispatchLimits,
    DispatchView,
    PacingGate,
    Placement,
    Retries,
    SchedulingPolicy,
)
from slipstream.dispatch.common_failure import CommonFailure
from slipstream.dispatch.groups import FirstFinished
from slipstream.dispatch.job_runner import JobRunner
from slipstream.dispatch.stage import StageRunner
from slipstream.errors import ConfigError, JournalError
from slipstream.seams import JobAdmitted, Journal, PastAttempt, RolloutDone
from slipstream.types import Ending, EndReason, EngineLoad, Job, JobKey, Rollout

logger = logging.getLogger(__name__)

_GIVEN_UP = (EndReason.INFRASTRUCTURE, EndReason.NO_VERDICT)
_OUT_OF_TIME = Ending(reason=EndReason.DEADLINE, detail="the run's deadline passed")


class Dispatcher:
    def __init__(
        self,
        placement: Placement,
        *,
        policy: SchedulingPolicy[Any],
        journal: Journal,
        limits: DispatchLimits | None = None,
        deadlines: Deadlines | None = None,
        retries: Retries | None = None,
        capacity: int = 65_536,
        resumed: Mapping[JobKey, PastAttempt] | None = None,
        gate: PacingGate | None = None,
        load: Callable[[], EngineLoad | None] = lambda: None,
        is_proven: bool = False,
    ) -> None:
        """`capacity`: jobs submitted and not yet taken out, above which `submit` waits.
        `resumed`: of a stopped run, the last attempt at each job without a rollout; it is resumed.
        `gate`: the one that the attempts' turns pass. `load`: what the engine reports. `is_proven`: attempts have
        succeeded before, so user code that fails every attempt does not end the run (`common_failure`)."""
        self._placement = placement
        self._journal = journal
        self._deadlines = deadlines or Deadlines()
        self._retries = retries or Retries()
        self._resumed = dict(resumed or {})
        self._stages = StageRunner(grace_s=self._deadlines.grace_s)
        self._admission = Admission(policy, limits or DispatchLimits(), gate=gate, load=load)
        self._admission.num_abandoned = lambda: self._stages.num_abandoned
        self._admission.on_defect = self._fail
        self._room = asyncio.Semaphore(capacity)
        self._per_pass = PerPass(MAX_PER_PASS)
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._common_failure = CommonFailure(
            is_proven=is_proven, num_live=lambda: len(self._tasks), on_found=self._fail
        )
        self._runners: dict[JobKey, JobRunner] = {}
        self._ended_early: dict[JobKey, Ending] = {}
        """Jobs to end as soon as they are submitted."""
        self._first_finished: dict[JobKey, FirstFinished] = {}
        self._submitted: set[JobKey] = set()
        self._expected: set[JobKey] = set()
        """Jobs that were announced and not submitted yet."""
        self._waiting_for_room: set[JobKey] = set()
        """Of these, those waiting for room."""
        self._finished: asyncio.Queue[Rollout | None] = asyncio.Queue()
        self._closed = False
        self._exiting = False
        self._fatal: Exception | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._past_total = False

    async def __aenter__(self) -> Self:
        self._watchdog = asyncio.create_task(self._watch(), name="the run's deadline")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = self._exiting = True
        tasks = [*self._tasks.values(), *([self._watchdog] if self._watchdog else [])]
        for task in tasks:
            task.cancel()
        try:
            await outlast(tasks)
        finally:
            self._finished.put_nowait(None)

    async def submit(self, job: Job) -> None:
        """Take a job; waits while there is no room. Each key may be submitted once."""
        await self._per_pass.through()
        self._check_open(job)
        if job.key in self._submitted:
            raise ConfigError(f"job {job.key} was submitted twice")
        self._admission.check(job)
        await self._wait_for_room(job)
        self._journal.append(JobAdmitted(job=job))
        self.expect([job])
        self._expected.discard(job.key)
        self._common_failure.submitted(job)
        self._runners[job.key] = runner = self._make_runner(job)
        if self._past_total:
            runner.stop(_OUT_OF_TIME)
        elif job.key in self._ended_early:
            runner.stop(self._ended_early.pop(job.key))
        self._tasks[job.key] = asyncio.create_task(self._drive(job, runner), name=f"job {job.key}")

    def expect(self, jobs: Iterable[Job]) -> None:
        """Announce jobs, so that what they need can be prepared meanwhile."""
        for job in jobs:
            if job.key not in self._expected:
                self._expected.add(job.key)
                self._placement.expect(job)

    async def _wait_for_room(self, job: Job) -> None:
        """Wait for room. A submission cancelled meanwhile never happened."""
        self._submitted.add(job.key)
        self._waiting_for_room.add(job.key)
        try:
            await self._room.acquire()
            if self._closed:
                self._room.release()
            self._check_open(job)
        except BaseException:
            self._submitted.discard(job.key)
            raise
        finally:
            self._waiting_for_room.discard(job.key)

    def _check_open(self, job: Job) -> None:
        if self._closed:
            raise ConfigError(f"job {job.key} was submitted after the last one")

    def cancel(self, key: JobKey, *, why: str = "cancelled") -> None:
        """End one job: its rollout comes out as cancelled, once, with the turns it has. A job that is not submitted yet
        is cancelled when it is; one that has already ended keeps its ending."""
        ending = Ending(reason=EndReason.CANCELLED, detail=why)
        if key in self._runners:
            self._runners[key].stop(ending)
        elif key not in self._submitted or key in self._waiting_for_room:
            self._ended_early[key] = ending

    def keep_first(self, keys: Collection[JobKey], num: int, *, so_far: Iterable[Rollout] = ()) -> None:
        """Cancel the rest of a group once `num` of it have a verdict. Call it before they are submitted; `so_far` came
        out in an earlier session."""
        enough = FirstFinished(keys, num)
        for key in keys:
            self._first_finished[key] = enough
        for rollout in so_far:
            self._note(rollout)

    def _note(self, rollout: Rollout) -> None:
        enough = self._first_finished.pop(rollout.job.key, None)
        for key in enough.note(rollout) if enough is not None else ():
            self.cancel(key, why="enough of its group were in")

    def close(self) -> None:
        """No more jobs will come: `finished` ends when the last one has left."""
        self._closed = True
        self._wake_if_over()

    async def finished(self) -> AsyncGenerator[Rollout, None]:
        """Rollouts as they finish, each durable before it is given out. One consumer at a time."""
        while True:
            rollout = None if self._fatal is not None else await self._finished.get()
            if self._fatal is not None:
                raise self._fatal
            if rollout is None:
                return
            self._room.release()
            yield rollout

    async def collect(self, jobs: Sequence[Job]) -> tuple[Rollout, ...]:
        """All of `jobs`, and one rollout for each, in their order."""
        found: dict[JobKey, Rollout] = {}
        async with task_group() as group:
            group.create_task(self._submit_all(jobs))
            async with aclosing(self.finished()) as finished:
                while len(found) < len(jobs):
                    rollout = await anext(finished)
                    found[rollout.job.key] = rollout
        return tuple(found[job.key] for job in jobs)

    def view(self) -> DispatchView:
        """The counters, for a display."""
        return self._admission.view()

    async def _submit_all(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            await self.submit(job)

    def _make_runner(self, job: Job) -> JobRunner:
        return JobRunner(
            job,
            placement=self._placement,
            admission=self._admission,
            stages=self._stages,
            deadlines=self._deadlines,
            retries=self._retries,
            common_failure=self._common_failure,
            past=self._resumed.pop(job.key, None),
        )

    async def _drive(self, job: Job, runner: JobRunner) -> None:
        """Run a job and record its rollout. Whatever happens, one rollout comes out, or the run ends."""
        try:
            rollout = await self._run_job(job, runner)
            if rollout.ending.reason in _GIVEN_UP:
                await self._common_failure.hold_back(job, at_most_s=self._deadlines.job_s)
            self._journal.append(RolloutDone(rollout=rollout))
            await self._journal.flush()
        except asyncio.CancelledError:
            if not self._exiting:
                self._fail(JournalError("the journal was cancelled while it was written"))
            raise
        except Exception as raised:
            self._fail(raised)
        else:
            self._admission.num_done += 1
            self._finished.put_nowait(rollout)
            self._note(rollout)
        finally:
            del self._tasks[job.key], self._runners[job.key]
            self._common_failure.left(job)
            self._wake_if_over()

    async def _run_job(self, job: Job, runner: JobRunner) -> Rollout:
        try:
            return await runner.run()
        except JournalError:
            raise
        except Exception as raised:
            logger.exception("a bug in the dispatcher or its placement failed job %s", job.key)
            return runner.nothing(Ending(reason=EndReason.INFRASTRUCTURE, detail=repr(raised)))

    def _fail(self, raised: Exception) -> None:
        """End the run."""
        self._fatal = self._fatal or raised
        self._finished.put_nowait(None)

    def _wake_if_over(self) -> None:
        if self._closed and not self._tasks:
            self._finished.put_nowait(None)

    async def _watch(self) -> None:
        await asyncio.sleep(self._deadlines.total_s)
        self._past_total = True
        self._common_failure.release()
        for runner in list(self._runners.values()):
            runner.stop(_OUT_OF_TIME)

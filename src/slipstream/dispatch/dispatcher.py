"""The dispatcher: jobs go in with back-pressure, rollouts and whole groups come out as they finish.

    async with Dispatcher(placement, policy=Bounded(slots=8), journal=journal) as dispatcher:
        rollouts = await dispatcher.collect(jobs)

Always holds: the promises of `dispatch.base`. A rollout is given out only after it is durable in the journal. Leaving
the context with jobs under way cancels them, closes their sandboxes and records nothing of them, so that a resumed
run does them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from slipstream.aio import outlast, task_group
from slipstream.dispatch.admission import Admission
from slipstream.dispatch.base import Deadlines, Limits, Placement, Policy, Retries, View
from slipstream.dispatch.life import Life
from slipstream.dispatch.stage import StageRunner
from slipstream.errors import ConfigError, JournalError
from slipstream.seams import JobAdmitted, Journal, RolloutDone
from slipstream.types import Ending, EndReason, Group, Job, JobKey, Rollout

logger = logging.getLogger(__name__)


class Dispatcher:
    def __init__(
        self,
        placement: Placement,
        *,
        policy: Policy[Any],
        journal: Journal,
        limits: Limits | None = None,
        deadlines: Deadlines | None = None,
        retries: Retries | None = None,
        capacity: int = 65_536,
        first_numbers: Mapping[JobKey, int] | None = None,
    ) -> None:
        """`capacity`: jobs submitted and not yet taken out, above which `submit` waits.
        `first_numbers`: for a resumed run, the number of each job's first new attempt."""
        self._placement = placement
        self._journal = journal
        self._deadlines = deadlines or Deadlines()
        self._retries = retries or Retries()
        self._first_numbers = first_numbers or {}
        self._stages = StageRunner(grace_s=self._deadlines.grace_s)
        self._admission = Admission(policy, limits or Limits())
        self._admission.num_abandoned = lambda: self._stages.num_abandoned
        self._room = asyncio.Semaphore(capacity)
        self._lives: dict[JobKey, asyncio.Task[None]] = {}
        self._submitted: set[JobKey] = set()
        self._finished: asyncio.Queue[Rollout | None] = asyncio.Queue()
        self._closed = False
        self._fatal: JournalError | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._past_total = False

    async def __aenter__(self) -> Self:
        self._watchdog = asyncio.create_task(self._watch(), name="the run's deadline")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        tasks = [*self._lives.values(), *([self._watchdog] if self._watchdog else [])]
        for task in tasks:
            task.cancel()
        await outlast(tasks)

    async def submit(self, job: Job) -> None:
        """Take a job in; waits while there is no room. Each key may be submitted once."""
        if self._closed:
            raise ConfigError(f"job {job.key} was submitted after the last one")
        if job.key in self._submitted:
            raise ConfigError(f"job {job.key} was submitted twice")
        self._admission.check(job)
        self._submitted.add(job.key)
        await self._room.acquire()
        self._journal.append(JobAdmitted(job=job))
        task = asyncio.create_task(self._drive(job), name=f"job {job.key}")
        self._lives[job.key] = task

    def close(self) -> None:
        """No more jobs will come: `finished` ends when the last one has left."""
        self._closed = True
        self._wake_if_over()

    async def finished(self) -> AsyncGenerator[Rollout, None]:
        """Rollouts as they finish, each durable before it is given out. One consumer at a time."""
        while True:
            rollout = await self._finished.get()
            if self._fatal is not None:
                raise self._fatal
            if rollout is None:
                return
            self._room.release()
            yield rollout

    async def groups(self) -> AsyncGenerator[Group, None]:
        """Whole groups, as their last member finishes."""
        open_groups: dict[tuple[str, int, str], list[Rollout]] = {}
        async with aclosing(self.finished()) as finished:
            async for rollout in finished:
                key = rollout.job.key
                place = (key.phase, key.step, key.task_id)
                members = open_groups.setdefault(place, [])
                members.append(rollout)
                if len(members) == rollout.job.group_size:
                    members = sorted(open_groups.pop(place), key=lambda member: member.job.key)
                    yield Group(phase=key.phase, step=key.step, task_id=key.task_id, rollouts=tuple(members))

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

    def view(self) -> View:
        """The counters, for a display."""
        return self._admission.view()

    async def _submit_all(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            await self.submit(job)

    async def _drive(self, job: Job) -> None:
        """From submission to the journal. Whatever happens inside, one rollout comes out, or the run is over."""
        life = Life(
            job,
            placement=self._placement,
            admission=self._admission,
            stages=self._stages,
            deadlines=self._deadlines,
            retries=self._retries,
            first_number=self._first_numbers.get(job.key, 1),
        )
        try:
            try:
                rollout = await life.live()
            except asyncio.CancelledError:
                if not self._past_total:
                    raise
                rollout = life.nothing(Ending(reason=EndReason.DEADLINE, detail="the run's deadline passed"))
            except JournalError:
                raise
            except Exception as raised:
                logger.exception("job %s met a defect of the dispatcher or of its placement", job.key)
                rollout = life.nothing(Ending(reason=EndReason.INFRASTRUCTURE, detail=repr(raised)))
            self._journal.append(RolloutDone(rollout=rollout))
            await self._journal.flush()
        except JournalError as raised:
            self._fatal = self._fatal or raised
            self._finished.put_nowait(None)
        else:
            self._admission.num_done += 1
            self._finished.put_nowait(rollout)
        finally:
            del self._lives[job.key]
            self._wake_if_over()

    def _wake_if_over(self) -> None:
        if self._closed and not self._lives:
            self._finished.put_nowait(None)

    async def _watch(self) -> None:
        await asyncio.sleep(self._deadlines.total_s)
        self._past_total = True
        for task in self._lives.values():
            task.cancel()

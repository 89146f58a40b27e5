"""What the dispatcher makes of a run that stopped: attempts go on, or start over, and only what is left is done."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.dispatch.base import DispatchLimits, Retries, SchedulingPolicy
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch, Bounded
from slipstream.errors import ReplayError, SandboxError
from slipstream.placement.simulated import Fault, Part, Plan, SandboxUsage, SimulatedAttempt
from slipstream.record import MemoryJournal
from slipstream.seams import PastAttempt, RunEnded
from slipstream.simulate.clock import run_virtual
from slipstream.types import Artifact, Ending, EndReason, Job, JobKey, Rollout, SpanKind, Trust, Turn

JOBS = [Job(key=JobKey(phase="eval", step=0, task_id=str(number), sample=0), seed=number) for number in range(4)]
JOB = JOBS[0]
ONE_TURN = PastAttempt(attempt=3, turns=(Turn(index=0),))


def ended(job: Job = JOB, *, attempt: int = 3) -> PastAttempt:
    run_ended = RunEnded(
        key=job.key, attempt=attempt, ending=Ending(reason=EndReason.FINISHED), artifact=Artifact(answer="42")
    )
    return PastAttempt(attempt=attempt, turns=(Turn(index=0),), run_ended=run_ended)


class Failing(SimulatedAttempt):
    """Raises what it is told to, at the end of its run."""

    error: Exception | None = None

    async def run(self) -> None:
        await super().run()
        if self.error is not None:
            raise self.error


class Placed:
    """Simulated attempts that remember what they were opened with."""

    def __init__(self, error: Callable[[int], Exception | None], plan: Plan) -> None:
        self.usage = SandboxUsage()
        self.opened: list[tuple[JobKey, int, PastAttempt | None]] = []
        self._error = error
        self._plan = plan

    def expect(self, job: Job) -> None: ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> Failing:
        self.opened.append((job.key, number, past))
        attempt = Failing(job, number, self._plan, self.usage)
        attempt.error = self._error(number)
        return attempt


def dispatch(
    resumed: Mapping[JobKey, PastAttempt],
    *,
    jobs: Sequence[Job] = (JOB,),
    error: Callable[[int], Exception | None] = lambda number: None,
    plan: Plan | None = None,
    attempts: int = 3,
    policy: SchedulingPolicy[Any] | None = None,
    limits: DispatchLimits | None = None,
) -> tuple[tuple[Rollout, ...], Placed, float]:
    placement = Placed(error, plan or Plan())

    async def main() -> tuple[tuple[Rollout, ...], float]:
        async with Dispatcher(
            placement,
            policy=policy or Batch(),
            journal=MemoryJournal(),
            limits=limits,
            retries=Retries(attempts=attempts),
            resumed=resumed,
        ) as dispatcher:
            rollouts = await dispatcher.collect(jobs)
            view = dispatcher.view()
            assert (view.in_flight, view.live, view.done) == (0, 0, len(jobs))
        return rollouts, asyncio.get_running_loop().time()

    rollouts, seconds = run_virtual(main())
    assert placement.usage.live == 0
    return rollouts, placement, seconds


def test_an_attempt_goes_on_under_its_own_number_and_other_jobs_begin() -> None:
    rollouts, placement, _ = dispatch({JOB.key: ONE_TURN}, jobs=JOBS[:2])
    assert placement.opened == [(JOBS[0].key, 3, ONE_TURN), (JOBS[1].key, 1, None)]
    assert [rollout.attempt for rollout in rollouts] == [3, 1]


def test_a_job_of_which_nothing_is_on_record_begins_with_attempt_one() -> None:
    _, placement, _ = dispatch({JOB.key: PastAttempt(attempt=0)})
    assert placement.opened == [(JOB.key, 1, None)]


def test_where_the_run_has_ended_nothing_is_left_but_grading() -> None:
    (rollout,), placement, seconds = dispatch({JOB.key: ended()})
    assert placement.opened == [(JOB.key, 3, ended())]
    assert [span.kind for span in rollout.spans] == [SpanKind.WAIT_GRADE, SpanKind.GRADE]
    assert (rollout.attempt, rollout.trust, seconds) == (3, Trust.TRUSTED, 1.0)


def test_what_is_left_to_grade_takes_no_slot_but_keeps_to_the_sandboxes() -> None:
    resumed = {job.key: ended(job) for job in JOBS[:3]}
    rollouts, placement, seconds = dispatch(
        resumed, jobs=JOBS, policy=Bounded(slots=1), limits=DispatchLimits(sandboxes=1, init=1, run=1)
    )
    assert placement.usage.peak_live == 1
    assert seconds == 3 * 1 + 3
    assert {rollout.trust for rollout in rollouts} == {Trust.TRUSTED}


def test_a_grading_that_fails_again_is_told_as_ever() -> None:
    (rollout,), placement, _ = dispatch({JOB.key: ended()}, plan=Plan(grade=Part(fault=Fault.RAISE)))
    assert rollout.ending.reason is EndReason.NO_VERDICT
    assert [failure.stage for failure in rollout.failures] == ["grade"] * 3
    assert len(placement.opened) == 1


def test_after_a_failure_the_next_attempt_starts_afresh() -> None:
    (rollout,), placement, _ = dispatch(
        {JOB.key: ONE_TURN}, error=lambda number: SandboxError("x") if number == 3 else None
    )
    assert placement.opened == [(JOB.key, 3, ONE_TURN), (JOB.key, 4, None)]
    assert rollout.attempt == 4


def test_an_attempt_that_cannot_go_on_costs_no_try() -> None:
    def error(number: int) -> Exception | None:
        return ReplayError("it differs") if number == 3 else SandboxError("lost") if number < 6 else None

    (rollout,), placement, _ = dispatch({JOB.key: ONE_TURN}, error=error, attempts=3)
    assert [(number, past) for _, number, past in placement.opened] == [(3, ONE_TURN), (4, None), (5, None), (6, None)]
    assert rollout.trust is Trust.TRUSTED
    assert [failure.error for failure in rollout.failures] == ["ReplayError", "SandboxError", "SandboxError"]


def test_one_that_can_go_on_has_as_many_tries_as_any_other() -> None:
    (rollout,), placement, _ = dispatch({JOB.key: ONE_TURN}, error=lambda number: SandboxError("lost"), attempts=3)
    assert [number for _, number, _ in placement.opened] == [3, 4, 5]
    assert rollout.ending.reason is EndReason.INFRASTRUCTURE


def test_an_attempt_that_has_no_past_and_says_it_cannot_go_on_is_not_tried_for_ever() -> None:
    (rollout,), placement, _ = dispatch({}, error=lambda number: ReplayError("a defect"), attempts=3)
    assert [number for _, number, _ in placement.opened] == [1, 2, 3]
    assert rollout.ending.reason is EndReason.INFRASTRUCTURE

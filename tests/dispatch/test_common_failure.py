"""User code that fails every attempt alike ends the run early, with nothing recorded; on virtual time."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from slipstream.dispatch.base import Deadlines, Retries
from slipstream.dispatch.common_failure import NUM_SAME_FAILURES
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch, Bounded
from slipstream.errors import GraderError, InfrastructureError, Origin, SandboxError, ToolFailure, UserCodeError
from slipstream.placement.simulated import Part, Plan, SimulatedAttempt, SimulatedPlacement
from slipstream.record import MemoryJournal
from slipstream.seams import PastAttempt, RolloutDone
from slipstream.simulate.clock import run_virtual
from slipstream.types import EndReason, Job, JobKey, Rollout

DEADLINES = Deadlines(init_s=50, run_s=500, grade_s=50, release_s=20, job_s=2_000, total_s=1e9, grace_s=5)


def defect(line: int = 14, *, kind: str = "KeyError", may_pass: bool = False) -> InfrastructureError:
    raised = GraderError(f"grader letters.py:G: {kind}: 'x' (letters.py, line {line}, in grade)")
    place = f"letters.py, line {line}, in grade"
    raised.origin = Origin(kind=kind, place=place, trace=f"File letters.py, line {line}", may_pass=may_pass)
    return raised


Fails = Callable[[Job, int, str], Exception | None]
"""From a job, the number of a try at this stage (all attempts counted) and the stage to what is raised."""


class FailingAttempt(SimulatedAttempt):
    """One whose stages raise what a test says."""

    placement: "Failing"

    async def run(self) -> None:
        await super().run()
        self.placement.fail(self._job, "run")

    async def grade(self) -> Rollout:
        graded = await super().grade()
        self.placement.fail(self._job, "grade")
        return graded


class Failing(SimulatedPlacement):
    def __init__(self, fails: Fails, plan: Callable[[Job, int], Plan]) -> None:
        super().__init__(plan)
        self._fails = fails
        self.num_tries: dict[tuple[JobKey, str], int] = {}

    def open(self, job: Job, number: int, past: PastAttempt | None) -> SimulatedAttempt:
        super().open(job, number, past)
        attempt = FailingAttempt(job, number, self._plan(job, number), self.usage)
        attempt.placement = self
        return attempt

    def fail(self, job: Job, stage: str) -> None:
        number = self.num_tries[job.key, stage] = self.num_tries.get((job.key, stage), 0) + 1
        if (raised := self._fails(job, number, stage)) is not None:
            raise raised

    def num(self, stage: str) -> int:
        return sum(number for (_, name), number in self.num_tries.items() if name == stage)


def jobs_of(num_tasks: int, samples: int = 1) -> list[Job]:
    return [
        Job(key=JobKey(phase="eval", step=0, task_id=f"t{task}", sample=sample), seed=task, group_size=samples)
        for sample in range(samples)
        for task in range(num_tasks)
    ]


class Ran:
    """What came of a run: its rollouts, or what ended it."""

    def __init__(
        self,
        fails: Fails,
        jobs: list[Job],
        *,
        plan: Callable[[Job, int], Plan] = lambda job, number: Plan(),
        slots: int | None = None,
        is_proven: bool = False,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        self.placement, self.journal = Failing(fails, plan), MemoryJournal()
        self.raised: Exception | None = None
        self.rollouts: tuple[Rollout, ...] = ()

        async def main() -> float:
            async with Dispatcher(
                self.placement,
                policy=Batch() if slots is None else Bounded(slots=slots),
                journal=self.journal,
                deadlines=deadlines,
                retries=Retries(attempts=3, grades=3),
                is_proven=is_proven,
            ) as dispatcher:
                try:
                    self.rollouts = await dispatcher.collect(jobs)
                except UserCodeError as raised:
                    self.raised = raised
            return asyncio.get_running_loop().time()

        self.seconds = run_virtual(main())
        self.recorded = [event for event in self.journal.events() if isinstance(event, RolloutDone)]

    @property
    def reasons(self) -> set[EndReason]:
        return {rollout.ending.reason for rollout in self.rollouts}


def always(job: Job, number: int, stage: str) -> Exception | None:
    return defect() if stage == "grade" else None


@pytest.mark.parametrize("slots", [None, 1, 4])
def test_a_mistake_in_a_grader_ends_the_run_after_a_few_gradings_with_nothing_recorded(slots: int | None) -> None:
    ran = Ran(always, jobs_of(200), slots=slots)
    assert str(ran.raised) == (
        "every attempt so far failed in the same way in the grade stage (grader letters.py:G: KeyError: 'x' "
        "(letters.py, line 14, in grade)): fix that, then resume; none of these failures was recorded"
    )
    assert ran.placement.num("grade") <= max(NUM_SAME_FAILURES + 2, 200 if slots is None else 0)
    assert ran.recorded == []
    assert ran.placement.usage.live == 0


def test_a_mistake_in_a_tool_ends_the_run_too() -> None:
    def fails(job: Job, number: int, stage: str) -> Exception | None:
        raised = ToolFailure("tool mine returned a dict: no outcome")
        raised.origin = Origin(kind="ToolFailure", place="tool mine")
        return raised if stage == "run" else None

    ran = Ran(fails, jobs_of(50), slots=2)
    assert "failed in the same way in the run stage (tool mine returned a dict" in str(ran.raised)
    assert ran.placement.num("run") <= NUM_SAME_FAILURES + 2
    assert ran.recorded == []


@pytest.mark.parametrize(("num_tasks", "samples"), [(1, 1), (2, 1), (1, 100)])
def test_a_run_of_few_tasks_ends_so_too(num_tasks: int, samples: int) -> None:
    ran = Ran(always, jobs_of(num_tasks, samples), slots=1)
    assert isinstance(ran.raised, UserCodeError)
    assert ran.placement.num("grade") <= NUM_SAME_FAILURES
    assert ran.recorded == []


def test_one_success_anywhere_switches_the_rule_off_and_what_was_kept_back_is_recorded() -> None:
    def fails(job: Job, number: int, stage: str) -> Exception | None:
        return defect() if stage == "grade" and job.key.task_id in ("t0", "t1") else None

    def plan(job: Job, number: int) -> Plan:
        return Plan(run=Part(seconds=1.0 if job.key.task_id in ("t0", "t1") else 300.0))

    ran = Ran(fails, jobs_of(8, samples=4), plan=plan)
    assert ran.raised is None
    assert len(ran.recorded) == len(ran.rollouts) == 32
    lost = {rollout.job.key.task_id for rollout in ran.rollouts if rollout.verdict is None}
    assert lost == {"t0", "t1"}


def test_one_task_with_a_mistake_does_not_end_a_run_of_many() -> None:
    """However often it fails, and however early."""

    def fails(job: Job, number: int, stage: str) -> Exception | None:
        return defect() if stage == "grade" and job.key.task_id == "t0" else None

    first = [job for job in jobs_of(4, samples=32) if job.key.task_id == "t0"]
    others = [job for job in jobs_of(4, samples=1) if job.key.task_id != "t0"]
    ran = Ran(fails, [*first, *others], plan=lambda job, number: Plan(run=Part(seconds=1.0 + 100.0 * (job.seed > 0))))
    assert ran.raised is None
    assert len(ran.recorded) == 35


@pytest.mark.parametrize(
    "raised",
    [
        SandboxError("no room"),
        GraderError("the grading command ended with 2"),
        RuntimeError("nobody foresaw this"),
        defect(may_pass=True),
    ],
)
def test_failures_of_the_infrastructure_never_end_a_run(raised: Exception) -> None:
    ran = Ran(lambda job, number, stage: raised if stage == "grade" else None, jobs_of(40))
    assert ran.raised is None
    assert ran.reasons == {EndReason.NO_VERDICT}
    assert len(ran.recorded) == 40


def test_failures_at_different_places_do_not_add_up() -> None:
    ran = Ran(lambda job, number, stage: defect(line=job.seed) if stage == "grade" else None, jobs_of(40))
    assert ran.raised is None
    assert len(ran.recorded) == 40


def test_a_flaky_host_among_the_failures_starts_the_count_anew() -> None:
    turn = iter(range(1_000_000))

    def fails(job: Job, number: int, stage: str) -> Exception | None:
        if stage != "grade":
            return None
        return SandboxError("no room") if next(turn) % NUM_SAME_FAILURES == NUM_SAME_FAILURES - 1 else defect()

    ran = Ran(fails, jobs_of(60), slots=1)
    assert isinstance(ran.raised, UserCodeError)  # when all that is left has failed, and not before
    assert ran.placement.num("grade") > 60


def test_a_mistake_that_a_retry_gets_over_ends_nothing() -> None:
    ran = Ran(
        lambda job, number, stage: defect() if stage == "grade" and number == 1 else None,
        jobs_of(NUM_SAME_FAILURES - 1),
    )
    assert ran.raised is None
    assert all(rollout.verdict is not None for rollout in ran.rollouts)


def test_a_run_that_had_verdicts_before_goes_on_to_its_end() -> None:
    ran = Ran(always, jobs_of(20), is_proven=True)
    assert ran.raised is None
    assert len(ran.recorded) == 20


def test_what_is_kept_back_leaves_at_the_deadline_of_the_run() -> None:
    """One job fails at once, the other hangs in its run: the first is not lost from the record."""
    deadlines = Deadlines(init_s=50, run_s=1e6, grade_s=50, release_s=20, job_s=1e6, total_s=1_000, grace_s=5)
    ran = Ran(
        lambda job, number, stage: defect() if stage == "grade" and job.seed == 0 else None,
        jobs_of(2),
        plan=lambda job, number: Plan(run=Part(seconds=1.0 + 1e5 * job.seed)),
        deadlines=deadlines,
    )
    assert ran.raised is None
    assert [rollout.ending.reason for rollout in ran.rollouts] == [EndReason.NO_VERDICT, EndReason.DEADLINE]
    assert ran.seconds < 1_100


def test_what_is_kept_back_leaves_at_its_own_deadline() -> None:
    ran = Ran(
        lambda job, number, stage: defect() if stage == "grade" and job.seed == 0 else None,
        jobs_of(4),
        plan=lambda job, number: Plan(run=Part(seconds=1.0 + 1e5 * job.seed)),
        slots=1,  # so that others are under way for longer than its deadline
        deadlines=Deadlines(init_s=50, run_s=1e6, grade_s=50, release_s=20, job_s=700, total_s=1e9, grace_s=5),
    )
    assert ran.raised is None
    assert len(ran.recorded) == 4


def test_the_traceback_is_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Ran(always, jobs_of(20), is_proven=True)
    assert [record.getMessage() for record in caplog.records].count(
        "grader letters.py:G: KeyError: 'x' (letters.py, line 14, in grade)\nFile letters.py, line 14"
    ) == 1

"""The spans of a job: every stage, every wait and every retry, on virtual time."""

from collections.abc import Callable
from dataclasses import replace

from slipstream.dispatch.base import Deadlines, DispatchLimits, Retries
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch
from slipstream.placement.simulated import Fault, Part, Plan, SimulatedAttempt, SimulatedPlacement
from slipstream.record import MemoryJournal
from slipstream.seams import PastAttempt
from slipstream.simulate.clock import run_virtual
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Span, SpanKind

JOBS = [Job(key=JobKey(phase="eval", step=0, task_id="t", sample=sample), seed=sample) for sample in range(2)]
CALL = Span(kind=SpanKind.MODEL, start_s=0.5, end_s=1.0, counts={"new": 3})


class TalkingAttempt(SimulatedAttempt):
    """Says that its agent called a model, however it ended."""

    def __init__(self, job: Job, number: int, attempt: SimulatedAttempt) -> None:
        super().__init__(job, number, attempt._plan, attempt._usage)

    def as_ended(self, ending: Ending) -> Rollout:
        return replace(super().as_ended(ending), spans=(replace(CALL, attempt=self._number),))


class TalkingPlacement(SimulatedPlacement):
    def expect(self, job: Job) -> None: ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> SimulatedAttempt:
        return TalkingAttempt(job, number, super().open(job, number, past))


def lived(plan: Callable[[Job, int], Plan], *, num_jobs: int = 1, **options: object) -> list[Rollout]:
    async def main() -> list[Rollout]:
        settings = {"limits": None, "retries": None, "deadlines": None, **options}
        async with Dispatcher(
            TalkingPlacement(plan),
            policy=Batch(),
            journal=MemoryJournal(),
            **settings,  # type: ignore[arg-type]
        ) as dispatcher:
            return list(await dispatcher.collect(JOBS[:num_jobs]))

    return run_virtual(main())


def told(rollout: Rollout) -> list[tuple[str, float, float, int]]:
    return [(span.kind.value, span.start_s, span.end_s, span.attempt) for span in rollout.spans]


def test_every_stage_and_every_wait_leaves_a_span() -> None:
    _, second = lived(lambda job, number: Plan(run=Part(seconds=5)), num_jobs=2, limits=DispatchLimits(run=1))
    assert told(second) == [
        ("wait_init", 0, 0, 1),
        ("init", 0, 1, 1),
        ("wait_run", 1, 6, 1),
        ("run", 6, 11, 1),
        ("release", 11, 11, 1),
        ("wait_grade", 11, 11, 1),
        ("grade", 11, 12, 1),
    ]
    assert dict(second.spans[-1].counts) == {"try": 1, "sandboxes": 1}


def test_an_attempt_that_failed_keeps_its_spans_and_those_of_its_agent() -> None:
    (rollout,) = lived(lambda job, number: Plan(run=Part(seconds=2, fault=Fault.RAISE if number == 1 else None)))
    assert rollout.attempt == 2
    assert told(rollout)[:6] == [
        ("wait_init", 0, 0, 1),
        ("init", 0, 1, 1),
        ("model", 0.5, 1, 1),
        ("wait_run", 1, 1, 1),
        ("run", 1, 3, 1),
        ("release", 3, 3, 1),
    ]
    failed = [(span.kind, span.attempt) for span in rollout.spans if span.counts.get("failed")]
    assert failed == [(SpanKind.RUN, 1)]
    assert [(failure.attempt, failure.stage) for failure in rollout.failures] == [(1, "run")]


def test_gradings_are_numbered_and_those_that_failed_say_so() -> None:
    (rollout,) = lived(lambda job, number: Plan(grade=Part(fault=Fault.RAISE)), retries=Retries(grades=2))
    grades = [dict(span.counts) for span in rollout.spans if span.kind is SpanKind.GRADE]
    assert grades == [{"try": 1, "sandboxes": 1, "failed": 1}, {"try": 2, "sandboxes": 1, "failed": 1}]
    assert rollout.ending.reason is EndReason.NO_VERDICT


def test_a_job_that_the_end_of_the_run_cut_off_keeps_its_spans() -> None:
    (rollout,) = lived(lambda job, number: Plan(run=Part(fault=Fault.HANG)), deadlines=Deadlines(total_s=10))
    assert rollout.ending.reason is EndReason.DEADLINE
    assert ("run", 1, 10, 1) in told(rollout)

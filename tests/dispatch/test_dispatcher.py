"""The dispatcher's promises, on virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.dispatch.base import Deadlines, Decision, DispatchLimits, DispatchView, Retries, SchedulingPolicy
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.errors import ConfigError, JournalError
from slipstream.placement.simulated import Fault, Part, Plan, SimulatedAttempt, SimulatedPlacement
from slipstream.record import MemoryJournal
from slipstream.seams import PastAttempt, RolloutDone
from slipstream.simulate.clock import run_virtual
from slipstream.types import EndReason, Job, JobKey, Rollout, SpanKind, Trust

DEADLINES = Deadlines(init_s=50, run_s=500, grade_s=50, release_s=20, job_s=2_000, total_s=1e9, grace_s=5)


def done(journal: MemoryJournal) -> list[JobKey]:
    """The jobs that left, as often as they did."""
    return [event.rollout.job.key for event in journal.events() if isinstance(event, RolloutDone)]


def make_jobs(number: int, *, group_size: int = 1, weight: int = 1) -> list[Job]:
    return [
        Job(
            key=JobKey(phase="eval", step=0, task_id=f"t{index // group_size}", sample=index % group_size),
            seed=index,
            weight=weight,
            group_size=group_size,
        )
        for index in range(number)
    ]


def dispatch(
    jobs: Sequence[Job],
    plan: Callable[[Job, int], Plan] = lambda job, number: Plan(),
    *,
    policy: SchedulingPolicy[Any] | None = None,
    limits: DispatchLimits | None = None,
    deadlines: Deadlines = DEADLINES,
    retries: Retries | None = None,
) -> tuple[tuple[Rollout, ...], SimulatedPlacement, MemoryJournal, float]:
    placement, journal = SimulatedPlacement(plan), MemoryJournal()

    async def main() -> tuple[tuple[Rollout, ...], float]:
        async with Dispatcher(
            placement, policy=policy or Batch(), journal=journal, limits=limits, deadlines=deadlines, retries=retries
        ) as dispatcher:
            rollouts = await dispatcher.collect(jobs)
            view = dispatcher.view()
            counts = (view.waiting, view.initialising, view.ready, view.running, view.ended, view.grading)
            assert counts == (0,) * 6
            assert (view.in_flight, view.live, view.done) == (0, 0, len(jobs))
        return rollouts, asyncio.get_running_loop().time()

    rollouts, seconds = run_virtual(main())
    return rollouts, placement, journal, seconds


def faulty(stage: str, fault: Fault) -> Callable[[Job, int], Plan]:
    """The same fault in every attempt."""

    def part(name: str) -> Part:
        return Part(fault=fault if name == stage else None)

    return lambda job, number: Plan(init=part("init"), run=part("run"), grade=part("grade"))


def test_collect_returns_one_rollout_for_each_job_in_the_order_asked_for() -> None:
    jobs = make_jobs(20)
    rollouts, _, journal, _ = dispatch(jobs, lambda job, number: Plan(run=Part(seconds=100 - job.seed)))
    assert [rollout.job for rollout in rollouts] == jobs
    assert Counter(done(journal)) == Counter(job.key for job in jobs)
    assert {rollout.trust for rollout in rollouts} == {Trust.TRUSTED}


def test_every_stage_and_wait_leaves_a_span() -> None:
    rollouts, *_ = dispatch(make_jobs(2), policy=Bounded(slots=1))
    kinds = [span.kind for span in rollouts[1].spans]
    assert kinds == [
        SpanKind.WAIT_INIT,
        SpanKind.INIT,
        SpanKind.WAIT_RUN,
        SpanKind.RUN,
        SpanKind.RELEASE,
        SpanKind.WAIT_GRADE,
        SpanKind.GRADE,
    ]
    assert rollouts[1].spans[0].seconds == 3.0


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Batch(), 3.0),  # everything at once
        (Bounded(slots=2), 15.0),  # five rounds of three seconds
        (Pipeline(init=2, run=2, grade=2), 7.0),  # five rounds of one second, two seconds to fill the pipe
    ],
)
def test_policies_take_the_time_that_arithmetic_says(policy: SchedulingPolicy[Any], seconds: float) -> None:
    assert dispatch(make_jobs(10), policy=policy)[3] == seconds


def test_pipeline_without_a_cap_piles_up_sandboxes_and_with_one_does_not() -> None:
    def slow_run(job: Job, number: int) -> Plan:
        return Plan(run=Part(seconds=50))

    policy = Pipeline(init=4, run=4, grade=4)
    _, free, _, _ = dispatch(make_jobs(100), slow_run, policy=policy)
    _, capped, _, _ = dispatch(make_jobs(100), slow_run, policy=policy, limits=DispatchLimits(sandboxes=8))
    assert free.usage.peak_live > 50
    assert capped.usage.peak_live == 8


def test_limits_of_the_stages_hold_against_any_policy() -> None:
    _, placement, _, seconds = dispatch(make_jobs(12), policy=Batch(), limits=DispatchLimits(grade=1))
    assert placement.usage.peak_grading == 1
    assert seconds == 2 + 12


def test_a_ready_grade_goes_before_a_new_initialisation() -> None:
    started: list[str] = []

    def plan(job: Job, number: int) -> Plan:
        started.append(job.key.task_id)
        return Plan()

    rollouts, *_ = dispatch(make_jobs(3), plan, limits=DispatchLimits(sandboxes=1))
    graded = [next(span for span in rollout.spans if span.kind is SpanKind.GRADE).start_s for rollout in rollouts]
    begun = [next(span for span in rollout.spans if span.kind is SpanKind.INIT).start_s for rollout in rollouts]
    assert graded == [2, 5, 8]
    assert begun == [0, 3, 6]


def test_heavy_sandboxes_take_their_weight() -> None:
    _, placement, _, _ = dispatch(
        make_jobs(6, weight=3), lambda job, number: Plan(grade_weight=3), limits=DispatchLimits(sandboxes=7)
    )
    assert placement.usage.peak_live == 6


def test_a_job_heavier_than_the_limit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="weighs 9 sandbox units, but the limit is 8"):
        dispatch(make_jobs(1, weight=9), limits=DispatchLimits(sandboxes=8))


@pytest.mark.parametrize("stage", ["init", "run"])
@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.CRASH, Fault.EXIT, Fault.CANCEL])
def test_a_failure_is_tried_again_and_then_recorded_as_untrusted(stage: str, fault: Fault) -> None:
    rollouts, placement, _, _ = dispatch(make_jobs(1), faulty(stage, fault), retries=Retries(attempts=3))
    (rollout,) = rollouts
    assert rollout.ending.reason is EndReason.INFRASTRUCTURE
    assert rollout.verdict is None
    assert [failure.attempt for failure in rollout.failures] == [1, 2, 3]
    assert {failure.stage for failure in rollout.failures} == {stage}
    assert [number for _, number in placement.started] == [1, 2, 3]


def test_a_failure_that_passes_leaves_a_trusted_rollout_that_remembers_it() -> None:
    def plan(job: Job, number: int) -> Plan:
        return Plan(run=Part(fault=Fault.RAISE if number == 1 else None))

    rollouts, *_ = dispatch(make_jobs(1), plan)
    assert rollouts[0].trust is Trust.TRUSTED
    assert rollouts[0].attempt == 2
    assert [failure.error for failure in rollouts[0].failures] == ["SandboxError"]


def test_a_failed_grading_is_repeated_without_running_the_agent_again() -> None:
    rollouts, placement, _, _ = dispatch(make_jobs(1), faulty("grade", Fault.CRASH), retries=Retries(grades=4))
    assert rollouts[0].ending.reason is EndReason.NO_VERDICT
    assert len(rollouts[0].failures) == 4
    assert len(placement.started) == 1


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DEAF])
def test_a_hanging_run_ends_at_its_deadline_and_delays_nobody(fault: Fault) -> None:
    def plan(job: Job, number: int) -> Plan:
        return Plan(run=Part(fault=fault)) if job.seed == 0 else Plan()

    rollouts, _, _, seconds = dispatch(make_jobs(10), plan)
    assert rollouts[0].ending.reason is EndReason.DEADLINE
    assert [rollout.spans[-1].end_s for rollout in rollouts[1:]] == [3.0] * 9
    assert seconds <= 1 + 500 + 5 + 20 + 5


def test_a_hanging_initialisation_is_tried_again() -> None:
    rollouts, *_ = dispatch(make_jobs(1), lambda job, number: Plan(init=Part(fault=Fault.HANG if number < 3 else None)))
    assert rollouts[0].trust is Trust.TRUSTED
    assert rollouts[0].attempt == 3


def test_the_deadline_of_the_job_bounds_all_its_retries() -> None:
    rollouts, _, _, seconds = dispatch(
        make_jobs(1),
        faulty("init", Fault.HANG),
        retries=Retries(attempts=1000),
        deadlines=Deadlines(init_s=50, job_s=120, grace_s=1, total_s=1e9),
    )
    assert rollouts[0].ending.reason is EndReason.DEADLINE
    assert seconds == 120


def test_a_job_that_waits_too_long_for_its_next_stage_says_so() -> None:
    rollouts, *_ = dispatch(
        make_jobs(2),
        lambda job, number: Plan(run=Part(seconds=100)),
        limits=DispatchLimits(run=1),
        deadlines=Deadlines(job_s=60, total_s=1e9),
    )
    assert [rollout.ending.reason for rollout in rollouts] == [EndReason.DEADLINE, EndReason.WAITED]
    assert rollouts[1].trust is Trust.UNTRUSTED


def test_when_the_run_is_out_of_time_every_job_still_leaves_once() -> None:
    rollouts, _, journal, seconds = dispatch(
        make_jobs(10), policy=Bounded(slots=2), deadlines=Deadlines(total_s=7.5, grace_s=1)
    )
    assert [rollout.ending.reason for rollout in rollouts] == [EndReason.FINISHED] * 4 + [EndReason.DEADLINE] * 6
    assert sorted(done(journal)) == sorted(rollout.job.key for rollout in rollouts)
    assert seconds == 7.5


def test_leaving_early_closes_every_sandbox_and_records_nothing() -> None:
    placement, journal = SimulatedPlacement(), MemoryJournal()

    async def main() -> None:
        async with Dispatcher(placement, policy=Bounded(slots=4), journal=journal) as dispatcher:
            for job in make_jobs(9):
                await dispatcher.submit(job)
            await asyncio.sleep(0.5)
            assert placement.usage.live == 4
            raise KeyError("the caller changed its mind")

    with pytest.raises(KeyError):
        run_virtual(main())
    assert placement.usage.live == 0
    assert done(journal) == []


def test_being_cancelled_again_and_again_does_not_stop_the_cleaning_up() -> None:
    placement = SimulatedPlacement(lambda job, number: Plan(run=Part(seconds=100), release=Part(seconds=10)))

    async def leave() -> None:
        async with Dispatcher(placement, policy=Batch(), journal=MemoryJournal()) as dispatcher:
            await dispatcher.collect(make_jobs(3))

    async def main() -> float:
        leaving = asyncio.create_task(leave())
        for _ in range(3):
            await asyncio.sleep(2)
            leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 12
    assert placement.usage.live == 0


def test_a_journal_that_cannot_be_written_ends_the_run_with_its_own_error() -> None:
    async def main() -> None:
        async with Dispatcher(
            SimulatedPlacement(), policy=Batch(), journal=MemoryJournal(fail_after_flushes=2)
        ) as dispatcher:
            await dispatcher.collect(make_jobs(5))

    with pytest.raises(JournalError, match="told to fail after 2 flushes"):
        run_virtual(main())


def test_submit_waits_while_there_is_no_room() -> None:
    async def main() -> list[float]:
        times: list[float] = []
        loop = asyncio.get_running_loop()
        async with Dispatcher(SimulatedPlacement(), policy=Batch(), journal=MemoryJournal(), capacity=2) as dispatcher:

            async def feed() -> None:
                for job in make_jobs(6):
                    await dispatcher.submit(job)
                    times.append(loop.time())
                dispatcher.close()

            async with asyncio.TaskGroup() as group:
                group.create_task(feed())
                seen = [rollout.job.key async for rollout in dispatcher.finished()]
            assert len(seen) == 6
        return times

    assert run_virtual(main()) == [0, 0, 3, 3, 6, 6]


def test_the_same_job_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="submitted twice"):
        dispatch([make_jobs(1)[0]] * 2)


parts = st.builds(
    Part,
    seconds=st.sampled_from([0.0, 0.5, 1.0, 7.0, 30.0]),
    fault=st.sampled_from([None] * 6 + [Fault.RAISE, Fault.CRASH, Fault.EXIT, Fault.CANCEL, Fault.HANG]),
)
plans = st.builds(Plan, init=parts, run=parts, release=parts, grade=parts, grade_weight=st.integers(0, 2))
policies = st.one_of(
    st.just(Batch()),
    st.builds(Bounded, slots=st.integers(1, 6)),
    st.builds(Pipeline, init=st.integers(1, 4), run=st.integers(1, 4), grade=st.integers(1, 4)),
)
limits_strategy = st.builds(
    DispatchLimits,
    sandboxes=st.sampled_from([None, 2, 3, 7]),
    init=st.sampled_from([None, 1, 3]),
    run=st.sampled_from([None, 1, 3]),
    grade=st.sampled_from([None, 1, 3]),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    policies,
    limits_strategy,
    st.lists(st.tuples(st.integers(1, 2), st.tuples(plans, plans, plans)), min_size=1, max_size=12),
)
def test_every_job_leaves_exactly_once_within_the_limits_whatever_fails(
    policy: SchedulingPolicy[Any], limits: DispatchLimits, chosen: list[tuple[int, tuple[Plan, Plan, Plan]]]
) -> None:
    jobs = [
        Job(key=JobKey(phase="eval", step=0, task_id=str(index), sample=0), seed=index, weight=weight)
        for index, (weight, _) in enumerate(chosen)
    ]
    rollouts, placement, journal, _ = dispatch(
        jobs, lambda job, number: chosen[job.seed][1][number - 1], policy=policy, limits=limits
    )
    assert [rollout.job for rollout in rollouts] == jobs
    assert Counter(done(journal)) == Counter(job.key for job in jobs)
    assert placement.usage.live == 0
    if limits.sandboxes is not None:
        assert placement.usage.peak_live <= limits.sandboxes
    for rollout in rollouts:
        assert (rollout.verdict is None) == (rollout.trust is Trust.UNTRUSTED)
        assert rollout.trust is Trust.TRUSTED or rollout.failures


# ---------------------------------------------------------------- memory and cores


def heavy_jobs(number: int, *, memory_mb: int = 0, cpus: float = 0.0, weight: int = 1) -> list[Job]:
    return [replace(job, memory_mb=memory_mb, cpus=cpus) for job in make_jobs(number, weight=weight)]


@pytest.mark.parametrize("limits", [DispatchLimits(memory_mb=2_500), DispatchLimits(cpus=1.0)])
def test_memory_and_cores_of_sandboxes_are_limited_graders_included(limits: DispatchLimits) -> None:
    _, placement, _, seconds = dispatch(heavy_jobs(6, memory_mb=1_000, cpus=0.4), limits=limits)
    assert placement.usage.peak_live == 2
    assert seconds == 9  # three rounds of three seconds


def test_cores_that_were_given_back_are_there_again_to_the_last_bit() -> None:
    jobs = [*heavy_jobs(7, cpus=0.1), replace(make_jobs(8)[7], cpus=0.3)]
    assert len(dispatch(jobs, limits=DispatchLimits(cpus=0.3))[0]) == 8


def test_a_job_without_a_sandbox_takes_memory_for_its_grader_alone() -> None:
    jobs = heavy_jobs(4, memory_mb=1_000, weight=0)
    _, placement, _, seconds = dispatch(jobs, limits=DispatchLimits(memory_mb=1_000))
    assert placement.usage.peak_memory_mb == 1_000
    assert seconds == 2 + 4


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (
            DispatchLimits(memory_mb=512),
            "needs 2048 MB of memory, but the limit is 512: raise dispatch.limits.memory_mb",
        ),
        (DispatchLimits(cpus=1.5), "needs 2 cores, but the limit is 1.5: raise dispatch.limits.cpus"),
    ],
)
def test_a_job_with_more_memory_or_cores_than_the_limit_is_refused_with_the_numbers(
    limits: DispatchLimits, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        dispatch(heavy_jobs(1, memory_mb=2_048, cpus=2.0), limits=limits)


def test_a_grader_heavier_than_the_limit_ends_its_job_at_once_and_keeps_nobody_out() -> None:
    def plan(job: Job, number: int) -> Plan:
        return Plan(grade_weight=9 if job.seed == 0 else 1)

    rollouts, _, _, seconds = dispatch(make_jobs(4), plan, limits=DispatchLimits(sandboxes=1))
    assert rollouts[0].ending.reason is EndReason.NO_VERDICT
    assert "the grader of eval/0/t0/0 weighs 9 sandbox units, but the limit is 1" in rollouts[0].failures[0].message
    assert [rollout.trust for rollout in rollouts[1:]] == [Trust.TRUSTED] * 3
    assert seconds == 2 + 3 * 3


def test_no_initialisation_takes_the_room_that_a_heavy_grade_waits_for() -> None:
    def plan(job: Job, number: int) -> Plan:
        return Plan(run=Part(seconds=1.0 + 3 * job.seed), grade_weight=3)

    rollouts, *_ = dispatch(make_jobs(5), plan, limits=DispatchLimits(sandboxes=3))
    graded = next(span for span in rollouts[0].spans if span.kind is SpanKind.GRADE)
    begun = [next(span for span in rollout.spans if span.kind is SpanKind.INIT).start_s for rollout in rollouts]
    assert graded.start_s == 8  # when the third run is over
    assert begun[:3] == [0, 0, 0] and min(begun[3:]) > graded.end_s


# ---------------------------------------------------------------- one job


def cancelling(plan: Plan, *, at_s: float) -> tuple[Rollout, float]:
    """What becomes of a job that is cancelled, and when."""

    async def main() -> tuple[Rollout, float]:
        (job,) = make_jobs(1)
        placement = SimulatedPlacement(lambda job, number: plan)
        async with Dispatcher(placement, policy=Batch(), journal=MemoryJournal()) as dispatcher:
            asyncio.get_running_loop().call_at(at_s, dispatcher.cancel, job.key)
            (rollout,) = await dispatcher.collect([job])
            assert placement.usage.live == 0
            return rollout, asyncio.get_running_loop().time()

    return run_virtual(main())


@pytest.mark.parametrize("at_s", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
def test_a_job_that_is_cancelled_comes_out_once_as_cancelled(at_s: float) -> None:
    rollout, seconds = cancelling(Plan(), at_s=at_s)
    assert (rollout.ending.reason, rollout.trust, rollout.verdict) == (EndReason.CANCELLED, Trust.ABSENT, None)
    assert seconds == at_s


@pytest.mark.parametrize(
    ("grade", "reason"), [(None, EndReason.FINISHED), (Fault.RAISE, EndReason.NO_VERDICT)], ids=["graded", "ungraded"]
)
def test_a_job_that_came_to_its_own_end_keeps_it_though_it_is_cancelled_while_it_is_closed(
    grade: Fault | None, reason: EndReason
) -> None:
    plan = Plan(grade=Part(fault=grade), close=Part(seconds=5))
    whole, seconds = cancelling(plan, at_s=1000)
    kept, seconds_kept = cancelling(plan, at_s=seconds - 2)
    assert kept.ending.reason is reason
    assert (kept, seconds_kept) == (whole, seconds)


def test_a_job_that_would_be_tried_again_is_cancelled_while_its_attempt_is_closed() -> None:
    plan = Plan(init=Part(fault=Fault.RAISE), close=Part(seconds=5))
    rollout, seconds = cancelling(plan, at_s=3)
    assert (rollout.ending.reason, rollout.attempt, seconds) == (EndReason.CANCELLED, 1, 6)
    last, _ = cancelling(plan, at_s=13 + 2)
    assert (last.ending.reason, last.attempt) == (EndReason.INFRASTRUCTURE, 3)


def test_what_is_slow_to_end_keeps_its_grace_though_it_is_cancelled_twice() -> None:
    placement = SimulatedPlacement(lambda job, number: Plan(run=Part(seconds=4, fault=Fault.SLOW_TO_END)))

    async def main() -> tuple[float, int]:
        (job,) = make_jobs(1)
        async with Dispatcher(
            placement, policy=Batch(), journal=MemoryJournal(), deadlines=Deadlines(grace_s=5)
        ) as dispatcher:
            await dispatcher.submit(job)
            await asyncio.sleep(10)
            dispatcher.cancel(job.key)
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time(), dispatcher.view().abandoned

    assert run_virtual(main()) == (14, 0)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_deaf_grader_is_closed_before_its_place_is_given_back(is_cancelled: bool) -> None:
    def plan(job: Job, number: int) -> Plan:
        return Plan(grade=Part(fault=Fault.DEAF if job.seed == 0 else None), close=Part(seconds=2))

    placement = SimulatedPlacement(plan)

    async def main() -> None:
        jobs = make_jobs(2)
        async with Dispatcher(
            placement, policy=Batch(), journal=MemoryJournal(), deadlines=DEADLINES, limits=DispatchLimits(sandboxes=1)
        ) as dispatcher:
            if is_cancelled:
                asyncio.get_running_loop().call_at(10, dispatcher.cancel, jobs[0].key)
            await dispatcher.collect(jobs)

    run_virtual(main())
    assert placement.usage.peak_live == 1


def test_a_job_can_be_cancelled_before_it_is_submitted_and_while_it_waits_for_room() -> None:
    async def main() -> list[EndReason]:
        jobs = make_jobs(3)
        async with Dispatcher(SimulatedPlacement(), policy=Batch(), journal=MemoryJournal(), capacity=1) as dispatcher:
            dispatcher.cancel(jobs[1].key)
            asyncio.get_running_loop().call_at(1, dispatcher.cancel, jobs[2].key)
            return [rollout.ending.reason for rollout in await dispatcher.collect(jobs)]

    assert run_virtual(main()) == [EndReason.FINISHED, EndReason.CANCELLED, EndReason.CANCELLED]


def test_a_job_that_came_to_its_own_end_keeps_it() -> None:
    rollout, _ = cancelling(Plan(), at_s=3.5)
    assert rollout.trust is Trust.TRUSTED


# ---------------------------------------------------------------- what ends a run


class MoodyPolicy(Batch):
    """Raises as soon as anything is to be graded."""

    def decide(self, view: DispatchView, memory: None) -> tuple[Decision, None]:
        if view.ended:
            raise ZeroDivisionError("the policy is broken")
        return super().decide(view, memory)


def test_a_policy_that_raises_ends_the_run_with_its_own_error_instead_of_hanging() -> None:
    with pytest.raises(ZeroDivisionError, match="the policy is broken"):
        dispatch(make_jobs(5), policy=MoodyPolicy())


class LyingAttempt(SimulatedAttempt):
    async def grade(self) -> Rollout:
        rollout = await super().grade()
        return replace(rollout, job=replace(rollout.job, seed=12_345))


def test_a_rollout_of_another_job_is_no_verdict() -> None:
    class LyingPlacement(SimulatedPlacement):
        def expect(self, job: Job) -> None: ...

        def open(self, job: Job, number: int, past: PastAttempt | None) -> SimulatedAttempt:
            return LyingAttempt(job, number, Plan(), self.usage)

    async def main() -> tuple[Rollout, ...]:
        async with Dispatcher(LyingPlacement(), policy=Batch(), journal=MemoryJournal()) as dispatcher:
            return await dispatcher.collect(make_jobs(1))

    (rollout,) = run_virtual(main())
    assert rollout.ending.reason is EndReason.NO_VERDICT
    assert rollout.failures[-1].message == "grading gave no rollout of attempt 1 of eval/0/t0/0"


def test_a_submission_that_is_cancelled_while_it_waits_was_none() -> None:
    async def main() -> int:
        jobs = make_jobs(2)
        async with Dispatcher(SimulatedPlacement(), policy=Batch(), journal=MemoryJournal(), capacity=1) as dispatcher:
            await dispatcher.submit(jobs[0])
            waiting = asyncio.create_task(dispatcher.submit(jobs[1]))
            await asyncio.sleep(1)
            waiting.cancel()
            await asyncio.wait({waiting})
            seen = 0
            async for _ in dispatcher.finished():
                seen += 1
                if seen == 1:
                    await dispatcher.submit(jobs[1])
                    dispatcher.close()
            return seen

    assert run_virtual(main()) == 2


def test_jobs_submitted_after_the_runs_deadline_leave_at_once() -> None:
    async def main() -> tuple[EndReason, float]:
        async with Dispatcher(
            SimulatedPlacement(), policy=Batch(), journal=MemoryJournal(), deadlines=Deadlines(total_s=5)
        ) as dispatcher:
            await asyncio.sleep(9)
            (rollout,) = await dispatcher.collect(make_jobs(1))
            return rollout.ending.reason, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (EndReason.DEADLINE, 9)

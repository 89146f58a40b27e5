"""The rules for groups: what is kept, what is cancelled, what is without signal."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.groups import FirstFinished, Split, has_enough, is_flat, split
from slipstream.dispatch.policies import Batch
from slipstream.placement.simulated import Fault, Part, Plan, SimulatedPlacement
from slipstream.record import MemoryJournal
from slipstream.simulate.clock import run_virtual
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Verdict


def member(sample: int, reward: float | None, reason: EndReason | None = None) -> Rollout:
    job = Job(key=JobKey(phase="train", step=0, task_id="t", sample=sample), seed=sample, group_size=6)
    ending = Ending(reason=reason or (EndReason.INFRASTRUCTURE if reward is None else EndReason.FINISHED))
    return Rollout(job=job, attempt=1, ending=ending, verdict=None if reward is None else Verdict(reward=reward))


def samples(rollouts: tuple[Rollout, ...]) -> list[int]:
    return [rollout.job.key.sample for rollout in rollouts]


def test_the_first_with_a_verdict_are_kept_and_failures_are_counted_as_in_any_group() -> None:
    came = [
        member(4, 1.0),
        member(2, None),
        member(0, 0.0, EndReason.TURN_LIMIT),
        member(5, 0.5),
        member(1, None, EndReason.CANCELLED),
    ]
    parts = split(came, 2)
    assert samples(parts.kept) == [4, 2, 0]
    assert samples(parts.left_out) == [5, 1]


def test_the_rest_is_cancelled_once_when_enough_have_a_verdict() -> None:
    came = [member(sample, None if sample == 1 else 1.0) for sample in range(6)]
    enough = FirstFinished([rollout.job.key for rollout in came], 2)
    told = [[key.sample for key in enough.note(rollout)] for rollout in came]
    assert told == [[], [], [3, 4, 5], [], [], []]


rollouts = st.lists(st.sampled_from([None, 0.0, 1.0]), max_size=6).map(
    lambda rewards: [member(sample, reward) for sample, reward in enumerate(rewards)]
)


@given(rollouts, st.integers(1, 6))
def test_nobody_is_lost_and_no_more_are_kept_than_asked_for(came: list[Rollout], num: int) -> None:
    parts = split(came, num)
    assert sorted(samples(parts.kept) + samples(parts.left_out)) == list(range(len(came)))
    num_graded = sum(rollout.verdict is not None for rollout in came)
    assert sum(rollout.verdict is not None for rollout in parts.kept) == min(num, num_graded)
    assert has_enough(came, num, 6) == (num_graded >= num or len(came) == 6)


@pytest.mark.parametrize(
    ("rewards", "flat"),
    [([1.0, 1.0], True), ([1.0, 0.0], False), ([1.0], False), ([], False), ([0.5, None, 0.5], True)],
)
def test_a_group_is_flat_if_two_or_more_rewards_are_all_equal(rewards: list[float | None], flat: bool) -> None:
    assert is_flat(member(sample, reward) for sample, reward in enumerate(rewards)) == flat


# ---------------------------------------------------------------- in the dispatcher


def keep_first(num: int, plans: list[Plan]) -> tuple[Split, float, SimulatedPlacement]:
    jobs = [
        Job(key=JobKey(phase="train", step=0, task_id="t", sample=sample), seed=sample, group_size=len(plans))
        for sample in range(len(plans))
    ]
    placement = SimulatedPlacement(lambda job, number: plans[job.seed])

    async def main() -> tuple[Split, float]:
        async with Dispatcher(placement, policy=Batch(), journal=MemoryJournal()) as dispatcher:
            dispatcher.keep_first([job.key for job in jobs], num)
            for job in jobs:
                await dispatcher.submit(job)
            dispatcher.close()
            members = [rollout async for rollout in dispatcher.finished()]
            return split(members, num), asyncio.get_running_loop().time()

    group, seconds = run_virtual(main())
    return group, seconds, placement


def test_an_over_sampled_group_ends_with_the_last_that_is_needed() -> None:
    plans = [Plan(run=Part(seconds=seconds)) for seconds in (50.0, 3.0, 90.0, 1.0)]
    group, seconds, placement = keep_first(2, plans)
    assert (samples(group.kept), samples(group.left_out)) == ([3, 1], [0, 2])
    assert {rollout.ending.reason for rollout in group.left_out} == {EndReason.CANCELLED}
    assert seconds == 1 + 3 + 1
    assert placement.usage.live == 0


def test_failures_do_not_count_towards_enough_and_two_that_end_at_once_both_come_out() -> None:
    plans = [Plan(run=Part(seconds=1, fault=Fault.HANG)), Plan(), Plan(grade=Part(fault=Fault.RAISE)), Plan(), Plan()]
    group, _, _ = keep_first(2, plans)
    assert samples(tuple(rollout for rollout in group.kept if rollout.verdict is not None)) == [1, 3]
    late = {rollout.job.key.sample: rollout.ending.reason for rollout in group.left_out}
    assert late[0] is EndReason.CANCELLED
    assert set(late) == {0, 4} or set(late) == {0, 2, 4}


def test_what_came_out_before_a_run_was_stopped_counts_towards_enough() -> None:
    jobs = [Job(key=JobKey(phase="train", step=0, task_id="t", sample=sample), seed=sample) for sample in range(3)]

    async def main() -> list[EndReason]:
        async with Dispatcher(SimulatedPlacement(), policy=Batch(), journal=MemoryJournal()) as dispatcher:
            dispatcher.keep_first([job.key for job in jobs], 1, so_far=[member(0, 1.0)])
            return [rollout.ending.reason for rollout in await dispatcher.collect(jobs[1:])]

    assert run_virtual(main()) == [EndReason.CANCELLED] * 2

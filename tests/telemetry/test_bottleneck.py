"""How busy the machine was and what the bottleneck is, from samples written by hand and from any at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.record.hardware import CpuSample, GpuSample, HardwareSample
from slipstream.seams import LearnerWork, LearnerWorked
from slipstream.telemetry.bottleneck import ALWAYS, Bottleneck, MachineUse, machine_use, sandbox_limit
from slipstream.telemetry.utilisation import time_lines
from slipstream.types import Ending, EndReason, Job, JobKey, Json, Rollout, Span, SpanKind, Verdict


def rollout(start_s: float, end_s: float, sample: int = 0) -> Rollout:
    return Rollout(
        job=Job(key=JobKey(phase="train", step=0, task_id="t", sample=sample), seed=0),
        attempt=1,
        ending=Ending(reason=EndReason.FINISHED),
        verdict=Verdict(reward=1.0),
        spans=(
            Span(kind=SpanKind.INIT, start_s=start_s, end_s=start_s),
            Span(kind=SpanKind.RUN, start_s=start_s, end_s=end_s),
        ),
    )


def sample(at_s: float, *, seconds: float = 1.0, cpu: float = 0.0, gpus: Sequence[float] = ()) -> HardwareSample:
    return HardwareSample(
        at_s=at_s,
        seconds=seconds,
        cpu=CpuSample(percent=cpu, cores=16, own_cores=1.5, helper_cores=2.5),
        gpus=tuple(GpuSample(gpu=n, percent=percent, memory_mb=100 * at_s) for n, percent in enumerate(gpus)),
    )


def update(start_s: float, end_s: float, work: LearnerWork = LearnerWork.UPDATE) -> LearnerWorked:
    return LearnerWorked(step=0, work=work, start_s=start_s, end_s=end_s)


def used(
    samples: Sequence[HardwareSample],
    *,
    rollouts: Sequence[Rollout] = (rollout(0, 6),),
    work: Sequence[LearnerWorked] = (update(6, 10),),
    limit: int | None = None,
    window: tuple[float, float] = ALWAYS,
) -> MachineUse:
    return machine_use(samples, time_lines(rollouts), work, sandbox_limit=limit, window=window)


SAMPLES = [sample(at_s, cpu=60 if at_s <= 6 else 10, gpus=[50 if at_s <= 6 else 100]) for at_s in range(1, 11)]


def test_the_busy_share_is_told_for_the_whole_for_rollouts_and_for_the_learner() -> None:
    found = used(SAMPLES)
    (gpu,), cpu = found.gpus, found.cpu
    assert gpu.busy.rollouts is not None and gpu.busy.learner is not None
    assert (gpu.busy.whole.mean, gpu.busy.rollouts.mean, gpu.busy.learner.mean) == (0.7, 0.5, 1.0)
    assert gpu.peak_memory_mb == 1000
    assert cpu is not None and cpu.busy.rollouts is not None
    assert (cpu.busy.whole.mean, cpu.busy.rollouts.mean) == pytest.approx((0.4, 0.6))
    assert (cpu.cores, cpu.own_cores, cpu.helper_cores, cpu.run_cores) == (16, 1.5, 2.5, 4.0)
    assert (found.seconds, found.learner_share, found.num_updates, found.update_s) == (10, 0.4, 1, 4)


def test_a_sample_counts_as_far_as_it_lies_in_a_part() -> None:
    (gpu,) = used([sample(4, seconds=4, gpus=[0]), sample(8, seconds=4, gpus=[100])]).gpus
    assert gpu.busy.rollouts is not None and gpu.busy.learner is not None
    assert (gpu.busy.rollouts.seconds, gpu.busy.rollouts.mean) == pytest.approx((6, 1 / 3))
    assert (gpu.busy.learner.seconds, gpu.busy.learner.mean) == pytest.approx((2, 1))


def test_the_share_of_time_above_0_is_not_the_mean() -> None:
    (gpu,) = used([sample(5, seconds=5, gpus=[20]), sample(10, seconds=5, gpus=[0])]).gpus
    assert (gpu.busy.whole.mean, gpu.busy.whole.active_share) == (0.1, 0.5)


def test_what_was_before_the_first_job_and_after_the_last_update_does_not_count() -> None:
    around = [sample(0, seconds=50, gpus=[100]), *SAMPLES, sample(60, seconds=50, gpus=[0])]
    assert used(around).gpus[0].busy == used(SAMPLES).gpus[0].busy
    assert used(around).seconds == 10


def test_the_pause_before_a_run_was_resumed_is_not_charged() -> None:
    found = used(
        [*SAMPLES, sample(1001, cpu=0, gpus=[0]), sample(1002, cpu=0, gpus=[0])],
        rollouts=[rollout(0, 6), rollout(1000, 1002, sample=1)],
    )
    assert (found.seconds, found.learner_share) == pytest.approx((12, 4 / 12))


def test_time_between_rollouts_and_an_update_counts_while_the_machine_is_sampled() -> None:
    assert used(SAMPLES, work=[update(8, 10)]).learner_share == 0.2
    assert used([], work=[update(8, 10)]).learner_share == 0.25


def test_outside_of_a_window_nothing_counts() -> None:
    found = used(SAMPLES, window=(4, 9), work=[update(2, 3), update(6, 9), update(9, 10, LearnerWork.CHECKPOINT)])
    assert (found.seconds, found.num_updates, found.learner_share) == pytest.approx((5, 1, 3 / 5))
    assert found.gpus[0].busy.whole.mean == pytest.approx((2 * 0.5 + 3) / 5)


def test_checkpoints_are_the_learners_work_and_no_updates() -> None:
    found = used(SAMPLES, work=[update(6, 8), update(8, 10, LearnerWork.CHECKPOINT)])
    assert (found.num_updates, found.update_s, found.learner_share) == (1, 2, 0.4)


def level(percent: float, gpus: Sequence[float] = ()) -> list[HardwareSample]:
    return [sample(at_s, cpu=percent, gpus=gpus) for at_s in range(1, 11)]


@pytest.mark.parametrize(
    ("found", "bottleneck", "busiest", "share"),
    [
        (used(level(30, [85])), Bottleneck.GPU, Bottleneck.GPU, 0.85),
        (used(level(30, [5, 95])), Bottleneck.GPU, Bottleneck.GPU, 0.95),
        (used(level(90, [85])), Bottleneck.CPU, Bottleneck.CPU, 0.9),
        (used(level(85), work=[update(0, 10)]), Bottleneck.CPU, Bottleneck.CPU, 0.85),
        (used(level(50), work=[update(1, 10)]), Bottleneck.LEARNER, Bottleneck.LEARNER, 0.9),
        (used(level(50), limit=1, rollouts=[rollout(0, 9)]), Bottleneck.SANDBOXES, Bottleneck.SANDBOXES, 0.9),
        (used(level(79.9, [20])), Bottleneck.NEITHER, Bottleneck.CPU, 0.799),
        (used(level(87.5, [87.5])), Bottleneck.GPU, Bottleneck.GPU, 0.875),
        (used([]), None, None, 0.0),
    ],
)
def test_what_binds_is_busy_for_four_fifths_of_the_time_and_hardware_goes_first(
    found: MachineUse, bottleneck: Bottleneck | None, busiest: Bottleneck | None, share: float
) -> None:
    assert (found.bottleneck, found.busiest) == (bottleneck, busiest)
    assert found.busiest_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"settings": {"dispatch": {"policy": "pipeline", "limits": {"sandboxes": 8}}}}, 8),
        ({"settings": {"dispatch": {"policy": "batch", "limits": {"sandboxes": 8}}}}, None),
        ({"settings": {"dispatch": {"policy": "pipeline", "limits": {"sandboxes": None}}}}, None),
        ({"control": "sft_only"}, None),
        (None, None),
    ],
)
def test_the_limit_of_sandboxes_is_read_from_the_settings(config: Json, limit: int | None) -> None:
    assert sandbox_limit(config) == limit


stretches = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(
    st.lists(stretches, max_size=5),
    st.lists(stretches, max_size=5),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 100)), max_size=20),
)
def test_shares_are_shares_and_parts_are_no_longer_than_the_whole(
    jobs: list[tuple[int, int]], updates: list[tuple[int, int]], steps: list[tuple[int, int]]
) -> None:
    at_s, samples = 0, []
    for seconds, percent in steps:
        at_s += seconds
        samples.append(sample(at_s, seconds=seconds, cpu=percent, gpus=[100 - percent]))
    found = used(
        samples,
        rollouts=[rollout(*stretch, sample=place) for place, stretch in enumerate(jobs)],
        work=[update(*stretch) for stretch in updates],
        limit=2,
    )
    assert all(0 <= share <= 1 + 1e-9 for share in (found.learner_share, found.at_limit_share, found.busiest_share))
    for unit in (*found.gpus, *(() if found.cpu is None else (found.cpu,))):
        whole = unit.busy.whole
        assert 0 <= whole.mean <= whole.active_share <= 1 + 1e-9
        assert whole.seconds <= found.seconds + 1e-9
        for part in (unit.busy.rollouts, unit.busy.learner):
            assert part is None or part.seconds <= whole.seconds + 1e-9

"""What a run needed of the cores, from samples of the machine."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from run_stage import EVAL, jobs, ran, with_dispatch, workload

from slipstream.record.hardware import CpuSample, HardwareSample
from slipstream.simulate.recorded_run.cpu_use import cpu_use
from slipstream.simulate.recorded_run.recorded import Recorded, recorded
from slipstream.types import EngineWork

WORK = EngineWork(num_steps=100, num_rows=500, num_held=0, num_prompt=0, seconds=0.8, cpu_s=0.3)
CPU = CpuSample(percent=75.0, cores=4.0, own_cores=0.5)


@pytest.fixture(scope="module")
def run() -> Recorded:
    return recorded(ran(workload(jobs(num_tasks=4)), with_dispatch(EVAL, slots=8)).rollouts, name="r")


def every_second(run: Recorded, sample: HardwareSample) -> list[HardwareSample]:
    first_s, last_s = min(rollout.first_s for rollout in run.rollouts), max(rollout.last_s for rollout in run.rollouts)
    return [replace(sample, at_s=first_s + 1 + number) for number in range(int(last_s - first_s) + 1)]


def per_call(run: Recorded, samples: Sequence[HardwareSample], each_s: float) -> float:
    return each_s * len(samples) / len(run.calls)


def test_what_the_engine_did_not_have_of_the_process_is_the_event_loops(run: Recorded) -> None:
    samples = every_second(run, HardwareSample(at_s=0.0, seconds=1.0, cpu=CPU, work=(WORK,)))
    found = cpu_use(run, samples, engine_cores=1.0)
    assert found is not None
    assert found.front_s == pytest.approx(per_call(run, samples, 0.5 - 0.3))
    assert found.rest_s == pytest.approx(per_call(run, samples, 3.0 - 0.5))
    assert (found.duty, found.alone) == pytest.approx((1.0, 0.3 / 0.8))


def test_an_engine_on_another_device_takes_what_it_took_but_for_the_event_loops_time(run: Recorded) -> None:
    samples = every_second(run, HardwareSample(at_s=0.0, seconds=1.0, cpu=CPU, work=(WORK,)))
    found = cpu_use(run, samples, engine_cores=0.0)
    assert found is not None
    assert found.alone == pytest.approx((0.8 - 0.2) / 0.8)
    assert found.duty == pytest.approx(0.3 / 0.6)
    busy = cpu_use(run, [replace(each, cpu=replace(CPU, own_cores=0.95)) for each in samples], engine_cores=0.0)
    assert busy is not None
    assert (busy.alone, busy.duty) == pytest.approx((0.3 / 0.8, 1.0)), "no less than its own time"


@pytest.mark.parametrize("engine_cores", [0.0, 1.0])
def test_an_engine_in_a_process_of_its_own_leaves_the_runs_to_the_event_loop(
    run: Recorded, engine_cores: float
) -> None:
    samples = every_second(run, HardwareSample(at_s=0.0, seconds=1.0, cpu=CPU, work=(WORK,)))
    found = cpu_use(run, samples, engine_cores=engine_cores, engine_apart=True)
    assert found is not None
    assert found.front_s == pytest.approx(per_call(run, samples, 0.5))
    assert found.rest_s == pytest.approx(per_call(run, samples, 3.0 - 0.5 - 0.3))
    assert (found.duty, found.alone) == pytest.approx((0.0, 0.3 / 0.8 if engine_cores else 1.0))


def test_what_was_before_or_after_the_rollouts_or_beside_a_learner_does_not_count(run: Recorded) -> None:
    samples = every_second(run, HardwareSample(at_s=0.0, seconds=1.0, cpu=CPU, work=(WORK,)))
    found = cpu_use(run, samples, engine_cores=1.0)
    loud = HardwareSample(at_s=samples[-1].at_s + 30.0, seconds=1.0, cpu=replace(CPU, own_cores=9.0))
    assert cpu_use(run, [*samples, loud, replace(loud, at_s=-30.0)], engine_cores=1.0) == found
    spoilt = [replace(samples[0], cpu=replace(CPU, own_cores=9.0)), *samples[1:]]
    learning = [(samples[0].at_s - 0.9, samples[0].at_s - 0.1)]
    apart, clean = (cpu_use(run, these, engine_cores=1.0, learning=learning) for these in (spoilt, samples))
    assert apart == clean and cpu_use(run, spoilt, engine_cores=1.0) != found


def test_without_an_engine_that_tells_nothing_is_known(run: Recorded) -> None:
    samples = every_second(run, HardwareSample(at_s=0.0, seconds=1.0, cpu=CPU))
    assert cpu_use(run, samples, engine_cores=1.0) is None
    assert cpu_use(run, [], engine_cores=1.0) is None
    idle = [replace(each, cpu=replace(CPU, own_cores=0.2), work=(WORK,)) for each in samples]
    assert cpu_use(run, idle, engine_cores=1.0) is None, "less than the engine had cannot be"

import math
from dataclasses import replace
from pathlib import Path

import pytest
from run_stage import CORES, EVAL, SIZES, TRAIN, TRUE, jobs, ran, steps_of, store, with_dispatch, workload

from slipstream.errors import ConfigError
from slipstream.record.hardware import CpuSample, HardwareSample
from slipstream.settings import ModelConfig, TrainConfig
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.predict import Prediction, Simulator, known_of, predict, sentence
from slipstream.simulate.recorded_run.recorded import read_recorded
from slipstream.simulate.recorded_run.replay import Model, calibrated
from slipstream.simulate.workload import SimJob, Workload
from slipstream.types import EndReason

SLOTS = replace(TRUE, slots=8, contexts=8, kv_tokens=8 * 8_192, cores=1.0)
LOCAL = replace(EVAL, model=ModelConfig(kind="local", context_tokens=8_192))
JOBS = jobs(num_tasks=8)
STEPS = jobs(num_tasks=5, phase="train", steps=3)
STEPPED = workload(STEPS, SLOTS, staleness=0, update_s=(6.0, 6.0, 6.0))


def with_slots(num: int) -> ModelConfig:
    return replace(LOCAL.model, engine=replace(LOCAL.model.engine, num_slots=num, num_threads=1))


def training(*, staleness: int = 0, oversample: int = 0) -> TrainConfig:
    return replace(TRAIN, staleness=staleness, oversample=oversample, samples=4 - oversample, model=with_slots(8))


SLOTTED = replace(LOCAL, model=with_slots(8), dispatch=replace(LOCAL.dispatch, slots=10))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """Fitted on a run whose engine has a machine of its own."""
    return Simulator.of(store(tmp_path_factory.mktemp("runs") / "r", ran(workload(JOBS), EVAL).rollouts, EVAL))


@pytest.fixture(scope="module")
def slotted(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """Fitted on a run whose engine has slots, and works on the sandboxes' cores."""
    rollouts = ran(workload(JOBS, SLOTS), SLOTTED).rollouts
    return Simulator.of(store(tmp_path_factory.mktemp("runs") / "r", rollouts, SLOTTED))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    """Fitted on a training run of three steps."""
    rollouts = ran(STEPPED, training()).rollouts
    return Simulator.of(store(tmp_path_factory.mktemp("runs") / "r", rollouts, training()))


FRONT_S = 0.12
ACCOUNTED = replace(SLOTS, duty=1.0, call_s=0.0)


def accounted(engine: EngineSpec = ACCOUNTED) -> Workload:
    """On a machine whose run's own process is a good part of what calls wait for."""
    of = workload(JOBS, engine)
    return replace(of, machine=replace(of.machine, front_s=FRONT_S))


def with_cores_measured(engine: EngineSpec, folder: Path) -> Simulator:
    """Fitted on such a run, whose engine told what its steps took, and whose cores were measured."""
    true = ran(accounted(engine), SLOTTED)
    makespan_s = true.outcome.makespan_s
    steps = steps_of(engine, SIZES, slower=2.0)
    num_calls = sum(len(job.turns) for job in JOBS)
    own_cores = (sum(each.cpu_s for each in steps) + FRONT_S * num_calls) / makespan_s
    chores_s = sum(job.init.cpu_s + job.grade.cpu_s + sum(turn.tool_cpu_s for turn in job.turns) for job in JOBS)
    percent = 100 * (own_cores + chores_s / makespan_s) / CORES
    cpu = CpuSample(percent=percent, cores=CORES, own_cores=own_cores)
    sample = HardwareSample(at_s=makespan_s, seconds=makespan_s, cpu=cpu, work=tuple(steps))
    return Simulator.of(store(folder, true.rollouts, SLOTTED, samples=[sample]))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    return with_cores_measured(ACCOUNTED, tmp_path_factory.mktemp("runs") / "r")


def close(found: Prediction, true_s: float, rel: float) -> None:
    assert found.predicted is not None
    assert found.predicted.makespan_s == pytest.approx(true_s, rel=rel)


@pytest.mark.parametrize(
    ("changes", "dispatch"),
    [
        (["dispatch.policy=bounded", "dispatch.slots=4"], {"policy": "bounded", "slots": 4}),
        (["dispatch.policy=bounded", "dispatch.slots=32"], {"policy": "bounded", "slots": 32}),
        (["dispatch.policy=batch"], {"policy": "batch"}),
        (["dispatch.policy=adaptive"], {"policy": "adaptive"}),
    ],
)
def test_another_policy_is_predicted(plain: Simulator, changes: list[str], dispatch: dict[str, object]) -> None:
    """Fitted on one policy, held against what the true engine takes under another."""
    found = plain.predict(changes, gains=False)
    assert abs(found.makespan_error) < 0.05 and found.call_error < 0.25
    close(found, ran(workload(JOBS), with_dispatch(EVAL, **dispatch)).outcome.makespan_s, 0.05)


@pytest.mark.parametrize(("policy", "slots"), [("bounded", 4), ("bounded", 24), ("adaptive", 1)])
def test_an_engine_with_slots_on_the_sandboxes_own_machine_is_predicted(
    slotted: Simulator, policy: str, slots: int
) -> None:
    found = slotted.predict([f"dispatch.policy={policy}", f"dispatch.slots={slots}"], gains=False)
    true = ran(workload(JOBS, SLOTS), with_dispatch(SLOTTED, policy=policy, slots=slots)).outcome
    close(found, true.makespan_s, 0.12)
    assert found.predicted is not None and found.predicted.peak_sandboxes == true.peak_live
    if policy != "adaptive":  # it decides by the speed of prompts, which the fit knows less well
        assert found.predicted.again_tokens == pytest.approx(true.reprefill_tokens, rel=0.15, abs=500)


@pytest.mark.parametrize(("policy", "slots"), [("pipeline", 10), ("bounded", 3), ("bounded", 24), ("adaptive", 1)])
def test_a_run_whose_own_process_holds_it_up_is_predicted(measured: Simulator, policy: str, slots: int) -> None:
    """Nothing is scaled until it fits: what was measured is all that there is."""
    found = measured.predict([f"dispatch.policy={policy}", f"dispatch.slots={slots}"], gains=False)
    assert found.front_s == pytest.approx(FRONT_S, rel=0.05) and found.fit.num_steps == len(SIZES)
    assert found.engine_scale == 1.0 and found.chore_scale <= 1.0
    assert abs(found.makespan_error) < 0.08
    true = ran(accounted(), with_dispatch(SLOTTED, policy=policy, slots=slots)).outcome
    close(found, true.makespan_s, 0.1)
    quick = ran(workload(JOBS, replace(ACCOUNTED, duty=0.0)), with_dispatch(SLOTTED, policy=policy, slots=slots))
    assert quick.outcome.makespan_s < 0.85 * true.makespan_s, "it is the process that holds it up"


def test_an_engine_that_hardly_keeps_the_event_loop_waiting_is_found_out(tmp_path: Path) -> None:
    light = replace(ACCOUNTED, duty=0.1)
    found = with_cores_measured(light, tmp_path / "r").predict(
        ["dispatch.policy=bounded", "dispatch.slots=6"], gains=False
    )
    assert found.spec.duty < 0.5 and abs(found.makespan_error) < 0.1
    close(found, ran(accounted(light), with_dispatch(SLOTTED, policy="bounded", slots=6)).outcome.makespan_s, 0.1)


def test_more_slots_of_the_engine_are_predicted(slotted: Simulator) -> None:
    found = slotted.predict(["model.engine.num_slots=16"], gains=False)
    true = workload(JOBS, replace(SLOTS, slots=16, contexts=16, kv_tokens=16 * 8_192))
    close(found, ran(true, SLOTTED).outcome.makespan_s, 0.12)


def test_more_engines_and_cores_are_predicted(plain: Simulator) -> None:
    two = ran(workload(JOBS, engines=2), EVAL).outcome.makespan_s
    close(plain.predict(["engines=2"], gains=False), two, 0.1)
    wide = workload(JOBS)
    wide = replace(wide, machine=replace(wide.machine, cores=2 * CORES))
    close(plain.predict(["cores=8"], gains=False), ran(wide, EVAL).outcome.makespan_s, 0.05)


def test_the_size_of_a_cache_that_nobody_told_is_found(tmp_path: Path) -> None:
    small = replace(TRUE, kv_tokens=12_000)
    true = ran(workload(JOBS, small), EVAL)
    assert true.outcome.reprefill_tokens > 10_000
    found = predict(store(tmp_path / "r", true.rollouts, EVAL), ["dispatch.policy=bounded"], gains=False)
    assert found.spec.kv_tokens == pytest.approx(12_000, rel=0.3)
    assert found.replayed.again_tokens == pytest.approx(true.outcome.reprefill_tokens, rel=0.3)
    assert any("engine.kv_tokens=N" in note for note in found.notes)


def test_a_larger_group_is_drawn_from_the_recorded_one_by_the_seed(plain: Simulator) -> None:
    found = plain.predict(["samples=8"], gains=False)
    assert found.predicted is not None
    assert (found.recorded.num_rollouts, found.predicted.num_rollouts) == (32, 64)
    assert found.predicted.makespan_s > 1.5 * found.replayed.makespan_s
    assert plain.predict(["samples=8"], gains=False) == found
    assert plain.predict(["samples=8"], gains=False, seed=1).predicted != found.predicted
    fewer = plain.predict(["samples=2"], gains=False)
    assert fewer.predicted is not None and fewer.predicted.num_rollouts == 16
    assert "rollouts a second" in sentence(fewer)
    assert (found.left_out.drawn, fewer.left_out.drawn) == (32, 0)


def test_what_holds_a_run_up_is_what_doubling_would_mend(tmp_path: Path) -> None:
    settings = with_dispatch(EVAL, policy="bounded", slots=3)
    found = predict(store(tmp_path / "r", ran(workload(JOBS), settings).rollouts, settings), [])
    assert max(found.gains, key=lambda name: found.gains[name]) == "dispatch.slots"
    assert found.gains["dispatch.slots"] > 0.3 and found.gains["dispatch.limits.sandboxes"] == 0
    assert found.predicted is None
    assert "The bottleneck is dispatch.slots" in sentence(found)


# ---------------------------------------------------------------- training


def test_the_steps_of_a_training_run_wait_for_their_updates(trained: Simulator) -> None:
    found = trained.predict(["staleness=1"], gains=False)
    assert abs(found.makespan_error) < 0.05
    stale = ran(replace(STEPPED, staleness=1), training(staleness=1)).outcome.makespan_s
    close(found, stale, 0.08)
    assert stale < 0.95 * found.replayed.makespan_s, "rollouts go on while the learner works"


def test_over_sampling_is_predicted_and_undone(trained: Simulator, tmp_path: Path) -> None:
    found = trained.predict(["samples=3", "oversample=1"], gains=False)
    kept = ran(replace(STEPPED, keep=3), training(oversample=1))
    close(found, kept.outcome.makespan_s, 0.1)
    assert any(rollout.ending.reason is EndReason.CANCELLED for rollout in kept.rollouts)
    cancelled = store(tmp_path / "kept", kept.rollouts, training(oversample=1))
    again = predict(cancelled, [], gains=False)
    assert again.left_out.cancelled > 0
    assert abs(again.makespan_error) < 0.1


def test_held_out_evaluations_are_replayed(tmp_path: Path) -> None:
    def at(version: int) -> tuple[SimJob, ...]:
        return tuple(replace(job, phase="held_out", step=version) for job in jobs(num_tasks=3, samples=2, seed=2))

    of = workload((*at(0), *STEPS, *at(3)), SLOTS, staleness=0, update_s=(2.0, 2.0, 2.0))
    true = ran(of, training())
    assert len(true.rollouts) == len(of.jobs)
    found = predict(store(tmp_path / "r", true.rollouts, training()), [], gains=False)
    assert found.recorded.num_rollouts == len(of.jobs)
    assert abs(found.makespan_error) < 0.05


# ---------------------------------------------------------------- what cannot be asked


def test_what_a_replay_cannot_change_is_refused(plain: Simulator) -> None:
    with pytest.raises(ConfigError, match="a recorded run can be replayed under another"):
        plain.predict(["tasks.num=3"])
    with pytest.raises(ConfigError, match="engines=x: give a whole number above 0"):
        plain.predict(["engines=x"])
    with pytest.raises(ConfigError, match="cores=0: give a number above 0"):
        plain.predict(["cores=0"])
    with pytest.raises(ConfigError, match=r"dispatch\.slots=0"):
        plain.predict(["dispatch.slots=0"])
    with pytest.raises(ConfigError, match=r"dispatch\.polcy"):
        plain.predict(["dispatch.polcy=batch"])


def test_what_had_to_be_assumed_is_told(tmp_path: Path) -> None:
    rollouts = ran(workload(jobs(num_tasks=6)), EVAL).rollouts
    found = predict(store(tmp_path / "r", rollouts, EVAL, cores=None), ["dispatch.limits.cpus=2"], gains=False)
    assert any("number of cores" in note for note in found.notes)
    assert any("memory_mb and cpus are ignored" in note for note in found.notes)


@pytest.mark.parametrize(
    ("device", "num_gpus", "cores"), [("cpu", 1, CORES), ("auto", 1, 0.0), ("auto", 0, CORES), ("cuda", 0, 0.0)]
)
def test_an_engine_has_a_machine_of_its_own_if_it_was_on_a_gpu(
    device: str, num_gpus: int, cores: float, tmp_path: Path
) -> None:
    settings = replace(LOCAL, model=replace(LOCAL.model, engine=replace(LOCAL.model.engine, device=device)))
    reader = store(tmp_path / "r", ran(workload(jobs(num_tasks=1)), EVAL).rollouts, settings, num_gpus=num_gpus)
    known, _ = known_of(reader, settings, read_recorded(reader), None)
    assert known.engine.cores == cores


def test_a_calibration_that_led_away_is_taken_back(plain: Simulator) -> None:
    """Sums that answer to their scale so strongly that a step overshoots: the nearest replay counts."""
    model = replace(plain.model, engine_scale=1.0, chore_scale=1.0)
    calls_s = sum(call.seconds for call in model.run.calls)
    chores_s = sum(piece.seconds for rollout in model.run.rollouts for piece in rollout.pieces)
    tried: list[float] = []

    def again(model: Model) -> tuple[float, float]:
        tried.append(off(model))
        return calls_s * (model.engine_scale / 1.2) ** 5, chores_s * (model.chore_scale / 0.8) ** 5

    def off(model: Model) -> float:
        return abs(math.log(model.engine_scale / 1.2)) + abs(math.log(model.chore_scale / 0.8))

    found = calibrated(model, again)
    assert max(tried) > tried[0], "it did overshoot"
    assert off(found) == min(tried) < tried[0] / 3

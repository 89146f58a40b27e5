"""The benchmark of the whole loop: its changes to a recipe, and the figures of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.bench.loop import LoopBenchLoad, figures, sample_us, settings_of, table
from slipstream.cli.commands import app
from slipstream.config import apply_overrides
from slipstream.errors import ConfigError
from slipstream.recipes import find_recipe
from slipstream.record import RunStore
from slipstream.record.hardware import CpuSample, GpuSample, HardwareSample
from slipstream.seams import LearnerWork, LearnerWorked, RolloutDone
from slipstream.settings import TrainConfig, check_settings
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Span, SpanKind, Verdict


def rollout(step: int, start_s: float, end_s: float) -> Rollout:
    return Rollout(
        job=Job(key=JobKey(phase="train", step=step, task_id="t", sample=0), seed=0),
        attempt=1,
        ending=Ending(reason=EndReason.FINISHED),
        verdict=Verdict(reward=1.0),
        spans=(
            Span(kind=SpanKind.RUN, start_s=start_s, end_s=end_s),
            Span(kind=SpanKind.MODEL, start_s=start_s, end_s=end_s, counts={"sampled": 30}),
        ),
    )


def made_run(folder: Path, *, with_gpu: bool) -> Path:
    """Three steps of 10 s, each of 6 s of rollouts and 4 s of learning; the first is idle, as if it loaded kernels.
    The checkpoint after them takes a minute."""

    async def write() -> None:
        async with RunStore.create(folder, config={}, clock_offset_s=0.0) as store:
            for step in range(3):
                start_s = 10.0 * step
                store.append(RolloutDone(rollout=rollout(step, start_s, start_s + 6)))
                store.append(LearnerWorked(step=step, work=LearnerWork.UPDATE, start_s=start_s + 6, end_s=start_s + 10))
                for second in range(1, 11):
                    gpu = GpuSample(gpu=0, percent=90.0 if step else 0.0, memory_mb=500)
                    store.add_sample(
                        HardwareSample(
                            at_s=start_s + second,
                            seconds=1.0,
                            cpu=CpuSample(percent=30.0, cores=16, own_cores=2, helper_cores=3),
                            gpus=(gpu,) if with_gpu else (),
                        )
                    )
            store.append(LearnerWorked(step=3, work=LearnerWork.CHECKPOINT, start_s=30.0, end_s=90.0))

    asyncio.run(write())
    return folder


def test_figures_are_of_the_steps_after_those_that_are_skipped(tmp_path: Path) -> None:
    told = figures(RunStore.read(made_run(tmp_path / "run", with_gpu=True)), skip=1)
    assert (told["seconds"], told["steps_per_min"], told["rollouts_per_s"]) == (20.0, 6.0, 0.1)
    assert told["sampled_tokens_per_s"] == 3.0
    assert (told["learner_share"], told["update_s"], told["cores"], told["own_cores"]) == (0.4, 4.0, 16, 2)
    assert told["helper_cores"] == 3
    assert (told["binding"], told["busiest"]) == ("gpu", "gpu")
    assert (told["gpu_busy"], told["gpu_in_use"], told["cpu_busy"]) == pytest.approx((0.9, 1.0, 0.3))
    whole = figures(RunStore.read(tmp_path / "run"), skip=0)
    assert (whole["seconds"], whole["binding"]) == (30.0, "neither")
    assert whole["gpu_busy"] == pytest.approx(0.6)


def test_without_a_gpu_its_figures_are_absent(tmp_path: Path) -> None:
    told = figures(RunStore.read(made_run(tmp_path / "run", with_gpu=False)), skip=1)
    assert not [name for name in told if name.startswith("gpu")]
    assert (told["busiest"], told["binding"]) == ("learner", "neither")


def test_every_policy_gets_the_same_settings_but_its_own_name() -> None:
    load = LoopBenchLoad(
        recipe="smollm2", steps=3, seed=5, device="cuda", settings=("dispatch.slots=128", "staleness=1")
    )
    made = {}
    for policy in load.policies:
        config = find_recipe(load.recipe)
        assert isinstance(config, TrainConfig)
        made[policy] = config = apply_overrides(config, settings_of(load, policy))
        check_settings(config)
        assert (config.dispatch.policy, config.dispatch.slots, config.staleness) == (policy, 128, 1)
        assert (config.steps, config.seed, config.model.engine.device) == (3, 5, "cuda")
        assert (config.held_out.source, config.hardware.every_s) == ("", 0.5)
    assert list(made) == ["bounded", "pipeline", "adaptive"]


def test_the_table_has_a_column_for_each_policy() -> None:
    lines = table({"steps": 4, "a": {"x": 1.5, "binding": "gpu"}, "b": {"x": 2.0, "y": None}}, ["a", "b"])
    assert lines == [
        "steps                  4",
        "                                 a           b",
        "x                            1.500       2.000",
        "binding                        gpu           -",
        "y                                -           -",
    ]


def test_a_sample_costs_something() -> None:
    assert sample_us(num=3) > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policies", "adaptive,fast"], '--policies "fast" is unknown: give some of batch, bounded'),
        (["--steps", "2", "--skip", "2"], "--skip 2 leaves none of 2 steps"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(arguments: list[str], says: str) -> None:
    ended = CliRunner().invoke(app, ["bench", "loop", *arguments])
    assert isinstance(ended.exception, ConfigError)
    assert str(ended.exception).startswith(says)

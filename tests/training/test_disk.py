"""What a run takes of its disk, and what happens if it is not there."""

import asyncio
import re
from array import array
from pathlib import Path

import pytest

from slipstream.config import apply_overrides
from slipstream.engine.training.learner import TorchLearner
from slipstream.errors import ConfigError
from slipstream.recipes.quickstart import recipe
from slipstream.recipes.quickstart.model import make_model
from slipstream.record import RunStore
from slipstream.settings import TrainConfig
from slipstream.training.disk import check_disk, disk_needs, tensor_shapes
from slipstream.training.run import plan_training, run_training
from slipstream.types import Batch, JobKey, Row, Sample, token_ids

ROW = Row(
    sample=Sample(
        key=JobKey(phase="train", step=0, task_id="t", sample=0),
        branch=0,
        ids=token_ids([1, 2, 3]),
        mask=array("b", [0, 1, 1]),
        logprobs=array("f", [0.0, -3.0, -3.0]),
        versions=array("i", [-1, 0, 0]),
        turns=(0,),
    ),
    advantage=1.0,
    in_loss=True,
)


def settings(*pairs: str) -> TrainConfig:
    return apply_overrides(recipe(), pairs)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        ("learner.method=lora",),
        ("learner.method=lora", "learner.lora.rank=4", 'learner.lora.targets=["q_proj","down_proj"]'),
    ],
    ids=["full", "lora", "targets"],
)
def test_the_sizes_are_those_of_real_checkpoints(tmp_path: Path, pairs: tuple[str, ...]) -> None:
    model = make_model(tmp_path / "model", seed=1)
    config = settings(*pairs)
    needs = disk_needs(config, model)
    learner = TorchLearner(model, config.learner, device="cpu")
    learner.save(tmp_path / "first")
    learner.update(Batch(rows=(ROW,)))
    learner.save(tmp_path / "checkpoint")
    learner.export_folder(tmp_path / "trained")
    sizes = {name: size_of(tmp_path / name) for name in ("first", "checkpoint", "trained")}
    assert sizes["first"] == pytest.approx(needs.first, rel=0.05, abs=60_000)  # names and digests come on top
    assert sizes["checkpoint"] == pytest.approx(needs.checkpoint, rel=0.05, abs=100_000)
    assert sizes["trained"] == pytest.approx(needs.trained, rel=0.05, abs=100_000)


def test_a_run_that_cannot_fit_is_refused_with_all_the_sizes(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", seed=1)
    config = settings("keep_checkpoints=2")
    total = disk_needs(config, model).total
    said = check_disk(config, model, tmp_path / "run", free_bytes=total)
    assert re.fullmatch(
        r"a checkpoint takes 6\.\d MB and the last 2 are kept: up to 2\d\.\d MB with the trained model, and "
        r"2\d\.\d MB of the disk are free",
        said,
    )
    with pytest.raises(
        ConfigError, match=r"are free: lower keep_checkpoints, free some space, or put the run on another"
    ):
        check_disk(config, model, tmp_path / "run", free_bytes=total - 1)
    # What the run has written already is not needed twice.
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "part").write_bytes(b"x")
    assert check_disk(config, model, tmp_path / "run", free_bytes=total - 1)


def test_a_run_says_what_it_is_going_to_take_before_it_computes_anything(tmp_path: Path) -> None:
    plan = plan_training(settings("steps=0", "warm_start.source=", "held_out.source=", "tasks.num=2", "groups=2"))
    had_checkpoints: list[tuple[str, bool]] = []

    def on_status(said: str) -> None:
        had_checkpoints.append((said, (tmp_path / "run" / "checkpoints").exists()))

    def open_store() -> RunStore:
        return RunStore.create(tmp_path / "run", config={})

    asyncio.run(run_training(plan, open_store, on_status=on_status))
    assert [there for said, there in had_checkpoints if said.startswith("a checkpoint takes ")] == [False]
    assert (tmp_path / "run" / "checkpoints").exists()


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ConfigError, match="cannot be read"):
        tensor_shapes(tmp_path)

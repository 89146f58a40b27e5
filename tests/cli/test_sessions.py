"""A run is resumed by the command that began it, and by no other."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cli_stage import refused

from slipstream.cli.sessions import Session, find_session
from slipstream.config import to_json
from slipstream.errors import ConfigError
from slipstream.recipes import find_recipe
from slipstream.record import RunStore
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.training.checkpoints import Checkpoints

EVALUATION, TRAINING = find_recipe("demo"), find_recipe("quickstart")


def begun(config: EvalConfig | TrainConfig, runs: Path) -> Path:
    """A run of these settings in which nothing was done yet."""
    session: Session[Any] = Session(config, runs)

    async def begin() -> Path:
        async with session.open_store("digest") as store:
            return store.folder

    return asyncio.run(begin())


def stored(folder: Path, config: dict[str, Any]) -> Path:
    async def store() -> None:
        async with RunStore.create(folder, config=config):
            pass

    asyncio.run(store())
    return folder


@pytest.mark.parametrize(
    ("config", "other", "said"),
    [
        (EVALUATION, TrainConfig, "an evaluation: slipstream eval"),
        (TRAINING, EvalConfig, "a training run: slipstream train"),
    ],
)
@pytest.mark.parametrize("is_on_record", [True, False])
def test_another_command_is_told_which_one_goes_on_with_a_run(
    tmp_path: Path,
    config: EvalConfig | TrainConfig,
    other: Any,
    said: str,
    is_on_record: bool,
) -> None:
    runs = tmp_path / "my runs"
    runs.mkdir()
    if is_on_record:
        folder = begun(config, runs)
    else:
        folder = stored(runs / "old", {"settings": to_json(config), "tasks_digest": "digest"})
    own: Session[Any] = find_session(type(config), None, [], resume="latest", runs=runs)
    assert (own.config, own.folder) == (config, folder)
    with pytest.raises(ConfigError) as raised:
        find_session(other, None, [], resume=folder.name, runs=runs)
    assert str(raised.value) == f"the run {folder} is {said} --resume '{folder}'"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"control": "shuffled_reward", "settings": to_json(TRAINING)},
        {"driven": True, "settings": to_json(EVALUATION)},
    ],
)
def test_a_run_that_no_command_began_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    stored(tmp_path / "other", config)
    with pytest.raises(ConfigError, match="was started by neither `eval` nor `train`"):
        find_session(EvalConfig, None, [], resume="other", runs=tmp_path)
    with pytest.raises(ConfigError, match="was started by neither `eval` nor `train`"):
        find_session(TrainConfig, None, [], resume="other", runs=tmp_path)


def test_a_change_on_resume_is_on_record_and_holds_from_then_on(tmp_path: Path) -> None:
    folder = begun(TRAINING, tmp_path)
    for pairs in (["steps=60", "base_url="], ["dispatch.slots=3"]):
        session: Session[Any] = find_session(TrainConfig, pairs[0], pairs[1:], resume="latest", runs=tmp_path)
        asyncio.run(session.open_store("digest").aclose())
    resumed = find_session(TrainConfig, None, [], resume="latest", runs=tmp_path)
    assert (resumed.config.steps, resumed.config.dispatch.slots, resumed.changes) == (60, 3, ())
    kept: Any = RunStore.read(folder).config()
    assert [(each["key"], each["was"], each["now"]) for each in kept["changed"]] == [
        ("steps", 24, 60),
        ("dispatch.slots", 32, 3),
    ]
    assert (kept["command"], kept["tasks_digest"]) == ("train", "digest")
    back = find_session(TrainConfig, "quickstart", [], resume="latest", runs=tmp_path)
    assert [(change.key, change.was, change.now) for change in back.changes][-1] == ("steps", 60, 24)


def test_train_does_not_train_inside_an_evaluation(tmp_path: Path) -> None:
    folder = begun(EVALUATION, tmp_path / "runs")
    before = RunStore.read(folder).counts()
    assert "slipstream eval --resume" in refused("train", "--resume", "latest", cwd=tmp_path)
    assert RunStore.read(folder).counts() == before


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_new_run_is_forgotten_unless_it_has_a_checkpoint(tmp_path: Path, has_checkpoint: bool) -> None:
    session: Session[Any] = Session(TRAINING, tmp_path)

    async def begin() -> Path:
        async with session.open_store("digest") as store:
            if has_checkpoint:
                Checkpoints.of_run(store.folder).path(0).mkdir(parents=True)
            return store.folder

    folder = asyncio.run(begin())
    session.forget_if_empty()
    assert folder.exists() == has_checkpoint

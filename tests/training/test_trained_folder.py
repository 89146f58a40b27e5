"""What a run trained: a folder that carries its prompt settings, and the command that evaluates it."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from slipstream.cli.displays.training import evaluation_of
from slipstream.config import apply_overrides
from slipstream.evaluation import plan_evaluation, run_evaluation
from slipstream.recipes import find_recipe
from slipstream.record import RunReader, RunStore
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.training.run import TrainReport, plan_training, run_training
from slipstream.types import TokenIds

COINS = f"{Path(__file__).parents[1] / 'faults' / 'coin_tasks.py'}:coin_tasks"
SMALL = ["steps=0", "groups=2", "samples=2", f"tasks.source={COINS}", "tasks.num=2", f"held_out.source={COINS}",
         "held_out.num=2", "seed=5", "hardware.every_s=0", "model.max_tokens=8", "warm_start.source=", "eval_every=0",
         "model.engine.num_slots=2"]  # fmt: skip
PROMPTED = ["agent.prompt=code", "agent.hints.on=true", "agent.hints.few_turns=false"]


def settings(*pairs: str) -> TrainConfig:
    config = apply_overrides(find_recipe("quickstart"), [*SMALL, *pairs])
    assert isinstance(config, TrainConfig)
    return config


def train(folder: Path, config: TrainConfig) -> TrainReport:
    def open_store() -> RunStore:
        return RunStore.open(folder) if RunStore.exists(folder) else RunStore.create(folder, config={})

    return asyncio.run(run_training(plan_training(config), open_store))


def evaluate(folder: Path, config: EvalConfig) -> RunReader:
    plan = plan_evaluation(config)
    asyncio.run(
        run_evaluation(plan, lambda: RunStore.create(folder, config={}), past=None, on_progress=lambda now: None)
    )
    return RunStore.read(folder)


def first_prompts(run: RunReader, phase: str) -> dict[str, TokenIds]:
    return {each.job.key.task_id: each.turns[0].added for each in run.rollouts(phase=phase)}


def evaluation(config: TrainConfig, trained: Path, *pairs: str) -> EvalConfig:
    arguments = evaluation_of(config, trained)
    assert arguments is not None and arguments[:2] == ["eval", "react"]
    wanted = apply_overrides(find_recipe("react"), [*arguments[2:], *pairs])
    assert isinstance(wanted, EvalConfig)
    return wanted


def test_the_printed_command_shows_the_model_what_it_was_trained_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(*PROMPTED)
    trained = train(tmp_path / "run", config).trained
    told = json.loads((trained / "slipstream.json").read_text())
    assert (told["family"], told["family_args"], told["thinking"]) == ("chatml", {"show_tools": False}, "keep")
    assert (told["agent_prompt"], told["hints"]["on"], told["hints"]["few_turns"]) == ("code", True, False)
    with caplog.at_level(logging.WARNING):
        evaluated = evaluate(tmp_path / "eval", evaluation(config, trained))
    assert not caplog.records
    during = first_prompts(RunStore.read(tmp_path / "run"), "held_out")
    assert len(during) == 2 and first_prompts(evaluated, "eval") == during
    # A folder that does not say it leads to other prompts: the model would be asked what it never saw.
    (trained / "slipstream.json").write_text('{"family": "chatml"}')
    assert first_prompts(evaluate(tmp_path / "blind", evaluation(config, trained)), "eval") != during


def test_a_setting_that_differs_from_the_folder_holds_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(*PROMPTED)
    trained = train(tmp_path / "run", config).trained
    asked = ["model.family_args.show_tools=true", "agent.prompt=none"]
    with caplog.at_level(logging.WARNING):
        evaluated = evaluate(tmp_path / "eval", evaluation(config, trained, *asked))
    assert [each.getMessage().partition(",")[0] for each in caplog.records] == [
        "model.family_args.show_tools=true",
        "agent.prompt=none",
    ]
    assert "was trained with false: leave it out if in doubt" in caplog.records[0].getMessage()
    during = first_prompts(RunStore.read(tmp_path / "run"), "held_out")
    assert first_prompts(evaluated, "eval").keys() == during.keys()
    assert all(prompt != during[task_id] for task_id, prompt in first_prompts(evaluated, "eval").items())


def test_with_more_steps_a_finished_run_goes_on_and_its_model_is_exported_again(tmp_path: Path) -> None:
    weights = []
    for steps in (1, 1, 2):
        report = train(tmp_path / "run", settings(f"steps={steps}", "tasks.num=4", "samples=16"))
        assert json.loads((report.trained / "slipstream.json").read_text())["version"] == steps
        assert report.success.keys() >= {0, steps}
        weights.append((report.trained / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]
    (report.trained / "slipstream.json").unlink()  # as a kill leaves it, just before the end
    assert (
        train(tmp_path / "run", settings("steps=2", "tasks.num=4", "samples=16")).trained / "slipstream.json"
    ).exists()

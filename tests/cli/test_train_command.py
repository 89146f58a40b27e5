"""`slipstream train`, as a user types it, and what a training run looks like."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_stage import refused
from rich.console import Console

from slipstream.cli.displays.training import print_training, report_json
from slipstream.dispatch.base import DispatchView
from slipstream.hub.tiny import make_tiny_model
from slipstream.training.loop import TrainProgress
from slipstream.training.run import TrainReport

REPORT = TrainReport(
    steps=20,
    seconds=431.26,
    success={0: 0.25, 10: 0.5, 20: 0.9375},
    trained=Path("runs/x/trained"),
    curve=Path("runs/x/curve.svg"),
)
NOTHING = DispatchView(
    waiting=0, initialising=0, ready=0, running=0, ended=0, grading=0, in_flight=0, live=0, done=0, abandoned=0
)
PROGRESS = TrainProgress(version=0, steps=20, doing="rollouts", view=NOTHING, metrics={}, held_out={})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo"], 'the recipe "demo" is for another command: slipstream eval demo'),
        (["quickstart", "samples=1"], "samples=1: a baseline needs at least two rollouts of a task"),
        (
            ["quickstart", "model.kind=chat"],
            "model.kind=chat: `train` updates the weights",
        ),
        (["quickstart", "model.top_p=0.9"], "training needs the logprobs of what was sampled from"),
        (["quickstart", "model.temperature=0"], "training needs something to choose from"),
        (["quickstart", "deterministic=true", "staleness=1"], "a deterministic run is on policy"),
        (["quickstart", "groups=100000"], "groups=100000, but there are"),
        (["quickstart", "learner.learning_rate=-1"], "learning_rate=-1.0: give a number above 0"),
        (["quickstart", "model.make=", "model.folder=nowhere"], '"nowhere" is neither a model folder'),
        (["quickstart", "model.make=", "model.folder=empty"], "empty"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_run(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    assert said in refused("train", *arguments, cwd=tmp_path)


def test_a_model_that_the_engine_does_not_run_is_refused_before_anything_is_said_of_disks(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", ["hello"], seed=0)
    train = ("train", "quickstart", "model.make=", f"model.folder={model}", "model.family_args={}")
    for path in model.glob("*.safetensors"):
        path.unlink()
    assert "has no weights" in refused(*train, cwd=tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    assert "the embedded engine supports LlamaForCausalLM" in refused(*train, cwd=tmp_path)


def test_eval_does_not_take_a_recipe_to_train(tmp_path: Path) -> None:
    assert "slipstream train quickstart" in refused("eval", "quickstart", cwd=tmp_path)


def test_the_json_has_what_was_promised() -> None:
    told = json.loads(report_json(replace(REPORT, success_sft_only=0.25), Path("runs/x")))
    assert (told["success_before"], told["success_after"]) == (0.25, 0.9375)
    assert (told["success_sft_only"], told["success_shuffled_reward"]) == (0.25, None)
    assert (told["steps"], told["seconds"], told["run"]) == (20, 431.3, "runs/x")
    assert told["success"] == {"0": 0.25, "10": 0.5, "20": 0.9375}


def test_intervals_and_the_rewards_of_steps_are_in_the_json_and_intervals_in_the_table() -> None:
    report = replace(REPORT, intervals={0: (0.1875, 0.3125), 20: (0.875, 1.0)}, rewards={0: 0.25, 1: 0.5})
    told = json.loads(report_json(report, Path("runs/x")))
    assert told["intervals"] == {"0": [0.1875, 0.3125], "20": [0.875, 1.0]}
    assert told["rewards"] == {"0": 0.25, "1": 0.5}
    text = io.StringIO()
    print_training(Console(file=text, width=40), report, Path("runs/x"))
    assert "before         0.250 (0.188 to 0.312) of the held-out tasks solved\n" in text.getvalue()
    assert "after          0.938 (0.875 to 1.000) of the held-out tasks solved\n" in text.getvalue()


def test_the_table_says_before_after_and_how_to_look_at_it() -> None:
    text = io.StringIO()
    print_training(Console(file=text, width=40), REPORT, Path("runs/x"))
    assert text.getvalue() == (
        "before         0.250 of the held-out tasks solved\n"
        "after          0.938 of the held-out tasks solved\n"
        "steps          20\n"
        "time           7:11\n"
        "trained model  runs/x/trained\n"
        "curve          runs/x/curve.svg\n"
        "look at it     slipstream show runs/x\n"
    )


def test_the_table_ends_with_the_command_that_evaluates_what_was_trained() -> None:
    text = io.StringIO()
    print_training(Console(file=text, width=40), REPORT, Path("runs/x"), ["eval", "react", "model.folder=my runs/x"])
    assert text.getvalue().endswith("evaluate it    slipstream eval react 'model.folder=my runs/x'\n")


def test_the_table_counts_the_steps_that_had_nothing_to_learn_from() -> None:
    text = io.StringIO()
    print_training(Console(file=text, width=40), replace(REPORT, num_flat=7), Path("runs/x"))
    assert "steps          20, of which 7 had nothing to learn from\n" in text.getvalue()

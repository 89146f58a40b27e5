"""The report on steps of a trainer: a run store of the scripted stage, and lines by hand as `observe` writes them."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from driven_stage import HERE, Served, make_folder

from slipstream.bridges.client import ClientAnswer, ClientCompleter, Request
from slipstream.bridges.driven import TRAIN, Driver, PromptRequest, driven_settings
from slipstream.bridges.step_report import report
from slipstream.types import StopReason

STEP = 1
SAME = {"tokens": 9, "mean": 0.0, "max": 0.0}
ADVANTAGES = [2 / 3, -2 / 3, 2 / 3, -2 / 3]
"""Every other rollout of `plain` is solved: each is compared with the three others."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four rollouts of one task, recorded as a trainer's manager records them."""
    folder = tmp_path_factory.mktemp("run")
    model = make_folder(tmp_path_factory.mktemp("model") / "model")
    served = Served(model)

    async def ask(request: Request) -> ClientAnswer:
        sampled = await served.complete(request.prompt_ids, request.params, session=request.session)
        return ClientAnswer(ids=sampled.ids, logprobs=sampled.logprobs, is_cut=sampled.stop is StopReason.LENGTH)

    async def main() -> None:
        settings = driven_settings(f"{HERE}:recipe", model_folder=str(model))
        driver = Driver(settings, ClientCompleter(ask, remedy=""), folder=folder / "rollouts")
        try:
            await driver.run([PromptRequest(task_id="plain", num=4)], phase=TRAIN, step=STEP)
        finally:
            await driver.aclose()

    asyncio.run(main())
    weights = folder / f"global_step_{STEP}" / "actor" / "huggingface" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    return folder


def line(**changed: Any) -> dict[str, Any]:
    rows = [
        {"task_id": "plain", "sample": sample, "row": 0, "num_trained": 5, "advantages": [advantage], "outside": False}
        for sample, advantage in enumerate(ADVANTAGES)
    ]
    told = {
        "step": STEP,
        "rows": rows,
        "trainer_against_passed": SAME,
        "update_moved": {"tokens": 9, "mean": 0.1, "max": 0.3},
        "engine_after_sync": SAME,
        "grad_norm": 0.5,
        "seconds": {"gen": 1.25},
    }
    return {**told, **changed}


def reported(folder: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    (folder / "steps.jsonl").write_text(json.dumps(told) + "\n")
    found = report(folder)
    step: dict[str, Any]
    (step,) = found["steps"]
    assert found["passed"] == step["passed"] == (not step["failed"])
    return step


def test_a_step_that_is_as_it_should_be_passes(stored: Path) -> None:
    step = reported(stored, line())
    assert step["passed"]
    assert (step["rollouts"], step["rows"], step["groups"], step["mixed_groups"]) == (4, 4, 1, 1)
    assert (step["mean_reward"], step["trained_tokens"]) == (0.5, 20)
    assert step["max_advantage_difference"] < 1e-6
    assert step["seconds"] == {"gen": 1.25}


FAR = {"tokens": 9, "mean": 0.03, "max": 0.1}
NOTHING = {"tokens": 0, "mean": 0.0, "max": 0.0}
ROWS = line()["rows"]


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({"trainer_against_passed": FAR}, "trainer_logprobs"),
        ({"trainer_against_passed": NOTHING}, "trainer_logprobs"),
        ({"engine_after_sync": FAR}, "engine_logprobs"),
        ({"engine_after_restart": FAR}, "restart_has_the_weights"),
        ({"update_moved": SAME}, "update_moved_logprobs"),
        ({"grad_norm": 0.0}, "gradient"),
        ({"rows": [{**ROWS[0], "advantages": [0.667]}, *ROWS[1:]]}, "advantages"),
        ({"rows": [{**ROWS[0], "outside": True}, *ROWS[1:]]}, "advantages"),
        ({"rows": [{**ROWS[0], "sample": 7}, *ROWS[1:]]}, "all_rows_arrived"),
    ],
)
def test_what_is_wrong_with_a_step_is_named(stored: Path, changed: dict[str, Any], failed: str) -> None:
    assert failed in reported(stored, line(**changed))["failed"]


def test_a_step_without_a_checkpoint_of_its_own_fails(stored: Path) -> None:
    before = stored / f"global_step_{STEP - 1}" / "actor" / "huggingface" / "model.safetensors"
    before.parent.mkdir(parents=True)
    before.write_bytes(b"weights")
    assert reported(stored, line())["failed"] == ["checkpoint_has_other_weights"]

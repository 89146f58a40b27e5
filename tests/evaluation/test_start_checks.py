"""What `eval` and `train` ask of a model's chat format before they start, and that every remedy they name works."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bpe_surrogates import bpe

from slipstream.config import apply_overrides
from slipstream.errors import ConfigError
from slipstream.evaluation import evaluate, plan_evaluation
from slipstream.model.scripted import ScriptedModel
from slipstream.model.server import ModelServer
from slipstream.record import RunStore
from slipstream.render.formats.own_templates import OWN_TEMPLATES
from slipstream.render.load import open_renderer
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig, TrainConfig, check_settings
from slipstream.training.run import plan_training
from slipstream.types import Message, Role, ToolCall

QUIRKY = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + ':' + message.content + '<|im_end|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant:' }}{%- endif %}"
)
ARCHITECTURES = {"mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    grading = {"kind": "exact", "expected": "4"}
    rows = [{"id": name, "instruction": "Answer 4.", "tools": ["finish"], "grading": grading} for name in ("a", "b")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def folder(path: Path, family: str, source: str) -> Path:
    path.mkdir()
    bpe(family).save(path / "tokenizer.json")
    tokens = dict(OWN_TEMPLATES[family].special_tokens) if family in OWN_TEMPLATES else {"eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **tokens}))
    (path / "config.json").write_text(json.dumps({"model_type": family, "architectures": [ARCHITECTURES[family]]}))
    return path


def evaluation(tasks: str, model: Path, **settings: object) -> EvalConfig:
    asked = ModelConfig(kind="tokens", name="slipstream", folder=str(model))
    return EvalConfig(name="x", tasks=TasksConfig(source=tasks), model=replace(asked, **settings))  # type: ignore[arg-type]


def training(tasks: str, model: Path, **settings: object) -> TrainConfig:
    asked = replace(ModelConfig(kind="local", folder=str(model)), **settings)  # type: ignore[arg-type]
    # With the local bridge a folder without weights would be refused first.
    return TrainConfig(name="x", tasks=TasksConfig(source=tasks), model=asked, groups=2, samples=2, bridge="tinker")


PLANS: list[Callable[[str, Path], object]] = [
    lambda tasks, model: plan_evaluation(evaluation(tasks, model, family="qwen3")),
    lambda tasks, model: plan_training(training(tasks, model, family="qwen3")),
]


@pytest.mark.parametrize("plan", PLANS, ids=["eval", "train"])
def test_a_format_that_is_not_the_models_stops_the_start_and_the_remedies_work(
    tasks: str, tmp_path: Path, plan: Callable[[str, Path], object]
) -> None:
    model = folder(tmp_path / "model", "qwen3", QUIRKY)
    with pytest.raises(ConfigError) as stopped:
        plan(tasks, model)
    message, remedies = str(stopped.value), stopped.value.remedies
    assert "the family 'qwen3' does not write what the chat template of" in message
    assert "expected" in message and "<|im_start|>" in message
    assert remedies == ("model.family=template", "model.template_mismatch=allow")
    for remedy in remedies:
        assert remedy in message
        plan_evaluation(apply_overrides(evaluation(tasks, model, family="qwen3"), [remedy]))
        plan_training(apply_overrides(training(tasks, model, family="qwen3"), [remedy]))


def test_what_a_template_cannot_keep_is_told_at_the_start(
    tasks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan_evaluation(evaluation(tasks, folder(tmp_path / "model", "qwen3", QUIRKY)))
    (told,) = (record.getMessage() for record in caplog.records if "as template" in record.getMessage())
    assert "does not show tools: they are described in the system message" in told


def test_a_template_that_is_left_by_choice_is_no_mismatch(tasks: str, tmp_path: Path) -> None:
    plain = QUIRKY.replace(":", "\\n").replace("+ '<|im_end|>'", "+ '<|im_end|>\\n'")
    model = folder(tmp_path / "model", "qwen3", plain)
    assert open_renderer(model).family == "chatml"
    for args in ({"show_tools": False}, {"default_system": "You are small."}):
        plan_evaluation(evaluation(tasks, model, family_args=args))


def test_a_mistral_folder_is_sent_nowhere_in_circles(tasks: str, tmp_path: Path) -> None:
    """The embedded engine does not run it; what it says instead works for `eval`, and for `train`."""
    from slipstream.wiring.models import open_engine

    model = folder(tmp_path / "model", "mistral", OWN_TEMPLATES["mistral"].source)
    with pytest.raises(ConfigError, match=r"the embedded engine supports .*, not MistralForCausalLM") as refused:
        open_engine(evaluation(tasks, model, kind="local").model)
    assert re.findall(r"[\w.]+=\w+", str(refused.value)) == ["model.kind=tokens", "bridge=tinker"]

    with pytest.raises(ConfigError, match=r"model.kind=tokens: .*, so set it to local") as refused:
        check_settings(training(tasks, model, kind="tokens"))
    assert re.findall(r"[\w.]+=\w+", str(refused.value)) == ["model.kind=tokens", "bridge=tinker"]
    plan_training(replace(training(tasks, model), bridge="tinker"))

    renderer = open_renderer(model)
    done = Message(role=Role.ASSISTANT, calls=(ToolCall(id="callid000", name="finish", arguments={"answer": "4"}),))
    script = ScriptedModel(
        lambda scene: done, decode=renderer.decode, encode=renderer.encode_reply, encode_text=renderer.encode_text
    )

    async def main() -> float | None:
        async with ModelServer(completer=script, decode=renderer.decode) as server:
            asked = evaluation(tasks, model, base_url=server.base_url, max_tokens=256)
            async with RunStore.create(tmp_path / "run", config={}) as store:
                report = await evaluate(asked, store)
        return report.mean_reward

    assert asyncio.run(main()) == 1.0

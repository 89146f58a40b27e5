"""A folder's own chat template, and the renderer that a folder gets."""

import json
from pathlib import Path

import pytest
from bpe_surrogates import bpe

from slipstream.errors import ConfigError
from slipstream.render.load import open_renderer
from slipstream.render.template import ChatTemplate
from slipstream.types import Message, Role, ToolSpec

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are small.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HI = [Message(role=Role.USER, content="Hi <b>&amp;</b>.")]


def folder(path: Path, template: str = CHATML, **config: object) -> Path:
    path.mkdir(exist_ok=True)
    bpe("chatml").save(path / "tokenizer.json")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return path


def test_a_template_is_run_as_it_would_be_elsewhere() -> None:
    text = ChatTemplate(CHATML).render(HI)
    assert text == (
        "<|im_start|>system\nYou are small.<|im_end|>\n<|im_start|>user\nHi <b>&amp;</b>.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tool = ToolSpec(name="t", description="é <b>", parameters={})
    assert ChatTemplate("{{ tools[0] | tojson }}").render(HI, (tool,)) == (
        '{"type": "function", "function": {"name": "t", "description": "é <b>", "parameters": {}}}'
    )


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(ConfigError, match="refuses the conversation"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render(HI)


def test_a_template_that_refuses_or_cannot_be_read_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="refuses the conversation: only two"):
        ChatTemplate("{{ raise_exception('only two') }}").render(HI)
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTemplate("{% if %}")


def test_a_folder_gets_the_renderer_of_its_family_with_its_own_system_message(tmp_path: Path) -> None:
    model = folder(tmp_path / "model")
    renderer = open_renderer(model)
    assert renderer.family == "chatml"
    template = ChatTemplate.load(model)
    assert template is not None
    assert renderer.decode(renderer.render(HI, ())) == template.render(HI)


def test_a_folder_may_name_its_family(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", model_type="qwen3")
    assert open_renderer(model).family == "chatml"  # as its template says, whatever its type
    (model / "slipstream.json").write_text('{"family": "qwen3"}')
    with pytest.raises(ConfigError, match="does not fit the family 'qwen3'"):
        open_renderer(model)


def test_a_template_beside_the_settings_goes_before_theirs(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", template="old")
    (model / "chat_template.jinja").write_text("new")
    template = ChatTemplate.load(model)
    assert template is not None and template.render(HI) == "new"
    assert ChatTemplate.load(tmp_path) is None

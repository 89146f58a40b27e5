"""Qwen2.5's format, written out by hand, and how a folder of it is recognised."""

import json
from pathlib import Path

import pytest
from bpe_surrogates import bpe

from slipstream.render.families import surrogate
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.types import CallProblem, Message, Role, ToolCall, ToolSpec

TOOL = ToolSpec(
    name="bash",
    description="Rün.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}},
)
USER = Message(role=Role.USER, content="Go.")
PROMPT = (
    "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"type": "function", "function": {"name": "bash", "description": "Rün.", "parameters": {"type": "object", '
    '"properties": {"command": {"type": "string"}}}}}\n</tools>\n\n'
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    'tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\nGo.<|im_end|>\n"
)
CALLS = (
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls é"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command": "pwd"}}\n</tool_call>'
)
ANSWERS = (
    "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)
TEMPLATE = (
    "{%- set plain = 'You are Qwen.' %}"
    "{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else plain) }}"
    "{%- if tools %}{{- about_before }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}"
    "{{- about_after }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- for message in messages %}{%- if message.role == 'tool' %}"
    "{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- elif message.role == 'assistant' and message.tool_calls %}"
    "{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}"
    "{%- for call in message.tool_calls %}"
    '{{- \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- elif not (message.role == 'system' and loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""What Qwen2.5's template does, but for a default system message of its own."""


def call(command: str, number: int) -> ToolCall:
    return ToolCall(id=f"call_{number}", name="bash", arguments={"command": command})


def answer(text: str, number: int) -> Message:
    return Message(role=Role.TOOL, content=text, call_id=f"call_{number}", name="bash")


def folder(path: Path, template: str = TEMPLATE) -> Path:
    path.mkdir()
    bpe("qwen2.5").save(path / "tokenizer.json")
    before, _, after = PROMPT.removeprefix("<|im_start|>system\nBe brief.").partition("\n{")
    after = after[after.index("\n</tools>") : after.index("<|im_end|>")]
    source = template.replace("about_before", json.dumps(before)).replace("about_after", json.dumps(after))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, "eos_token": "<|im_end|>"}))
    (path / "config.json").write_text('{"model_type": "qwen2"}')
    return path


def test_a_conversation_with_two_calls_is_written_as_qwen_writes_it() -> None:
    renderer = Renderer("qwen2.5", surrogate("qwen2.5"))
    opening = [Message(role=Role.SYSTEM, content="Be brief."), USER]
    reply = Message(role=Role.ASSISTANT, calls=(call("ls é", 0), call("pwd", 1)))
    prompt = renderer.render(opening, (TOOL,))
    assert renderer.decode(prompt) == PROMPT + "<|im_start|>assistant\n"
    said = renderer.encode_reply(reply)
    assert renderer.decode(said) == CALLS + "<|im_end|>"
    answers = [answer("a", 0), answer("", 1)]
    extension = renderer.extend(prompt, said, answers, (TOOL,))
    assert extension is not None and renderer.decode(extension.added) == "\n" + ANSWERS
    whole = renderer.render([*opening, reply, *answers], (TOOL,))
    assert whole == prompt + said + extension.added
    heard = renderer.parse(said, prompt, (TOOL,), call_prefix="call_")
    assert heard.calls == tuple(
        ToolCall(id=one.id, name="bash", arguments=one.arguments, raw=heard.calls[place].raw)
        for place, one in enumerate(reply.calls)
    )


def test_without_a_system_message_qwens_own_stands() -> None:
    renderer = Renderer("qwen2.5", surrogate("qwen2.5"))
    assert renderer.decode(renderer.render([USER], ())) == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("text", "content", "commands"),
    [
        ('{"name": "bash", "arguments": {"command": "ls"}}', "", ["ls"]),
        ('I look.\n```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```', "I look.", ["ls"]),
        ('{"name": "bash", "parameters": {"command": "a"}}\n{"name": "bash", "arguments": {"command": "b"}}', "", "ab"),
        ('[{"name": "bash", "arguments": {"command": "a"}}]', "", ["a"]),
        ('{"name": "rm", "arguments": {"command": "ls"}}', None, []),
        ('{"name": "bash", "arguments": {"command": "ls"}} is what I would write.', None, []),
        ('{"name": "bash", "arguments": "ls"}', None, []),
        ('{"name": "bash", "arguments": {"command": "ls"}', None, []),
        ("[" * 5_000, None, []),
        ("Say {x}.", None, []),
    ],
)
def test_calls_without_tags_are_read_where_that_is_asked_for(text: str, content: str | None, commands: str) -> None:
    strict, lenient = (
        Renderer("qwen2.5", surrogate("qwen2.5"), args={"bare_calls": bare} if bare else {}) for bare in (False, True)
    )
    prompt, said = strict.render([USER], (TOOL,)), strict.encode_text(text + "<|im_end|>")
    unread = strict.parse(said, prompt, (TOOL,), call_prefix="c")
    assert (unread.content, unread.calls) == (text, ())
    heard = lenient.parse(said, prompt, (TOOL,), call_prefix="c")
    assert heard.content == (text if content is None else content)
    assert [one.arguments["command"] for one in heard.calls] == list(commands)
    assert all(one.problem is None for one in heard.calls)


@pytest.mark.parametrize(
    ("text", "content", "commands"),
    [
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n<tool_call>\nand so on', "", ["ls"]),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "a\nb"}}\n</tool_call>', "", ["a\nb"]),
        ('I do:\n```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```\nThis lists.', "I do:", ["ls"]),
        ('{"name": "rm", "arguments": {}}\n{"name": "bash", "arguments": {"command": "ls"}}', None, ["ls"]),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}', "", ["ls"]),
    ],
)
def test_calls_with_wrong_tags_or_words_around_them_are_read(
    text: str, content: str | None, commands: list[str]
) -> None:
    renderer = Renderer("qwen2.5", surrogate("qwen2.5"), args={"bare_calls": True})
    prompt = renderer.render([USER], (TOOL,))
    heard = renderer.parse(renderer.encode_text(text + "<|im_end|>"), prompt, (TOOL,), call_prefix="c")
    assert [one.arguments["command"] for one in heard.calls] == commands
    assert all(one.problem is None for one in heard.calls)
    assert content is None or heard.content == content


def test_a_tagged_call_is_read_the_same_where_bare_ones_are_read_too() -> None:
    renderer = Renderer("qwen2.5", surrogate("qwen2.5"), args={"bare_calls": True})
    prompt = renderer.render([USER], (TOOL,))
    broken = renderer.parse(renderer.encode_text("<tool_call>\n{"), prompt, (TOOL,), call_prefix="c")
    assert [one.problem for one in broken.calls] == [CallProblem.UNCLOSED]


def test_a_folder_of_qwen2_is_recognised_by_its_template(tmp_path: Path) -> None:
    renderer = open_renderer(folder(tmp_path / "two-five"))
    assert renderer.family == "qwen2.5"
    assert renderer.decode(renderer.render([USER], ())).startswith("<|im_start|>system\nYou are Qwen.<|im_end|>")


def test_a_folder_of_qwen2_without_tools_in_its_template_is_plain_chatml(tmp_path: Path) -> None:
    """Qwen2 shares the type and the tokens of Qwen2.5, and its template knows no tools."""
    plain = (
        "{%- for message in messages %}"
        "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    assert open_renderer(folder(tmp_path / "two", plain)).family == "chatml"

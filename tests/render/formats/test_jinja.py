"""Formats that are driven by a Jinja template: a folder's own, and those written here."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from bpe_surrogates import bpe

from slipstream.doctor.checks import Status
from slipstream.doctor.report import examine_model
from slipstream.errors import ConfigError
from slipstream.render.families import surrogate
from slipstream.render.formats.learned_calls import NAME, PROBE, learn_calls
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.render.template import ChatTemplate
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.types import CallProblem, Json, Message, Role, ToolCall, ToolSpec, token_ids

USER = Message(role=Role.USER, content="Go.")
SYSTEM = Message(role=Role.SYSTEM, content="Be brief.")
TOOL = ToolSpec(
    name="look",
    description="Look.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}},
)
MARKS = ("<s>", "<end>", "<user>", "<bot>", "<tool>", "<call>", "</call>")
UNKNOWN = """{{- bos_token }}
{%- for message in messages %}
  {{- {'user': '<user>', 'assistant': '<bot>', 'tool': '<tool>', 'system': '<user>'}[message.role] }}
  {%- if loop.first and tools %}{{ tools | tojson }}{% endif %}
  {{- message.content }}
  {%- for call in message.tool_calls %}
    {{- '<call>' + call.function.name }}
    {%- for name, value in call.function.arguments | items %}{{ '\\n' + name + ': ' + (value | tojson) }}{% endfor %}
    {{- '</call>' }}
  {%- endfor %}
  {{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<bot>' }}{% endif %}"""
NAMED = UNKNOWN.replace(
    "{%- for name, value in call.function.arguments | items %}{{ '\\n' + name + ': ' + (value | tojson) }}{% endfor %}",
    "{{- ' with ' + (call.function.arguments | tojson) }}",
)


def calls(*places: str) -> Message:
    made = (ToolCall(id=f"callid00{n}", name="look", arguments={"at": at, "n": n}) for n, at in enumerate(places))
    return Message(role=Role.ASSISTANT, calls=tuple(made))


def answers(*texts: str) -> list[Message]:
    return [
        Message(role=Role.TOOL, content=text, call_id=f"callid00{number}", name="look")
        for number, text in enumerate(texts)
    ]


def of_source(source: str, *marks: str) -> Renderer:
    args: dict[str, Json] = {"source": source, "special_tokens": {"bos_token": "<s>", "eos_token": "<end>"}}
    return Renderer("template", ByteTokenizer(marks or MARKS), args=args)


def grown(renderer: Renderer, tools: Sequence[ToolSpec] = (TOOL,)) -> tuple[str, str]:
    """A conversation with two calls, turn by turn and whole."""
    reply, following = calls("a é", "b"), answers("1", "")
    prompt, said = renderer.render([SYSTEM, USER], tools), renderer.encode_reply(reply)
    extension = renderer.extend(prompt, said, following, tools)
    assert extension is not None and extension.num_dropped == 0
    heard = renderer.parse(said, prompt, tools, call_prefix="c")
    assert [(call.name, call.arguments, call.problem) for call in heard.calls] == [
        ("look", {"at": "a é", "n": 0}, None),
        ("look", {"at": "b", "n": 1}, None),
    ]
    whole = renderer.render([SYSTEM, USER, reply, *following], tools)
    return renderer.decode(prompt + said + extension.added), renderer.decode(whole)


TOOL_JSON = (
    '{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", '
    '"properties": {"at": {"type": "string"}, "n": {"type": "integer"}}}}}'
)


def test_mistral_is_written_as_its_template_writes_it() -> None:
    by_turns, whole = grown(Renderer("mistral", surrogate("mistral")))
    assert by_turns == whole
    assert by_turns == (
        f"<s>[AVAILABLE_TOOLS][{TOOL_JSON}][/AVAILABLE_TOOLS][INST]Be brief.\n\nGo.[/INST]"
        '[TOOL_CALLS][{"name": "look", "arguments": {"at": "a é", "n": 0}, "id": "callid000"}, '
        '{"name": "look", "arguments": {"at": "b", "n": 1}, "id": "callid001"}]</s>'
        '[TOOL_RESULTS]{"content": 1, "call_id": "callid000"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS]{"content": , "call_id": "callid001"}[/TOOL_RESULTS]'
    )


def test_the_id_that_mistral_gave_a_call_is_the_one_it_is_answered_by() -> None:
    renderer = Renderer("mistral", surrogate("mistral"))
    prompt = renderer.render([USER], (TOOL,))
    text = '[TOOL_CALLS][{"name": "look", "arguments": {"at": "x"}, "id": "Ab3dEf7hI"}]</s>'
    (call,) = renderer.parse(renderer.encode_text(text), prompt, (TOOL,), call_prefix="c").calls
    answer = Message(role=Role.TOOL, content="1", call_id=call.id, name="look")
    extension = renderer.extend(prompt, renderer.encode_text(text), [answer], (TOOL,))
    assert extension is not None and '"call_id": "Ab3dEf7hI"' in renderer.decode(extension.added)


def test_gemma_3_and_phi_3_are_told_of_tools_in_words() -> None:
    for family, roles in (("gemma3", ("<start_of_turn>user\n", "<start_of_turn>model\n")), ("phi-3", ("<|user|>\n",))):
        by_turns, whole = grown(Renderer(family, surrogate(family)))
        assert by_turns == whole
        assert "Be brief.\n\nYou can use these tools:\n<tools>\n" in by_turns
        assert '<tool_call>\n{"name": "look", "arguments": {"at": "b", "n": 1}}\n</tool_call>' in by_turns
        given = "<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response>"
        assert f"{roles[0]}{given}" in by_turns


def test_phi_4_mini_has_marks_of_its_own() -> None:
    by_turns, whole = grown(Renderer("phi-4-mini", surrogate("phi-4-mini")))
    assert by_turns == whole
    assert by_turns == (
        '<|system|>Be brief.<|tool|>[{"name": "look", "description": "Look.", "parameters": {"type": "object", '
        '"properties": {"at": {"type": "string"}, "n": {"type": "integer"}}}}]<|/tool|><|end|><|user|>Go.<|end|>'
        '<|assistant|><|tool_call|>[{"name": "look", "arguments": {"at": "a é", "n": 0}}, '
        '{"name": "look", "arguments": {"at": "b", "n": 1}}]<|/tool_call|><|end|>'
        "<|tool_response|>1<|end|><|tool_response|><|end|><|assistant|>"
    )


def test_qwen3_coder_writes_calls_as_xml() -> None:
    by_turns, whole = grown(Renderer("qwen3-coder", surrogate("qwen3-coder")))
    assert by_turns == whole
    assert (
        "<tools>\n<function>\n<name>look</name>\n<description>Look.</description>\n<parameters>\n<parameter>\n"
        "<name>at</name>\n<type>string</type>\n</parameter>\n" in by_turns
    )
    assert by_turns.endswith(
        "<|im_start|>assistant\n<tool_call>\n<function=look>\n<parameter=at>\na é\n</parameter>\n<parameter=n>\n0\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=look>\n<parameter=at>\nb\n</parameter>\n"
        "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response>\n<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_deepseek_r1_opens_thinking_and_is_told_its_own_way_to_call() -> None:
    renderer = Renderer("deepseek-r1", surrogate("deepseek-r1"))
    prompt = renderer.decode(renderer.render([USER], (TOOL,)))
    assert prompt.endswith("<｜User｜>Go.<｜Assistant｜><think>\n")
    assert "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜><tool>\n```json" in prompt
    by_turns, _ = grown(renderer)
    assert by_turns.endswith(
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>1<｜tool▁output▁end｜>\n"
        "<｜tool▁output▁begin｜><｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
    after_answer = renderer.encode_text(by_turns[by_turns.index("<｜tool▁outputs▁begin｜>") :])
    said = renderer.encode_text("So.\n</think>\n\nDone.<｜end▁of▁sentence｜>")
    heard = renderer.parse(said, after_answer, (TOOL,), call_prefix="c")
    assert (heard.thinking, heard.content) == ("So.", "Done.")


def folder(path: Path, source: str, family: str = "qwen3") -> Path:
    path.mkdir()
    bpe(family).save(path / "tokenizer.json")
    settings = {"chat_template": source.replace("<end>", "<|im_end|>"), "bos_token": "", "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text('{"model_type": "qwen3"}')
    return path


def test_a_folder_of_no_known_family_is_rendered_through_its_own_template(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", NAMED)
    renderer, checks = examine_model(model)
    assert renderer.family == "template"
    assert [check for check in checks if check.status is Status.FAILED] == []
    template = ChatTemplate.load(model)
    assert template is not None
    messages = [SYSTEM, USER, calls("a"), *answers("1")]
    assert renderer.decode(renderer.render(messages, (TOOL,))) == template.render(messages, (TOOL,))


def test_oddly_sampled_ids_stay_as_they_were() -> None:
    renderer = of_source(NAMED)
    prompt = renderer.render([USER], (TOOL,))
    sampled = token_ids([*b"  hm \n\n", renderer.stop_ids[0]])
    extension = renderer.extend(prompt, sampled, [USER], (TOOL,))
    assert extension is not None and extension.num_dropped == 0
    assert renderer.decode(extension.added) == "<user>Go.<end><bot>"
    cut = renderer.extend(prompt, token_ids([*b"hm"]), [USER], (TOOL,))
    assert cut is not None and renderer.decode(cut.added) == "<end><user>Go.<end><bot>"


def test_a_template_that_moves_what_stands_before_is_a_fork_and_is_told() -> None:
    moving = NAMED.replace("loop.first and tools", "tools and message == (messages | selectattr('role', 'equalto', "
                           "'user') | list)[-1]")  # fmt: skip
    renderer = of_source(moving)
    prompt, said = renderer.render([USER], (TOOL,)), renderer.encode_reply(Message(role=Role.ASSISTANT, content="Hm."))
    more = Message(role=Role.USER, content="More.")
    assert renderer.extend(prompt, said, [more], (TOOL,)) is None
    assert renderer.extend(prompt, renderer.encode_reply(calls("a")), answers("1"), (TOOL,)) is not None
    assert any("rewrites earlier messages once a user message follows" in limit for limit in renderer.limits)
    assert not any("rewrites" in limit for limit in of_source(NAMED).limits)


def test_a_template_that_drops_thinking_forks_only_where_it_is_followed() -> None:
    dropping = NAMED.replace(
        "{{- message.content }}",
        "{%- if message.reasoning_content and (loop.last or messages[loop.index0 + 1].role == 'tool') %}"
        "{{- '<think>' + message.reasoning_content + '</think>' }}{% endif %}{{- message.content }}",
    )
    args: dict[str, Json] = {"source": dropping, "special_tokens": {"bos_token": "<s>"}}
    keeps, follows = (
        Renderer("template", ByteTokenizer(MARKS), args=args, thinking=how) for how in ("keep", "template")
    )
    thought = Message(role=Role.ASSISTANT, content="5", thinking="Two and three.")
    prompt, said = keeps.render([USER], ()), keeps.encode_reply(thought)
    assert keeps.decode(said) == "<think>Two and three.</think>5<end>"
    assert keeps.extend(prompt, said, [USER], ()) is not None
    assert follows.extend(prompt, said, [USER], ()) is None
    assert "Two and three." in keeps.decode(keeps.render([USER, thought, USER], ()))
    assert "Two and three." not in follows.decode(follows.render([USER, thought, USER], ()))


def test_a_template_that_writes_one_call_reads_several_as_a_problem() -> None:
    renderer = of_source(NAMED.replace("in message.tool_calls %}", "in (message.tool_calls or [])[:1] %}"))
    written = '<call>look with {"at": "a", "n": 0}</call>'
    prompt = renderer.render([USER], (TOOL,))
    one, two = (
        renderer.parse(token_ids(renderer.encode_text(f"{written * number}<end>")), prompt, (TOOL,), call_prefix="c")
        for number in (1, 2)
    )
    assert [call.problem for call in one.calls] == [None]
    assert [(call.problem, call.raw) for call in two.calls] == [(CallProblem.SEVERAL, written * 2)]


def test_calls_in_no_known_shape_are_refused_with_what_can_be_done() -> None:
    with pytest.raises(ConfigError, match=r"writes a call as .*zqname.*not a known shape; name another model\.family"):
        of_source(UNKNOWN)


def test_a_template_without_a_token_at_the_end_of_a_reply_is_refused() -> None:
    plain = "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    with pytest.raises(ConfigError, match="does not end a reply with a token of its own"):
        of_source(plain)


def test_the_family_template_needs_a_template(tmp_path: Path) -> None:
    bpe("chatml").save(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="has no chat template"):
        open_renderer(tmp_path, family="template")
    with pytest.raises(ConfigError, match="needs a model folder"):
        open_renderer(None, family="template")


ONE = json.dumps({"name": NAME, "arguments": PROBE})
JSON_ARGS = json.dumps(PROBE)
PAIRS = "<p=zqtext>\nzqvalue\n</p>\n<p=zqcount>\n90817\n</p>\n"
SHAPES = {
    "tags": (f"<call>\n{ONE}\n</call>", f"<call>\n{ONE}\n</call>\n<call>\n{ONE}\n</call>"),
    "list": (f"[CALLS][{ONE}]", f"[CALLS][{ONE}, {ONE}]"),
    "named": (f"[CALLS]{NAME}[ARGS]{JSON_ARGS}", f"[CALLS]{NAME}[ARGS]{JSON_ARGS}[CALLS]{NAME}[ARGS]{JSON_ARGS}"),
    "pairs": (f"<call>\n<f={NAME}>\n{PAIRS}</f>\n</call>", f"<call>\n<f={NAME}>\n{PAIRS}</f>\n</call>\n" * 2),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_are_read_in_the_shape_they_were_learned_from(shape: str) -> None:
    one, two = SHAPES[shape]
    learned = learn_calls(one, two.rstrip("\n"))
    assert learned is not None
    for place in ({"at": "x y", "n": 3}, {"at": ' "<p> \n', "n": -1}, {"at": "", "n": 0}):
        text = one.replace(JSON_ARGS, json.dumps(place)).replace(NAME, "look")
        text = text.replace("zqtext", "at").replace("zqvalue", str(place["at"]))
        text = text.replace("zqcount", "n").replace("90817", str(place["n"]))
        content, (call,) = learned.read(f"So. {text}", [TOOL])
        assert (content.strip(), call.name, call.arguments, call.problem) == ("So.", "look", place, None)
        _, several = learned.read(two.replace(NAME, "look"), [TOOL])
        assert [call.problem for call in several] == [None, None]
    assert learned.read("Just talk {of} [things] <and> marks.", [TOOL]) == ("Just talk {of} [things] <and> marks.", ())


@pytest.mark.parametrize(
    ("shape", "text", "problem"),
    [
        ("tags", "<call>\n{\n</call>", CallProblem.BAD_JSON),
        ("tags", '<call>\n{"name": "look", "arguments": {}}', CallProblem.UNCLOSED),
        ("tags", "<call>\n{", CallProblem.UNCLOSED),
        ("tags", '<call>\n{"arguments": {}}\n</call>', CallProblem.NO_NAME),
        ("tags", '<call>\n{"name": "look", "arguments": 3}\n</call>', CallProblem.BAD_SHAPE),
        ("tags", "<call>" + "[" * 5_000, CallProblem.UNCLOSED),
        ("list", "[CALLS][3]", CallProblem.BAD_SHAPE),
        ("named", "[CALLS]look[ARGS]{", CallProblem.UNCLOSED),
        ("pairs", "<call>\n<f=look>\n<p=n>\nmany\n</p>\n</f>\n</call>", CallProblem.BAD_JSON),
        ("pairs", "<call>\n<f=look>\n<p=n>\n3\n", CallProblem.UNCLOSED),
    ],
)
def test_what_is_no_call_is_told_as_such(shape: str, text: str, problem: CallProblem) -> None:
    one, two = SHAPES[shape]
    learned = learn_calls(one, two.rstrip("\n"))
    assert learned is not None
    _, (call,) = learned.read(text, [TOOL])
    assert call.problem is problem
    assert call.raw.strip() and call.raw.strip() in text

"""Rendering through the real `renderers` library, with the byte tokenizer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import CHATML_TOKENS, ByteTokenizer, FileTokenizer
from slipstream.types import CallProblem, Message, Role, ToolCall, ToolSpec, token_ids

TOOLS = (ToolSpec(name="bash", description="Run.", parameters={"type": "object", "properties": {}}),)
QWEN = Renderer("qwen3", ByteTokenizer())


def parse(text: str) -> Message:
    prompt = QWEN.render([Message(role=Role.USER, content="Go.")], TOOLS)
    return QWEN.parse(QWEN.encode_text(text), prompt, TOOLS, call_prefix="c")


def test_the_prompt_is_the_chat_format_of_the_family() -> None:
    messages = [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="Héllo")]
    assert QWEN.decode(QWEN.render(messages, ())) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHéllo<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_shown_in_the_openai_form() -> None:
    text = QWEN.decode(QWEN.render([Message(role=Role.USER, content="Go.")], TOOLS))
    assert '{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {' in text


def test_every_call_of_a_reply_counts_in_order() -> None:
    message = parse(
        'Both.<tool_call>\n{"name": "bash", "arguments": {"a": 1}}\n</tool_call>'
        '<tool_call>{"name": "finish", "arguments": {}}</tool_call><|im_end|>'
    )
    assert message.content == "Both."
    assert [(call.id, call.name, call.arguments) for call in message.calls] == [
        ("c0", "bash", {"a": 1}),
        ("c1", "finish", {}),
    ]


def test_a_call_inside_thinking_is_no_call() -> None:
    message = parse(
        '<think>Maybe <tool_call>{"name": "bash", "arguments": {}}</tool_call>?</think>'
        '<tool_call>{"name": "finish", "arguments": {}}</tool_call><|im_end|>'
    )
    assert [call.name for call in message.calls] == ["finish"]
    assert "Maybe" in message.thinking


def test_a_call_in_thinking_that_never_ends_is_no_call_either() -> None:
    assert parse('<think>So <tool_call>{"name": "bash", "arguments": {}}</tool_call><|im_end|>').calls == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{bad}</tool_call>", CallProblem.BAD_JSON),
        ('<tool_call>{"name": "bash", "arguments": ', CallProblem.UNCLOSED),
        ('<tool_call>{"arguments": {}}</tool_call>', CallProblem.NO_NAME),
        ('<tool_call>{"name": "bash", "arguments": [1]}</tool_call>', CallProblem.BAD_SHAPE),
        ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', CallProblem.BAD_JSON),
    ],
)
def test_malformed_calls_are_kept_with_their_problem(text: str, problem: CallProblem) -> None:
    (call,) = parse(text).calls
    assert call.problem is problem
    assert call.raw


def test_arguments_written_as_a_json_string_are_read() -> None:
    (call,) = parse('<tool_call>{"name": "bash", "arguments": "{\\"a\\": 1}"}</tool_call>').calls
    assert (call.problem, call.arguments) == (None, {"a": 1})


def test_extending_keeps_every_sampled_id_and_encodes_only_what_is_new() -> None:
    prompt = QWEN.render([Message(role=Role.USER, content="Go.")], TOOLS)
    # Spacing that no template would write: a re-render would change it.
    sampled = QWEN.encode_text('<tool_call>{"name":"bash",  "arguments":{}}</tool_call><|im_end|>')
    extended = QWEN.extend(prompt, sampled, [Message(role=Role.TOOL, content="done", call_id="c0")], TOOLS)
    assert extended is not None
    assert extended.num_dropped == 0
    assert QWEN.decode(extended.added) == (
        "\n<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_user_message_after_thinking_extends_too() -> None:
    prompt = QWEN.render([Message(role=Role.USER, content="Go.")], TOOLS)
    sampled = QWEN.encode_text("<think>Hm.</think>No call.<|im_end|>")
    extended = QWEN.extend(prompt, sampled, [Message(role=Role.USER, content="Call a tool.")], TOOLS)
    assert extended is not None
    assert extended.num_dropped == 0


def test_a_reply_cut_at_its_token_limit_is_closed_with_unsampled_tokens() -> None:
    prompt = QWEN.render([Message(role=Role.USER, content="Go.")], TOOLS)
    sampled = QWEN.encode_text("I was cut off he")
    extended = QWEN.extend(prompt, sampled, [Message(role=Role.USER, content="Go on.")], TOOLS)
    assert extended is not None
    assert QWEN.decode(extended.added).startswith("<|im_end|>\n<|im_start|>user\nGo on.")


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="<>\n"), max_size=30),
    st.dictionaries(st.sampled_from(["command", "path"]), st.text(max_size=30) | st.integers() | st.booleans()),
)
def test_what_is_encoded_as_a_reply_is_parsed_as_the_same_reply(text: str, arguments: dict[str, str | int]) -> None:
    said = Message(
        role=Role.ASSISTANT, content=text.strip(), calls=(ToolCall(id="c0", name="bash", arguments=arguments),)
    )
    prompt = QWEN.render([Message(role=Role.USER, content="Go.")], TOOLS)
    heard = QWEN.parse(QWEN.encode_reply(said), prompt, TOOLS, call_prefix="c")
    assert heard.content == said.content
    assert [(call.name, call.arguments, call.problem) for call in heard.calls] == [("bash", arguments, None)]


@given(st.text())
def test_the_byte_tokenizer_gives_back_what_it_was_given(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_single_ids() -> None:
    tokenizer = ByteTokenizer()
    assert [len(tokenizer.encode(token)) for token in CHATML_TOKENS] == [1] * len(CHATML_TOKENS)
    assert tokenizer.encode("a<|im_end|>") == [97, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(ConfigError, match=r'no family "qwen33" \(did you mean "qwen3"\?\): use one of .*llama-3'):
        Renderer("qwen33", ByteTokenizer())


def test_a_tokenizer_without_the_family_s_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit the family 'qwen3'"):
        Renderer("qwen3", ByteTokenizer(special_tokens=("<|endoftext|>",)))


def test_a_format_that_needs_more_of_a_tokenizer_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="does not fit the family 'default'"):
        Renderer("default", ByteTokenizer())


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer at .*tokenizer\.json"):
        FileTokenizer.load(tmp_path)


def test_ids_are_compact() -> None:
    ids = token_ids(range(1000))
    assert ids.itemsize == 4

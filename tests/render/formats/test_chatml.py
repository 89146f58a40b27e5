"""ChatML for models without marks for tools: what is written, and what is read of what a model wrote."""

import pytest

from slipstream.errors import ConfigError
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.types import CallProblem, Message, Role, ToolCall, ToolSpec

TOOLS = (ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}}),)
CHATML = Renderer("chatml", surrogate("chatml"))


def parse(text: str) -> Message:
    return CHATML.parse(CHATML.encode_text(text), CHATML.encode_text("?"), TOOLS, call_prefix="c")


def test_a_conversation_with_a_call_as_it_is_written() -> None:
    messages = [
        Message(role=Role.SYSTEM, content="Be brief."),
        Message(role=Role.USER, content="2 + 3?"),
        Message(
            role=Role.ASSISTANT, content="Adding.", calls=(ToolCall(id="c", name="add", arguments={"a": 2, "b": "é"}),)
        ),
        Message(role=Role.TOOL, content="5", call_id="c", name="add"),
    ]
    assert CHATML.decode(CHATML.render(messages, TOOLS)) == (
        "<|im_start|>system\nBe brief.\n\nYou can use these tools:\n<tools>\n"
        '{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}\n</tools>\n'
        "To use one, write its name and its arguments as JSON:\n"
        '<tool_call>\n{"name": "<tool>", "arguments": {"<argument>": <value>}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n2 + 3?<|im_end|>\n"
        "<|im_start|>assistant\nAdding.\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n5<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_default_system_message_stands_where_there_is_none() -> None:
    renderer = Renderer("chatml", surrogate("chatml"), args={"default_system": "You are small."})
    text = renderer.decode(renderer.render([Message(role=Role.USER, content="Hi.")], ()))
    assert text == (
        "<|im_start|>system\nYou are small.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_can_be_left_out_of_the_prompt_and_are_still_called() -> None:
    renderer = Renderer("chatml", surrogate("chatml"), args={"show_tools": False})
    assert renderer.decode(renderer.render([Message(role=Role.USER, content="Hi.")], TOOLS)) == (
        "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
    )
    ruled = [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="Hi.")]
    assert renderer.decode(renderer.render(ruled, TOOLS)).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    call = ToolCall(id="c0", name="add", arguments={"a": 2})
    said = renderer.encode_reply(Message(role=Role.ASSISTANT, calls=(call,)))
    (heard,) = renderer.parse(said, said, TOOLS, call_prefix="c").calls
    assert (heard.name, heard.arguments) == ("add", {"a": 2})


@pytest.mark.parametrize(
    ("text", "problem", "name"),
    [
        ('<tool_call>{"name": "add", "arguments": {}}</tool_call>', None, "add"),
        ('<tool_call>{"name": "add"}</tool_call>', None, "add"),
        ('<tool_call>{"name": "add", "arguments": }</tool_call>', CallProblem.BAD_JSON, ""),
        ('<tool_call>{"name": "add", "argum', CallProblem.UNCLOSED, ""),
        ('<tool_call>{"name": "add", "arguments": {}}', CallProblem.UNCLOSED, "add"),
        ('<tool_call>{"arguments": {}}</tool_call>', CallProblem.NO_NAME, ""),
        ('<tool_call>{"name": 3}</tool_call>', CallProblem.NO_NAME, ""),
        ('<tool_call>"add"</tool_call>', CallProblem.BAD_SHAPE, ""),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', CallProblem.BAD_SHAPE, "add"),
        ("<tool_call>[]</tool_call>", CallProblem.BAD_SHAPE, ""),
    ],
)
def test_what_is_wrong_with_a_call_is_said(text: str, problem: CallProblem | None, name: str) -> None:
    (call,) = parse(text).calls
    assert (call.problem, call.name) == (problem, name)
    assert call.raw == text


def test_a_list_of_calls_counts_as_so_many() -> None:
    message = parse('<tool_call>[{"name": "add"}, {"name": "end"}]</tool_call>')
    assert [call.name for call in message.calls] == ["add", "end"]
    assert [call.id for call in message.calls] == ["c0", "c1"]


def test_thinking_is_taken_apart_and_a_call_in_it_is_none() -> None:
    message = parse('<think>\nOr <tool_call>{"name": "add"}</tool_call>?\n</think>\n\nFive.<|im_end|>')
    assert (message.content, message.calls) == ("Five.", ())
    assert message.thinking.startswith("Or <tool_call>")
    assert parse('<think>Or <tool_call>{"name": "add"}</tool_call>').calls == ()


def test_text_around_calls_is_content() -> None:
    message = parse('Before.\n<tool_call>{"name": "add"}</tool_call>\nAfter.<|im_end|>ignored')
    assert message.content == "Before.\nAfter."


def test_what_was_sampled_after_the_end_is_dropped_and_counted() -> None:
    prompt = CHATML.render([Message(role=Role.USER, content="Hi.")], ())
    sampled = CHATML.encode_text("Hello.<|im_end|>abc")
    extension = CHATML.extend(prompt, sampled, [Message(role=Role.USER, content="More.")], ())
    assert extension is not None
    assert extension.num_dropped == 3
    assert CHATML.decode(extension.added) == "\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"


def test_a_broken_call_stands_in_a_history_that_is_rendered_anew() -> None:
    broken = parse('Well.\n<tool_call>{"name": </tool_call><|im_end|>')
    history = [Message(role=Role.USER, content="Go."), broken, Message(role=Role.USER, content="Again.")]
    assert '<|im_start|>assistant\nWell.\n<tool_call>{"name": </tool_call><|im_end|>' in CHATML.decode(
        CHATML.render(history, TOOLS)
    )


def test_a_tokenizer_without_the_marks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not fit a ChatML family: it has no <\|im_start\|>"):
        Renderer("chatml", ByteTokenizer(["<x>"]))

"""GPT-OSS's format, against texts written by hand. `tests/bridges` has the comparison with OpenAI's encoder."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.render.formats.harmony import HARMONY_TOKENS, HarmonyFormat
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.types import CallProblem, Image, Message, Role, ToolCall, ToolSpec

TOKENIZER = ByteTokenizer(HARMONY_TOKENS)
FORMAT = HarmonyFormat(TOKENIZER)
AS_TEMPLATE = HarmonyFormat(TOKENIZER, keep_thinking=False)

SYSTEM = """<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06

Reasoning: medium

# Valid channels: analysis, commentary, final. Channel must be included for every message."""

LOOK = ToolSpec(
    name="look",
    description="Look at a place.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
USER = Message(role=Role.USER, content="Where?")
CALL = ToolCall(id="", name="look", arguments={"at": "x"}, raw='{"at":"x"}')
CALLING = Message(role=Role.ASSISTANT, thinking="Hm.", calls=(CALL,))
TOLD = Message(role=Role.TOOL, name="look", call_id="1", content="nothing")
FINAL = Message(role=Role.ASSISTANT, thinking="Ah.", content="Here.")

ASKED = SYSTEM + "<|end|><|start|>user<|message|>Where?<|end|>"
CALLED = ' to=functions.look<|channel|>commentary <|constrain|>json<|message|>{"at":"x"}<|call|>'
ANSWERED = "<|start|>functions.look to=assistant<|channel|>commentary<|message|>nothing<|end|>"


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def rendered(messages: list[Message], *tools: ToolSpec, with_: HarmonyFormat = FORMAT) -> str:
    return TOKENIZER.decode(with_.render(messages, tools))


def parsed(text: str, tail: str = "<|start|>assistant") -> Message:
    return FORMAT.parse(ids(text), ids(tail), ())


def extended(prompt: str, reply: str, *new: Message, with_: HarmonyFormat = FORMAT) -> str | None:
    got = with_.extend(ids(prompt), ids(reply), new, ())
    return None if got is None else TOKENIZER.decode(got)


# ---------------------------------------------------------------- prompts


def test_a_prompt_ends_where_the_reply_begins() -> None:
    assert rendered([USER]) == ASKED + "<|start|>assistant"


def test_instructions_and_tools_are_the_developers() -> None:
    prompt = rendered([Message(role=Role.SYSTEM, content="Be brief."), USER], LOOK)
    assert prompt == (
        SYSTEM
        + """
Calls to these tools must go to the commentary channel: 'functions'.<|end|><|start|>developer<|message|># Instructions

Be brief.

# Tools

## functions

namespace functions {

// Look at a place.
type look = (_: {
at: string,
}) => any;

} // namespace functions<|end|><|start|>user<|message|>Where?<|end|><|start|>assistant"""
    )


def test_tools_need_no_instructions_and_instructions_no_tools() -> None:
    assert "<|start|>developer<|message|># Tools\n\n## functions" in rendered([USER], LOOK)
    instructions = "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|><|start|>user"
    assert instructions in rendered([Message(role=Role.SYSTEM, content="Be brief."), USER])


def test_what_the_system_block_says_can_be_set() -> None:
    format_ = HarmonyFormat(
        TOKENIZER,
        reasoning_effort="high",
        conversation_date="2025-06-28",
        knowledge_cutoff="2023-01",
        model_identity="You are Slip.",
    )
    assert rendered([], with_=format_).startswith(
        "<|start|>system<|message|>You are Slip.\nKnowledge cutoff: 2023-01\nCurrent date: 2025-06-28\n\n"
        "Reasoning: high\n\n# Valid channels"
    )


def test_a_later_system_message_is_one_more_of_the_developers() -> None:
    prompt = rendered([USER, Message(role=Role.SYSTEM, content="Hurry.")])
    assert prompt == ASKED + "<|start|>developer<|message|># Instructions\n\nHurry.<|end|><|start|>assistant"


def test_a_call_and_its_answer_stand_in_the_history() -> None:
    assert rendered([USER, CALLING, TOLD]) == (
        ASKED
        + "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        + CALLED
        + ANSWERED
        + "<|start|>assistant"
    )


def test_what_is_said_before_a_call_is_commentary() -> None:
    prompt = rendered([USER, Message(role=Role.ASSISTANT, content="Wait.", calls=(CALL,))])
    said = "<|start|>assistant<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant"
    assert prompt == ASKED + said + CALLED + "<|start|>assistant"


def test_arguments_that_were_changed_are_written_anew() -> None:
    edited = replace(CALL, arguments={"at": "ü", "odd": "\ud800"})
    prompt = rendered([USER, Message(role=Role.ASSISTANT, calls=(edited,))])
    assert '<|message|>{"at": "ü", "odd": "\\ud800"}<|call|>' in prompt


def test_a_built_in_tool_that_was_called_answers_by_its_own_name() -> None:
    called = Message(role=Role.ASSISTANT, calls=(ToolCall(id="", name="browser.search", arguments={}),))
    prompt = rendered([USER, called, Message(role=Role.TOOL, name="browser.search", content="no such tool")])
    assert "<|start|>assistant to=browser.search<|channel|>commentary" in prompt
    assert "<|start|>browser.search to=assistant<|channel|>commentary<|message|>no such tool<|end|>" in prompt


@pytest.mark.parametrize(
    "reply",
    [
        ' to=functions.look<|channel|>commentary <|constrain|>json<|message|>{"at":<|call|>',
        " to=functions.look<|channel|>commentary <|constrain|>json<|message|>[1]<|call|>",
        ' to=functions.look<|channel|>commentary <|constrain|>json<|message|>{"at":"x"',
        "<|channel|>commentary<|message|>{}<|call|>",
    ],
)
def test_a_call_gone_wrong_stands_in_the_history_as_it_was_written(reply: str) -> None:
    message = parsed(reply)
    assert message.calls[0].problem is not None
    answer = Message(role=Role.TOOL, name=message.calls[0].name, content="try again")
    assert rendered([USER, message, answer]) == extended(rendered([USER]), reply, answer)


def test_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="images"):
        FORMAT.render([replace(USER, images=(Image(data=b""),))], ())


def test_a_tokenizer_without_the_special_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"<\|start\|>"):
        HarmonyFormat(ByteTokenizer())


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(ConfigError, match="extreme"):
        HarmonyFormat(TOKENIZER, reasoning_effort="extreme")  # type: ignore[arg-type]


# ---------------------------------------------------------------- thinking


def test_thinking_stays_in_the_history() -> None:
    prompt = rendered([USER, CALLING, TOLD, FINAL, USER])
    assert prompt.count("analysis<|message|>") == 2


def test_the_template_drops_thinking_once_the_answer_came() -> None:
    prompt = rendered([USER, CALLING, TOLD, FINAL, USER], with_=AS_TEMPLATE)
    final = "<|start|>assistant<|channel|>final<|message|>Here.<|end|>"
    asked = "<|start|>user<|message|>Where?<|end|><|start|>assistant"
    assert prompt == ASKED + "<|start|>assistant" + CALLED + ANSWERED + final + asked


def test_the_template_keeps_the_thinking_of_a_turn_under_way() -> None:
    messages = [USER, FINAL, USER, FINAL, USER, CALLING, TOLD]
    prompt = rendered(messages, with_=AS_TEMPLATE)
    assert "Ah." not in prompt
    assert "Hm." in prompt
    assert rendered([USER, CALLING, TOLD], with_=AS_TEMPLATE) == rendered([USER, CALLING, TOLD])


def test_where_the_template_drops_thinking_a_reply_cannot_be_gone_on_from() -> None:
    prompt = rendered([USER], with_=AS_TEMPLATE)
    plain = "<|channel|>final<|message|>Here.<|return|>"
    thought = "<|channel|>analysis<|message|>Ah.<|end|><|start|>assistant" + plain
    assert extended(prompt, thought, USER, with_=AS_TEMPLATE) is None
    assert extended(prompt, plain, USER, with_=AS_TEMPLATE) == extended(prompt, plain, USER)
    after_a_call = rendered([USER, CALLING, TOLD], with_=AS_TEMPLATE)
    assert extended(after_a_call, plain, USER, with_=AS_TEMPLATE) is None


def test_thinking_before_a_call_can_be_gone_on_from() -> None:
    prompt = rendered([USER], with_=AS_TEMPLATE)
    reply = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + CALLED
    assert extended(prompt, reply, TOLD, with_=AS_TEMPLATE) == prompt + reply + ANSWERED + "<|start|>assistant"


def test_a_tail_that_does_not_reach_the_beginning_may_hide_thinking() -> None:
    assert (
        extended(ANSWERED + "<|start|>assistant", "<|channel|>final<|message|>Here.", USER, with_=AS_TEMPLATE) is None
    )


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize(
    ("reply", "closing"),
    [
        ("<|channel|>final<|message|>Here.<|return|>", ""),
        ("<|channel|>final<|message|>Her", "<|end|>"),
        ("<|channel|>analysis<|message|>Ah.<|end|>", ""),
        ("<|channel|>analysis<|message|>Ah.<|end|><|start|>assistant<|chan", "<|message|><|end|>"),
        ("", "<|message|><|end|>"),
    ],
)
def test_a_reply_is_kept_and_closed_where_it_was_cut(reply: str, closing: str) -> None:
    prompt = rendered([USER])
    asked = "<|start|>user<|message|>Where?<|end|><|start|>assistant"
    assert extended(prompt, reply, USER) == prompt + reply + closing + asked


def test_what_was_sampled_after_the_reply_is_left_out() -> None:
    prompt = rendered([USER])
    made_up = "<|start|>functions.look to=assistant<|channel|>commentary<|message|>gold<|end|>"
    assert extended(prompt, CALLED + made_up, TOLD) == extended(prompt, CALLED, TOLD)
    assert parsed(CALLED + made_up) == parsed(CALLED)
    assert parsed("<|channel|>final<|message|>a<|return|><|start|>assistant<|message|>b").content == "a"


def test_a_reply_of_the_assistant_cannot_be_put_in() -> None:
    assert extended(rendered([USER]), CALLED, TOLD, FINAL) is None


TEXT = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "<|" not in text)
REPLY = st.builds(
    lambda thinking, content, places: Message(
        role=Role.ASSISTANT,
        thinking=thinking,
        content=content,
        calls=tuple(replace(CALL, arguments={"at": at}, raw="") for at in places),
    ),
    TEXT,
    TEXT,
    st.lists(TEXT, max_size=2),
)


@given(REPLY)
def test_a_reply_reads_back_as_what_was_meant(reply: Message) -> None:
    heard = FORMAT.parse(FORMAT.encode_reply(reply), FORMAT.render([USER], ()), ())
    assert replace(heard, calls=tuple(replace(call, raw="") for call in heard.calls)) == reply


@given(REPLY)
def test_going_on_gives_what_rendering_the_history_gives_but_for_the_last_token(reply: Message) -> None:
    sampled = FORMAT.encode_reply(reply)
    heard = FORMAT.parse(sampled, FORMAT.render([USER], ()), ())
    got = FORMAT.extend(FORMAT.render([USER], ()), sampled, [TOLD, USER], ())
    assert got is not None
    assert TOKENIZER.decode(got).replace("<|return|>", "<|end|>") == rendered([USER, heard, TOLD, USER])
    assert (sampled[-1] == ids("<|return|>")[0]) == (not reply.calls)


# ---------------------------------------------------------------- reading


def test_channels_tell_thinking_from_what_is_said() -> None:
    message = parsed(
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Here.<|return|>"
    )
    assert message == Message(role=Role.ASSISTANT, thinking="One.\n\nTwo.", content="Wait.\n\nHere.")


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.look<|channel|>commentary <|constrain|>json",
        " to=functions.look<|channel|>commentary json",
        " to=functions.look<|channel|>commentary",
        "<|channel|>commentary to=functions.look <|constrain|>json",
        "<|channel|>commentary to=functions.look<|constrain|>json",
        "<|channel|>commentary to=functions.look code",
        "<|channel|>analysis to=functions.look",
        "<|start|>assistant<|channel|>commentary to=functions.look",
        "<|channel|>commentary to=look",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", "<|return|>"])
def test_the_recipient_makes_a_call_wherever_it_stands(header: str, end: str) -> None:
    assert parsed(f'{header}<|message|>{{"at":"x"}}{end}') == Message(role=Role.ASSISTANT, calls=(CALL,))


@pytest.mark.parametrize("name", ["browser.search", "python", "container.exec"])
def test_a_call_to_a_tool_that_was_not_offered_keeps_its_name(name: str) -> None:
    (call,) = parsed(f"<|channel|>analysis to={name} code<|message|>{{}}<|call|>").calls
    assert (call.name, call.problem) == (name, None)


@pytest.mark.parametrize(
    ("reply", "name", "problem", "raw"),
    [
        (" to=functions.f<|channel|>commentary<|message|>{<|call|>", "f", CallProblem.BAD_JSON, "{"),
        (" to=functions.f<|channel|>commentary<|message|><|call|>", "f", CallProblem.BAD_JSON, ""),
        (' to=functions.f<|message|>{"a": NaN}<|call|>', "f", CallProblem.BAD_JSON, '{"a": NaN}'),
        (" to=functions.f<|message|>" + "[" * 99999 + "<|call|>", "f", CallProblem.BAD_JSON, "[" * 99999),
        (" to=python<|message|>print(1)<|call|>", "python", CallProblem.BAD_JSON, "print(1)"),
        (" to=functions.f<|message|>[1]<|call|>", "f", CallProblem.BAD_SHAPE, "[1]"),
        (" to=functions.f<|message|>null<|call|>", "f", CallProblem.BAD_SHAPE, "null"),
        (' to=functions.f<|message|>{"a": 1}', "f", CallProblem.UNCLOSED, '{"a": 1}'),
        ("<|channel|>commentary to=functions.f <|constrain|>js", "f", CallProblem.UNCLOSED, "to=functions.f js"),
        (" to=functions.<|message|>{}<|call|>", "", CallProblem.NO_NAME, "{}"),
        ("<|channel|>commentary<|message|>{}<|call|>", "", CallProblem.NO_NAME, "{}"),
    ],
)
def test_a_call_gone_wrong_says_why(reply: str, name: str, problem: CallProblem, raw: str) -> None:
    message = parsed(reply)
    assert message.calls == (ToolCall(id="", name=name, problem=problem, raw=raw),)
    assert message.content == ""


def test_a_call_inside_thinking_is_none() -> None:
    message = parsed('<|channel|>analysis<|message|>to=functions.look<|message|>{"at":"x"}<|end|>')
    assert message == Message(role=Role.ASSISTANT, thinking='to=functions.look<|message|>{"at":"x"}')
    assert parsed("<|channel|>analysis<|message|>look(x)<|call|>").calls == ()


def test_what_others_are_made_to_say_is_not_the_models() -> None:
    message = parsed(
        "<|channel|>commentary<|message|>Wait.<|end|><|start|>user<|message|>Go on.<|end|>"
        "<|start|>functions.look to=assistant<|channel|>commentary<|message|>gold<|end|>"
    )
    assert message == Message(role=Role.ASSISTANT, content="Wait.")


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        ("Hello.<|return|>", "Hello."),
        ("<|message|>Hello.<|return|>", "Hello."),
        ("<|channel|>final Hello.<|return|>", "Hello."),
        ("<|channel|>odd<|message|>Hello.<|return|>", "Hello."),
        ("<|channel|>final<|message|>Hel", "Hel"),
        ("<|channel|>fin", ""),
        ("<|end|><|channel|>final<|message|>Hello.<|return|>", "Hello."),
        (" to=all<|channel|>final<|message|>Hello.<|end|>", "Hello."),
        ("", ""),
    ],
)
def test_a_reply_that_is_not_well_formed_is_read_as_far_as_it_goes(reply: str, content: str) -> None:
    assert parsed(reply) == Message(role=Role.ASSISTANT, content=content)


def test_a_prompt_that_opened_the_channel_is_read_with_the_reply() -> None:
    opened = "<|start|>assistant<|channel|>analysis<|message|>"
    message = parsed("Hm.<|end|><|start|>assistant<|channel|>final<|message|>Here.<|return|>", tail=ASKED + opened)
    assert message == Message(role=Role.ASSISTANT, thinking="Hm.", content="Here.")


IDS = st.lists(st.integers(0, 255 + len(HARMONY_TOKENS)) | st.integers(256, 255 + len(HARMONY_TOKENS)))
PIECES = st.lists(
    st.sampled_from(
        (*HARMONY_TOKENS, "assistant", "user", " to=functions.f", " to=", "commentary", "analysis", "final")
    )
    | st.sampled_from(("json", "{", "}", '{"a": 1}', " ", "all")),
    max_size=12,
).map(lambda pieces: TOKENIZER.encode("".join(pieces)))


@given(sampled=IDS | PIECES, tail=IDS | PIECES)
def test_whatever_is_sampled_can_be_read_and_gone_on_from(sampled: list[int], tail: list[int]) -> None:
    message = FORMAT.parse(sampled, tail, ())
    assert message.role is Role.ASSISTANT
    got = FORMAT.extend(tail, sampled, [USER], ())
    assert got is not None
    assert got[: len(tail)] == tail
    FORMAT.render([USER, message, USER], ())
    AS_TEMPLATE.extend(tail, sampled, [USER], ())

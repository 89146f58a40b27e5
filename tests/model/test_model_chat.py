"""What every ChatModel does, and how conversations cross the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from model_stage import assistant, chatting, saying, user

from slipstream.errors import ContextOverflow, ModelError
from slipstream.model.base import ChatModel, ChatReply
from slipstream.model.scripted import Script, ScriptedCall, ScriptedChat, replies
from slipstream.model.wire import BadBody, message_from_wire, message_to_wire
from slipstream.types import (
    NO_LIMIT,
    CallProblem,
    Image,
    Json,
    Message,
    Role,
    SampleParams,
    StopReason,
    ToolCall,
    ToolSpec,
)

ADD = ToolSpec(name="add", description="Adds.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = ToolCall(id="c1", name="add", arguments={"a": 1, "b": [None, "é"]})
CONVERSATION = [
    Message(role=Role.SYSTEM, content="Be brief."),
    Message(role=Role.USER, content="Add these.", images=(Image(data=b"\x89PNG", media_type="image/png"),)),
    Message(role=Role.ASSISTANT, content="Adding.", calls=(CALL,)),
    Message(role=Role.TOOL, content="3", call_id="c1", name="add"),
]

Opener = Callable[[Script], AbstractAsyncContextManager[ChatModel]]


@asynccontextmanager
async def in_process(script: Script) -> AsyncIterator[ChatModel]:
    yield ScriptedChat(script)


@asynccontextmanager
async def over_http(script: Script) -> AsyncIterator[ChatModel]:
    async with chatting(ScriptedChat(script)) as (client, _):
        yield client


every_chat = pytest.mark.parametrize("opened", [in_process, over_http])


def plain(message: Message) -> Message:
    """Without what a call was written as, which only the wire knows."""
    calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.calls)
    return Message(role=message.role, content=message.content, thinking=message.thinking, calls=calls)


@every_chat
def test_the_answer_comes_with_thinking_and_calls(opened: Opener) -> None:
    line = Message(role=Role.ASSISTANT, content="So:", thinking="hm", calls=(CALL, ToolCall(id="c2", name="stop")))

    async def main() -> None:
        async with opened(replies(line)) as model:
            reply = await model.chat([user("hi")], [ADD], SampleParams())
            assert plain(reply.message) == line
            assert reply.stop is StopReason.STOP

    asyncio.run(main())


@every_chat
def test_the_conversation_the_tools_and_the_parameters_arrive(opened: Opener) -> None:
    scenes: list[ScriptedCall] = []

    def script(scene: ScriptedCall) -> str:
        scenes.append(scene)
        return "ok"

    params = SampleParams(max_tokens=7, temperature=0.5, top_p=0.9, seed=11, stop_ids=(3,))

    async def main() -> None:
        async with opened(script) as model:
            reply = await model.chat(CONVERSATION, [ADD], params, session="job/2")
            assert plain(reply.message) == assistant("ok")

    asyncio.run(main())
    (scene,) = scenes
    assert scene.tools == (ADD,)
    assert (scene.params, scene.session, scene.num_calls) == (params, "job/2", 0)
    assert [message.content for message in scene.messages] == ["Be brief.", "Add these.", "Adding.", "3"]
    assert scene.messages[1] == CONVERSATION[1]
    assert plain(scene.messages[2]) == CONVERSATION[2]
    assert scene.messages[3] == CONVERSATION[3]


@every_chat
def test_a_failing_model_is_a_model_error(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies()) as model:
            with pytest.raises(ModelError, match="has only 0 lines"):
                await model.chat([user("hi")], [], SampleParams())

    asyncio.run(main())


@every_chat
def test_a_conversation_that_does_not_fit_is_a_context_overflow(opened: Opener) -> None:
    def script(scene: ScriptedCall) -> str:
        raise ContextOverflow("no room")

    async def main() -> None:
        async with opened(script) as model:
            with pytest.raises(ContextOverflow, match="no room"):
                await model.chat([user("hi")], [], SampleParams())
            await model.aclose()
            await model.aclose()

    asyncio.run(main())


class Counted:
    """A ChatModel that knows its tokens and runs into its limit."""

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        return ChatReply(
            message=assistant("x"), stop=StopReason.LENGTH, num_prompt_tokens=12, num_sampled_tokens=params.max_tokens
        )

    async def aclose(self) -> None: ...


def test_counts_and_the_reason_to_stop_cross_the_wire() -> None:
    async def main() -> None:
        async with chatting(Counted()) as (client, _):
            reply = await client.chat([user("hi")], [], SampleParams(max_tokens=5))
            assert (reply.num_prompt_tokens, reply.num_sampled_tokens, reply.stop) == (12, 5, StopReason.LENGTH)

    asyncio.run(main())


# ---------------------------------------------------------------- answers of other servers


def answer(message: Json, finish: Json = "stop") -> Json:
    return {"choices": [{"message": message, "finish_reason": finish}]}


def heard(body: Json, **options: Any) -> ChatReply:
    async def main() -> ChatReply:
        async with chatting(ScriptedChat(replies()), faults=saying(body), **options) as (client, _):
            return await client.chat([user("hi")], [], SampleParams())

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ({"name": "f", "arguments": '{"a": 1}'}, ToolCall(id="c", name="f", arguments={"a": 1}, raw='{"a": 1}')),
        ({"name": "f", "arguments": {"a": 1}}, ToolCall(id="c", name="f", arguments={"a": 1}, raw='{"a": 1}')),
        ({"name": "f", "arguments": ""}, ToolCall(id="c", name="f", raw="")),
        ({"name": "f", "arguments": "{a"}, ToolCall(id="c", name="f", problem=CallProblem.BAD_JSON, raw="{a")),
        ({"name": "f", "arguments": "[1]"}, ToolCall(id="c", name="f", problem=CallProblem.BAD_SHAPE, raw="[1]")),
        ({"name": "f", "arguments": "null"}, ToolCall(id="c", name="f", problem=CallProblem.BAD_SHAPE, raw="null")),
        ({"name": "f", "arguments": [1]}, ToolCall(id="c", name="f", problem=CallProblem.BAD_SHAPE, raw="[1]")),
        ({"name": "", "arguments": "{}"}, ToolCall(id="c", name="", problem=CallProblem.NO_NAME, raw="{}")),
        ({"arguments": "{}"}, ToolCall(id="c", name="", problem=CallProblem.NO_NAME, raw="{}")),
    ],
)
def test_a_call_that_is_none_keeps_what_was_written(function: Json, call: ToolCall) -> None:
    body = answer(
        {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}, "tool_calls"
    )
    assert heard(body).message.calls == (call,)


def test_arguments_that_came_as_an_object_too_deep_to_be_written_again_are_a_problem_of_the_call() -> None:
    arguments: dict[str, Any] = {}
    for _ in range(100_000):
        arguments = {"a": arguments}
    function: Json = {"name": "f", "arguments": arguments}
    message = message_from_wire({"role": "assistant", "tool_calls": [{"id": "c", "function": function}]})
    assert message.calls == (ToolCall(id="c", name="f", problem=CallProblem.BAD_JSON),)


def test_arguments_too_deep_to_parse_are_bad_json() -> None:
    calls: Json = [{"id": "c", "function": {"name": "f", "arguments": "[" * 100_000}}]
    assert heard(answer({"content": None, "tool_calls": calls})).message.calls[0].problem is CallProblem.BAD_JSON


@pytest.mark.parametrize(
    "arguments", ['{"a": NaN}', '{"a": [-Infinity]}', '{"a": {"b": 1e999}}', {"a": float("inf")}, {"a": float("nan")}]
)
def test_a_number_that_json_cannot_say_is_bad_json_and_goes_back_as_json(arguments: Json) -> None:
    written: Json = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
    }
    message = message_from_wire(written)
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    assert message.calls == (ToolCall(id="c", name="f", problem=CallProblem.BAD_JSON, raw=raw),)
    sent = json.loads(json.dumps(message_to_wire(message)))["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"malformed": raw}


def test_a_call_without_an_id_is_given_one() -> None:
    calls: Json = [{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g", "arguments": "{}"}}]
    assert [call.id for call in heard(answer({"tool_calls": calls})).message.calls] == ["call_0", "call_1"]


@pytest.mark.parametrize(
    ("message", "content", "thinking"),
    [
        ({"content": "a", "reasoning_content": "b"}, "a", "b"),
        ({"content": "a", "reasoning": "b"}, "a", "b"),
        ({"content": None}, "", ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "c"}], "reasoning": None}, "ac", ""),
        ({}, "", ""),
    ],
)
def test_answers_come_in_many_shapes(message: Json, content: str, thinking: str) -> None:
    reply = heard(answer(message))
    assert (reply.message.content, reply.message.thinking) == (content, thinking)
    assert reply.message.role is Role.ASSISTANT
    assert reply.num_prompt_tokens == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"choices": []}, r"lacks choices\[0\]"),
        (answer(None), "message should be an object"),
        (answer({"content": "a"}, "content_filter"), "finish_reason 'content_filter'"),
        (answer({"content": "a"}, None), "finish_reason None"),
        ({"error": "x"}, "answered with an error: x; gave up after 6 tries"),
    ],
)
def test_an_answer_that_lacks_something_is_a_model_error(body: Json, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        heard(body)


def test_a_malformed_call_goes_back_in_a_form_that_servers_accept() -> None:
    bad = ToolCall(id="c1", name="", problem=CallProblem.NO_NAME, raw="{oops")
    assert message_to_wire(Message(role=Role.ASSISTANT, calls=(bad,))) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "unnamed", "arguments": '{"malformed": "{oops"}'},
            }
        ],
    }


def test_thinking_goes_back_only_where_asked_for() -> None:
    thought = Message(role=Role.ASSISTANT, content="a", thinking="b")
    assert message_to_wire(thought) == {"role": "assistant", "content": "a"}
    assert message_to_wire(thought, thinking=True) == {"role": "assistant", "content": "a", "reasoning_content": "b"}


def test_an_image_is_a_data_url() -> None:
    assert message_to_wire(CONVERSATION[1]) == {
        "role": "user",
        "content": [
            {"type": "text", "text": "Add these."},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        ],
    }


@pytest.mark.parametrize(
    "wire",
    [
        {"role": "wizard", "content": ""},
        {"content": ""},
        [],
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,%"}}]},
    ],
)
def test_a_message_that_is_none_is_refused(wire: Json) -> None:
    with pytest.raises(BadBody):
        message_from_wire(wire)


def test_another_name_for_the_limit_of_tokens() -> None:
    async def main() -> None:
        async with chatting(Counted(), max_tokens_field="max_completion_tokens") as (client, server):
            reply = await client.chat([user("hi")], [], SampleParams(max_tokens=5))
            assert reply.num_sampled_tokens == 5
            body = server.log[0].body
            assert isinstance(body, dict)
            assert "max_tokens" not in body

    asyncio.run(main())


def test_without_a_limit_the_server_decides() -> None:
    async def main() -> None:
        async with chatting(Counted()) as (client, server):
            await client.chat([user("hi")], [], SampleParams(max_tokens=NO_LIMIT))
            body = server.log[0].body
            assert isinstance(body, dict)
            assert not {"max_tokens", "max_completion_tokens"} & body.keys()

    asyncio.run(main())


def test_what_a_server_is_sent() -> None:
    broken = ToolCall(id="c2", name="", problem=CallProblem.BAD_JSON, raw="{é")
    image = Image(data=b"\x89PNG", media_type="image/png")
    messages = [
        Message(role=Role.USER, content="Add.", images=(image,), name="me", hints=("x",)),
        Message(role=Role.ASSISTANT, thinking="hm", calls=(replace(CALL, raw="<call>"), broken), call_id="x", name="x"),
        Message(role=Role.TOOL, content="3", name="add", is_error=True, thinking="x", calls=(CALL,)),
        Message(role=Role.TOOL, content="3", call_id="c1"),
    ]
    malformed: Json = {"name": "unnamed", "arguments": '{"malformed": "{\\u00e9"}'}
    add: Json = {"name": "add", "arguments": '{"a": 1, "b": [null, "\\u00e9"]}'}
    parts: list[Json] = [
        {"type": "text", "text": "Add."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]
    calls: list[Json] = [
        {"id": "c1", "type": "function", "function": add},
        {"id": "c2", "type": "function", "function": malformed},
    ]
    said: dict[str, Json] = {"role": "assistant", "content": None, "tool_calls": calls}
    assert [message_to_wire(message) for message in messages] == [
        {"role": "user", "content": parts},
        said,
        {"role": "tool", "content": "3", "tool_call_id": "", "name": "add"},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    assert message_to_wire(messages[1], thinking=True) == said | {"reasoning_content": "hm"}

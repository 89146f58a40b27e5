"""What is particular to the scripted models."""

from __future__ import annotations

import asyncio

import pytest
from model_stage import PROMPT, STOP_ID, assistant, decode, encode, scripted, user

from slipstream.errors import ModelError
from slipstream.model.scripted import ScriptedCall, ScriptedChat, ScriptedModel, replies
from slipstream.simulate.clock import run_virtual
from slipstream.types import EngineLoad, Message, Role, SampleParams, StopReason, ToolCall, token_ids


def test_replies_start_again_in_every_session() -> None:
    async def main() -> list[str]:
        model = scripted(replies("one", "two"))
        sessions = ["a", "b", "a", "b"]
        return [decode((await model.complete(PROMPT, SampleParams(), session=session)).ids) for session in sessions]

    assert asyncio.run(main()) == ["one", "one", "two", "two"]


def test_a_script_that_is_over_says_so() -> None:
    async def main() -> None:
        model = scripted(replies("one"))
        await model.complete(PROMPT, SampleParams(), session="a")
        with pytest.raises(ModelError, match="session 'a' has only 1 lines"):
            await model.complete(PROMPT, SampleParams(), session="a")

    asyncio.run(main())


def test_a_script_sees_the_decoded_prompt_and_may_call_tools() -> None:
    def script(scene: ScriptedCall) -> Message:
        call = ToolCall(id="c", name="say", arguments={"text": scene.prompt_text})
        return Message(role=Role.ASSISTANT, calls=(call,))

    async def main() -> str:
        return decode((await scripted(script).complete(PROMPT, SampleParams())).ids)

    assert asyncio.run(main()) == '<call>say{"text": "hi"}</call>'


def test_latency_passes_on_the_clock_of_the_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        model = scripted(lambda scene: "a", latency_s=lambda scene: 60.0 * (scene.num_calls + 1))
        await model.complete(PROMPT, SampleParams())
        assert loop.time() == 60.0
        await model.complete(PROMPT, SampleParams())
        assert loop.time() == 180.0
        chat = ScriptedChat(replies("a"), latency_s=lambda scene: 20.0)
        await chat.chat([user("hi")], [], SampleParams())
        assert loop.time() == 200.0

    run_virtual(main())


def test_a_latency_beyond_the_deadline_is_a_model_error() -> None:
    async def main() -> None:
        model = scripted(replies("a"), latency_s=lambda scene: 60.0)
        with pytest.raises(ModelError, match="longer than 5 s"):
            await model.complete(PROMPT, SampleParams(), timeout_s=5.0)
        assert asyncio.get_running_loop().time() == 5.0

    run_virtual(main())


def test_the_load_is_what_runs() -> None:
    async def main() -> None:
        model = scripted(lambda scene: "a", latency_s=lambda scene: 10.0)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(model.complete(PROMPT, SampleParams()))
            await asyncio.sleep(5.0)
            assert model.load() == EngineLoad(running=3, waiting=0)
        assert model.load() == EngineLoad(running=0, waiting=0)

    run_virtual(main())


def test_the_version_is_that_of_the_start_of_a_call() -> None:
    async def main() -> None:
        model = scripted(replies("a"), latency_s=lambda scene: 10.0, version=1)
        call = asyncio.create_task(model.complete(PROMPT, SampleParams()))
        await asyncio.sleep(5.0)
        model.version = 2
        assert list((await call).versions) == [1, 1]

    run_virtual(main())


def test_raw_text_needs_an_encoder() -> None:
    async def main() -> None:
        model = ScriptedModel(replies(assistant("a"), "b"), decode=decode, encode=encode)
        assert (await model.complete(PROMPT, SampleParams())).ids == token_ids([97, STOP_ID])
        with pytest.raises(ModelError, match="encode_text"):
            await model.complete(PROMPT, SampleParams())

    asyncio.run(main())


def test_a_chat_answers_with_the_line() -> None:
    async def main() -> None:
        chat = ScriptedChat(lambda scene: f"{len(scene.messages)} messages: {scene.prompt_text}")
        reply = await chat.chat([user("a"), user("b")], [], SampleParams())
        assert reply.message == assistant("2 messages: a\nb")
        assert reply.stop is StopReason.STOP

    asyncio.run(main())

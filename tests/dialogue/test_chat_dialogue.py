"""The chat dialogue: messages alone, evaluation only."""

import asyncio

import pytest

from slipstream.dialogue.base import CallContext, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ContextOverflow
from slipstream.model.base import ChatModel
from slipstream.model.scripted import ScriptedCall, ScriptedChat, replies
from slipstream.types import JobKey, Message, Role, SampleParams, Turn


def open_dialogue(model: ChatModel, turns: list[Turn], *, window: int = 1000) -> ChatDialogue:
    terms = CallContext(
        params=SampleParams(),
        max_context_tokens=window,
        gate=OpenGate(),
        key=JobKey(phase="eval", step=0, task_id="t", sample=0),
        attempt=1,
    )
    return ChatDialogue(model, terms, TurnLog(seed=0, on_turn=turns.append, on_span=lambda span: None))


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def test_each_turn_sends_all_messages_and_records_the_new_ones() -> None:
    seen: list[list[str]] = []

    def script(scene: ScriptedCall) -> str:
        seen.append([message.content for message in scene.messages])
        return f"reply {scene.num_calls}"

    turns: list[Turn] = []

    async def main() -> None:
        dialogue = open_dialogue(ScriptedChat(script), turns)
        await dialogue.respond([user("one")], ())
        await dialogue.respond([user("two")], ())
        branch = dialogue.rewrite([user("short")])
        await branch.respond([], ())

    asyncio.run(main())
    assert seen == [["one"], ["one", "reply 0", "two"], ["short"]]
    assert [[message.content for message in turn.messages] for turn in turns] == [
        ["one", "reply 0"],
        ["two", "reply 1"],
        ["short", "reply 2"],
    ]
    assert [(turn.branch, turn.parent) for turn in turns] == [(0, None), (0, 0), (1, 1)]


def test_no_turn_of_it_can_be_trained_on() -> None:
    turns: list[Turn] = []
    asyncio.run(open_dialogue(ScriptedChat(replies("A")), turns).respond([user("hi")], ()))
    assert [(turn.trainable, turn.sampled) for turn in turns] == [(False, None)]


def test_a_window_of_nothing_is_an_overflow() -> None:
    with pytest.raises(ContextOverflow):
        asyncio.run(open_dialogue(ScriptedChat(replies("A")), [], window=0).respond([user("hi")], ()))


def test_a_restored_dialogue_sends_all_messages_and_records_the_new_ones() -> None:
    seen: list[list[str]] = []

    def script(scene: ScriptedCall) -> str:
        seen.append([message.content for message in scene.messages])
        return f"reply {len(scene.messages)}"

    async def main(past: list[Turn], asked: list[str]) -> list[Turn]:
        turns: list[Turn] = []
        dialogue = open_dialogue(ScriptedChat(script), turns)
        if past:
            dialogue.restore(past)
        for text in asked:
            await dialogue.respond([user(text)], ())
        return turns

    whole = asyncio.run(main([], ["a", "b", "c"]))
    before, seen = seen, []
    assert asyncio.run(main(whole[:2], ["c"])) == whole[2:]
    assert seen == before[2:] == [["a", "reply 1", "b", "reply 3", "c"]]

"""Conversations for checking a renderer. Each ends where the model would reply next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.render.base import Traits
from slipstream.types import Json, Message, Role, ToolCall, ToolSpec

TOOLS = (
    ToolSpec(
        name="search",
        description='Look for a text: "exact" or not.',
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "limit": {"type": "integer"},
                "exact": {"type": "boolean"},
            },
            "required": ["query"],
        },
    ),
    ToolSpec(
        name="finish",
        description="End with an answer.",
        parameters={"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    ),
)
NUM_LONG_TURNS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    name: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()

    def needs(self) -> Traits:
        """What a format must be able to represent for it."""
        replies = [message for message in self.messages if message.role is Role.ASSISTANT]
        return Traits(
            thinking=any(reply.thinking for reply in replies),
            several_calls=any(len(reply.calls) > 1 for reply in replies),
            text_with_call=any(reply.content and reply.calls for reply in replies),
        )

    def lacks(self, traits: Traits) -> str:
        """What the format cannot represent of it; empty if it can represent everything."""
        needs = self.needs()
        missing = {
            "thinking": needs.thinking and not traits.thinking,
            "several calls in a reply": needs.several_calls and not traits.several_calls,
            "text beside a call": needs.text_with_call and not traits.text_with_call,
        }
        return ", ".join(name for name, is_missing in missing.items() if is_missing)

    def rounds(self) -> Iterator[tuple[Message, tuple[Message, ...]]]:
        """Each reply with the messages that follow it, up to the next."""
        replies = [place for place, message in enumerate(self.messages) if message.role is Role.ASSISTANT]
        for place, until in zip(replies, [*replies[1:], len(self.messages)], strict=True):
            yield self.messages[place], self.messages[place + 1 : until]

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first reply."""
        replies = [place for place, message in enumerate(self.messages) if message.role is Role.ASSISTANT]
        return self.messages[: replies[0]]


def _system(text: str) -> Message:
    return Message(role=Role.SYSTEM, content=text)


def _user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def _reply(text: str = "", *calls: ToolCall, thinking: str = "") -> Message:
    return Message(role=Role.ASSISTANT, content=text, thinking=thinking, calls=calls)


def _search(number: int, **arguments: Json) -> ToolCall:
    return ToolCall(id=f"functions.search:{number}", name="search", arguments=arguments)


def _found(number: int, text: str) -> Message:
    return Message(role=Role.TOOL, content=text, call_id=f"functions.search:{number}", name="search")


def _long() -> tuple[Message, ...]:
    messages = [_system("Search until you know."), _user("Which page is it on?")]
    for number in range(NUM_LONG_TURNS):
        page = 100 + number
        messages += [_reply("", _search(number, query=f"page {page}")), _found(number, f"{page}: nothing here\n")]
    return tuple(messages)


CONVERSATIONS: tuple[Conversation, ...] = (
    Conversation(name="plain", messages=(_system("Be brief."), _user("Hi."), _reply("Hello."), _user("And you?"))),
    Conversation(name="no system message", messages=(_user("Hi."), _reply("Hello."), _user("And you?"))),
    Conversation(
        name="unicode",
        messages=(
            _system("Größe"),
            _user("naïve 你好 🎉 \u202eright to left\u202c e\u0301"),
            _reply("✓ だから 👩‍👩‍👧"),
            _user("\t tabs\r\nand  blanks \n\n\n\nand lines"),
        ),
    ),
    Conversation(
        name="one call",
        tools=TOOLS,
        messages=(
            _system("Be brief."),
            _user("Where?"),
            _reply("", _search(0, query='a "b" <c> & d\\n', limit=3, exact=True)),
            _found(0, "1: here\n2: there"),
        ),
    ),
    Conversation(
        name="text beside a call",
        tools=TOOLS,
        messages=(
            _system("Be brief."),
            _user("Where?"),
            _reply("I will look.", _search(0, query="where")),
            _found(0, ""),
            _reply("Nothing.", _search(1, query="Where?", exact=False)),
            _found(1, "here"),
        ),
    ),
    Conversation(
        name="several calls",
        tools=TOOLS,
        messages=(
            _system("Be brief."),
            _user("Where?"),
            _reply("", _search(0, query="one"), _search(1, query="two"), _search(2, query="drei ß")),
            _found(0, "1"),
            _found(1, ""),
            _found(2, "3\n"),
        ),
    ),
    Conversation(
        name="text beside several calls",
        tools=TOOLS,
        messages=(
            _system("Be brief."),
            _user("Where?"),
            _reply("I will look twice.", _search(0, query="one"), _search(1, query="two")),
            _found(0, "1"),
            _found(1, "2"),
        ),
    ),
    Conversation(
        name="thinking in a tool cycle",
        tools=TOOLS,
        messages=(
            _system("Be brief."),
            _user("Where?"),
            _reply("", _search(0, query="one"), thinking="First this.\n\nThen that."),
            _found(0, "no"),
            _reply("", _search(1, query="two"), thinking="So not there."),
            _found(1, "yes"),
        ),
    ),
    Conversation(
        name="thinking before a user message",
        messages=(_system("Be brief."), _user("2 + 3?"), _reply("5", thinking="Two and three."), _user("Times 2?")),
    ),
    Conversation(name=f"{NUM_LONG_TURNS} turns", tools=TOOLS, messages=_long()),
)

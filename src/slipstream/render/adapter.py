"""Adapts conversations to what a chat template supports.

Many templates have no tools, calls, tool answers or system message. What a template lacks is written as plain text into
messages that it has: tools into the system message, calls into the reply, answers into a user message, the system
message into the first user message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.errors import ConfigError
from slipstream.render.formats.chatml import about_tools, reply_text
from slipstream.render.template import ChatTemplate
from slipstream.types import Message, Role, ToolCall, ToolSpec

_CALL = ToolCall(id="functions.look:0", name="look", arguments={"what": "asked 7"})
_TOOL = ToolSpec(name="look", description="described 7", parameters={"type": "object", "properties": {}})
_SYSTEM = Message(role=Role.SYSTEM, content="ordered 7")
_USER = Message(role=Role.USER, content="Where?")
_REPLY = Message(role=Role.ASSISTANT, calls=(_CALL,))
_ANSWER = Message(role=Role.TOOL, content="answered 7", call_id=_CALL.id, name=_CALL.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What a template supports; the rest is written as text."""

    system: bool
    tools: bool
    calls: bool
    answers: bool
    example: str = ""
    """A call as the template writes it, for a description of the tools as text."""

    @staticmethod
    def of(template: ChatTemplate) -> Adapter:
        def shows(mark: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> bool:
            try:
                return mark in template.render(messages, tools)
            except ConfigError:
                return False

        calls = shows("asked 7", [_USER, _REPLY, _ANSWER], (_TOOL,))
        return Adapter(
            system=shows("ordered 7", [_SYSTEM, _USER]),
            tools=shows("described 7", [_USER], (_TOOL,)),
            calls=calls,
            answers=calls and shows("answered 7", [_USER, _REPLY, _ANSWER], (_TOOL,)),
        )

    def adapt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        adapted = list(messages)
        if not self.tools and tools:
            adapted = _with_system(adapted, about_tools(tools, self.example))
        if not self.calls:
            adapted = [_call_as_text(message) if message.calls else message for message in adapted]
        if not self.answers:
            adapted = _answers_as_user(adapted)
        if not self.system:
            adapted = _system_as_user(adapted)
        return adapted, tuple(tools) if self.tools else ()

    def lacks(self) -> list[str]:
        """What is written as text, for a message to the user."""
        shown = {
            "a system message: it is put before the first user message": self.system,
            "tools: they are described in the system message": self.tools,
            "calls: they are written as JSON between <tool_call> tags": self.calls,
            "answers of tools: they are given in user messages": self.answers,
        }
        return [what for what, is_shown in shown.items() if not is_shown]


def _with_system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0].role is Role.SYSTEM:
        content = "\n\n".join(part for part in (messages[0].content, text) if part)
        return [replace(messages[0], content=content), *messages[1:]]
    return [Message(role=Role.SYSTEM, content=text), *messages]


def _call_as_text(message: Message) -> Message:
    return replace(message, content=reply_text(replace(message, thinking="")), calls=())


def _answers_as_user(messages: list[Message]) -> list[Message]:
    """Merge consecutive answers, and a user message after them, since such templates require roles to alternate."""
    adapted: list[Message] = []
    after_answer = False
    for message in messages:
        if message.role is Role.TOOL:
            content = f"<tool_response>\n{message.content}\n</tool_response>"
            joint = "\n"
        else:
            content, joint = message.content, "\n\n"
        if after_answer and message.role in (Role.TOOL, Role.USER):
            adapted[-1] = replace(adapted[-1], content=adapted[-1].content + joint + content)
        elif message.role is Role.TOOL:
            adapted.append(Message(role=Role.USER, content=content))
        else:
            adapted.append(message)
        after_answer = message.role is Role.TOOL
    return adapted


def _system_as_user(messages: list[Message]) -> list[Message]:
    if not messages or messages[0].role is not Role.SYSTEM:
        return messages
    system, rest = messages[0], messages[1:]
    if rest and rest[0].role is Role.USER:
        return [replace(rest[0], content=f"{system.content}\n\n{rest[0].content}"), *rest[1:]]
    return [Message(role=Role.USER, content=system.content), *rest]

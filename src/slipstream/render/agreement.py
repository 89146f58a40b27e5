"""Compares a renderer with the model folder's own chat template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slipstream.errors import ConfigError
from slipstream.render.probes import CONVERSATIONS, NUM_LONG_TURNS, Conversation
from slipstream.render.renderer import Renderer
from slipstream.render.template import ChatTemplate
from slipstream.types import Message, Role, ToolCall, ToolSpec

_NUM_SHOWN = 12
"""Tokens shown on each side of a difference."""
SHORT_CONVERSATIONS = tuple(one for one in CONVERSATIONS if one.name != f"{NUM_LONG_TURNS} turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateComparison:
    """The comparison of one conversation. At most one of the two texts is set."""

    conversation: str
    num_tokens: int = 0
    differs: str = ""
    skipped: str = ""
    """Why it cannot be compared."""


def difference(renderer: Renderer, wanted: Sequence[int], got: Sequence[int]) -> str:
    """The first difference between two lists of ids, as text; empty if they are equal."""
    if list(wanted) == list(got):
        return ""
    pairs = enumerate(zip(wanted, got, strict=False))
    place = next((place for place, (one, other) in pairs if one != other), min(len(wanted), len(got)))
    before = renderer.decode(wanted[max(0, place - _NUM_SHOWN) : place])
    one, other = (renderer.decode(ids[place : place + _NUM_SHOWN]) for ids in (wanted, got))
    return f"token {place}, after {before!r}: expected {one!r}, got {other!r}"


def compare(
    faithful: Renderer, template: ChatTemplate, conversations: Iterable[Conversation] = CONVERSATIONS
) -> Iterator[TemplateComparison]:
    """`faithful` is a renderer that follows its family's template in everything, including leaving thinking out."""
    hidden = hidden_parts(template)
    for conversation in conversations:
        name = conversation.name
        if unseen := [part for part in _parts(conversation) if part in hidden]:
            yield TemplateComparison(
                conversation=name, skipped=f"the model's own template does not show {' and '.join(unseen)}"
            )
            continue
        try:
            text = template.render(conversation.messages, conversation.tools)
        except ConfigError as refused:
            yield TemplateComparison(conversation=name, skipped=str(refused))
            continue
        try:
            ids = faithful.render(conversation.messages, conversation.tools)
        except ConfigError as refused:
            yield TemplateComparison(conversation=name, differs=str(refused))
            continue
        differs = difference(faithful, faithful.encode_text(text), ids)
        yield TemplateComparison(conversation=name, num_tokens=len(ids), differs=differs)


def disagreement(faithful: Renderer, template: ChatTemplate) -> str:
    """The first difference in the short conversations, and which one it is in; empty if all agree."""
    for one in compare(faithful, template, SHORT_CONVERSATIONS):
        if one.differs:
            return f"in the conversation {one.conversation!r}, {one.differs}"
    return ""


def _parts(conversation: Conversation) -> list[str]:
    parts = {
        "tools": bool(conversation.tools),
        "calls": any(message.calls for message in conversation.messages),
        "thinking": any(message.thinking for message in conversation.messages),
    }
    return [part for part, is_there in parts.items() if is_there]


def hidden_parts(template: ChatTemplate) -> set[str]:
    """Which of tools, calls and thinking the template never shows, so that they cannot be compared."""
    marks = {"tools": "described 7", "calls": "asked 7", "thinking": "thought 7"}
    tool = ToolSpec(name="search", description=marks["tools"], parameters={"type": "object", "properties": {}})
    call = ToolCall(id="functions.search:0", name="search", arguments={"query": marks["calls"]})
    messages = (
        Message(role=Role.SYSTEM, content="Be brief."),
        Message(role=Role.USER, content="Where?"),
        Message(role=Role.ASSISTANT, thinking=marks["thinking"], calls=(call,)),
        Message(role=Role.TOOL, content="here", call_id=call.id, name=call.name),
    )
    try:
        text = template.render(messages, (tool,))
    except ConfigError:
        return set(marks)
    return {what for what, mark in marks.items() if mark not in text}

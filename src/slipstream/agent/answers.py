"""Formats what the model reads after its calls.

Input: the results of the calls, and hints. Output: the messages with which the next turn starts; and, from recorded
messages, the hints again.

Hints are appended to the last answer: a separate message could make the template render the conversation again, and
fork it. The message keeps the names of its hints, so they can be separated from the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from slipstream.tools.base import Hint, Observation
from slipstream.tools.toolset import CallResult
from slipstream.types import Message, Role

NO_CALL = "There was no tool call in your reply. Act by calling a tool; to end, call finish."

CUT_OFF = "Your reply was cut off at its limit of tokens before it called a tool. Write less, and call a tool."

_HINT = "Hint: "
_GAP = "\n\n"


def answers(results: Sequence[CallResult], *, was_cut: bool = False) -> tuple[Message, ...]:
    """One answer for each call, or a note that there was no call. `was_cut`: the reply was cut off before a call that
    could be run."""
    if not results:
        return (Message(role=Role.USER, content=CUT_OFF if was_cut else NO_CALL),)
    told = tuple([_answer(result) for result in results])
    if was_cut:
        told = (*told[:-1], replace(told[-1], content=_GAP.join((told[-1].content, CUT_OFF))))
    return told


def with_hints(told: Sequence[Message], hints: Sequence[Hint]) -> tuple[Message, ...]:
    """The last message ends with the hints."""
    return (*told[:-1], _hinted(told[-1], hints)) if hints else tuple(told)


def without_hints(told: Sequence[Message], names: Collection[str]) -> tuple[tuple[Message, ...], tuple[Hint, ...]]:
    """The reverse of `with_hints`: the messages without the hints of these names, and those hints."""
    if not told:
        return (), ()
    last, hints = told[-1], list[Hint]()
    while last.hints and last.hints[-1] in names:
        content, gap, text = last.content.rpartition(_GAP + _HINT)
        if not gap:
            text = content + text
            if not text.startswith(_HINT):
                break
            content, text = "", text.removeprefix(_HINT)
        hints.append(Hint(name=last.hints[-1], text=text))
        last = replace(last, content=content, hints=last.hints[:-1])
    return (*told[:-1], last), tuple(reversed(hints))


def _answer(result: CallResult) -> Message:
    call, outcome = result.call, result.outcome
    if not isinstance(outcome, Observation):
        return Message(role=Role.TOOL, content=result.text, call_id=call.id, name=call.name)
    return Message(
        role=Role.TOOL,
        content=result.text,
        call_id=call.id,
        name=call.name,
        images=outcome.images,
        hints=result.hints,
        is_error=outcome.is_error,
    )


def _hinted(message: Message, hints: Sequence[Hint]) -> Message:
    parts = (message.content, *(_HINT + hint.text for hint in hints))
    return replace(
        message,
        content=_GAP.join(part for part in parts if part),
        hints=(*message.hints, *(hint.name for hint in hints)),
    )

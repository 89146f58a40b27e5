"""Rules about a call that would end the rollout. A rule that fires holds it back, once."""

from __future__ import annotations

import re

from slipstream.agent.hints.seen import AnsweredCall, Situation

MIN_TURNS = 2
"""With fewer turns left there is only time to finish."""

_READS = frozenset({"read_file", "search"})
_WRITES = re.compile(
    r"(?:^|[^<>&\d])>{1,2}(?!&)|\b(?:sed\s+(?:-\w+\s+)*-\w*i|tee|patch|git\s+(?:apply|checkout|stash|am|mv|rm|revert)|mv|cp|rm|"
    r"mkdir|touch|ln|python[\d.]*|perl|node|make|npm|pip|black|ruff|isort|install|dd|truncate)\b"
)


def finish_unchanged(situation: Situation) -> str | None:
    if not situation.tools & {"edit", "replace", "write_file"}:
        return None
    answers = [answer for step in situation.steps for answer in step.answers]
    if any(_may_change(answer) for answer in answers if answer.call.name in situation.tools - situation.pure):
        return None
    return "Nothing was changed so far. If that is what the task asks for, call finish again; if not, make the change."


def finish_unchecked(situation: Situation) -> str | None:
    if "bash" not in situation.tools:
        return None
    answers = [answer for step in situation.steps for answer in step.answers]
    edits = [place for place, answer in enumerate(answers) if answer.edited]
    if not edits or any(answer.call.name == "bash" for answer in answers[edits[-1] :]):
        return None
    return "Nothing was run since your last edit. Run the code or its tests, then call finish; or call finish again."


def _may_change(answer: AnsweredCall) -> bool:
    """Whether it changed something, or may have."""
    if answer.call.name in ("edit", "replace", "write_file"):
        return answer.edited
    if answer.call.problem is not None or answer.call.name in _READS:
        return False
    return answer.call.name != "bash" or _WRITES.search(answer.argument("command")[:20_000]) is not None

"""Detects agents that are stuck: they repeat themselves, or do nothing.

Input: the calls of each turn and their results. Output: why the agent is stuck, or None.
Invariants: only calls and answers decide, so a recorded rollout gets the same result as a live one. Being stuck is the
agent's own fault: the rollout is graded and trained on, unlike one that ran out of turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.agent.config import StuckRules
from slipstream.tools.toolset import CallResult


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    calls: tuple[str, ...]
    answers: tuple[str, ...]
    is_error: bool
    is_idle: bool

    def is_failure_of(self, calls: tuple[str, ...]) -> bool:
        return bool(calls) and self.is_error and self.calls == calls


class StuckWatch:
    """Watches one rollout."""

    def __init__(self, rules: StuckRules) -> None:
        self._rules = rules
        longest = max(rules.same_turns, rules.same_errors, rules.idle_turns, 2 * rules.alternations)
        self._turns: deque[_Turn] = deque(maxlen=longest)

    def note(self, results: Sequence[CallResult]) -> str | None:
        """After each turn: why the agent is stuck, if it is."""
        now = _turn(results)
        self._turns.append(now)
        rules = self._rules
        if now.is_idle and (last := self._last(rules.idle_turns)) and all(turn.is_idle for turn in last):
            return f"{len(last)} turns in a row without a call that could be run"
        if (
            now.is_error
            and (last := self._last(rules.same_errors))
            and all(turn.is_failure_of(last[0].calls) for turn in last)
        ):
            return f"the same calls failed {len(last)} times in a row"
        if (last := self._last(rules.same_turns)) and last[0].calls and all(turn == last[0] for turn in last):
            return f"the same calls had the same answers {len(last)} times in a row"
        if (last := self._last(2 * rules.alternations)) and last[0] != last[1] and last[2:] == last[:-2]:
            return f"two turns followed each other {rules.alternations} times"
        return None

    def _last(self, num: int) -> list[_Turn]:
        """The last `num` turns, if there are that many."""
        turns = self._turns
        return [turns[place] for place in range(-num, 0)] if 0 < num <= len(turns) else []


def _turn(results: Sequence[CallResult]) -> _Turn:
    return _Turn(
        calls=tuple(f"{result.call.name} {result.call.arguments!r}" for result in results),
        answers=tuple(result.text for result in results),
        is_error=all(result.is_error for result in results),
        is_idle=all(result.call.problem is not None for result in results),
    )

"""Detects agents that are stuck: they repeat themselves, or do nothing.

Input: the calls of each turn and their results. Output: why the agent is stuck, or None.
Invariants: only calls and answers decide, so a recorded rollout gets the same result as a live one. Being stuck is the
agent's own fault: the rollout is graded and trained on, unlike one that ran out of turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.agent.config import StuckRules
from slipstream.tools.toolset import CallResult


@dataclass(slots=True, kw_only=True)
class _Turn:
    results: Sequence[CallResult]
    is_error: bool
    is_idle: bool

    def has_calls_of(self, other: _Turn) -> bool:
        return len(self.results) == len(other.results) and all(
            now.call.name == then.call.name and repr(now.call.arguments) == repr(then.call.arguments)
            for now, then in zip(self.results, other.results, strict=True)
        )

    def equals(self, other: _Turn) -> bool:
        """Whether both had the same calls and the same answers."""
        return (
            self.is_error == other.is_error
            and self.is_idle == other.is_idle
            and [result.text for result in self.results] == [result.text for result in other.results]
            and self.has_calls_of(other)
        )


class StuckWatch:
    """Watches one rollout."""

    def __init__(self, rules: StuckRules) -> None:
        self._rules = rules
        self._last: _Turn | None = None
        self._one_before: _Turn | None = None
        # How many turns in a row, up to the last:
        self._num_idle = 0
        self._num_failed = 0
        """With the same calls."""
        self._num_same = 0
        self._num_as_two_before = 0

    def note(self, results: Sequence[CallResult]) -> str | None:
        """After each turn: why the agent is stuck, if it is."""
        now = _Turn(
            results=results,
            is_error=all(result.is_error for result in results),
            is_idle=all(result.call.problem is not None for result in results),
        )
        self._count(now)
        self._one_before, self._last = self._last, now
        rules = self._rules
        if 0 < rules.idle_turns <= self._num_idle:
            return f"{rules.idle_turns} turns in a row without a call that could be run"
        if 0 < rules.same_errors <= self._num_failed:
            return f"the same calls failed {rules.same_errors} times in a row"
        if results and 0 < rules.same_turns <= self._num_same:
            return f"the same calls had the same answers {rules.same_turns} times in a row"
        if self._num_same == 1 and 0 < rules.alternations <= self._num_as_two_before // 2 + 1 and self._one_before:
            return f"two turns followed each other {rules.alternations} times"
        return None

    def _count(self, now: _Turn) -> None:
        last, one_before = self._last, self._one_before
        self._num_idle = self._num_idle + 1 if now.is_idle else 0
        if not (now.is_error and now.results):
            self._num_failed = 0
        else:
            self._num_failed = self._num_failed + 1 if self._num_failed and last and now.has_calls_of(last) else 1
        self._num_same = self._num_same + 1 if last and now.equals(last) else 1
        self._num_as_two_before = self._num_as_two_before + 1 if one_before and now.equals(one_before) else 0

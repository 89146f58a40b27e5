"""Detects agents that are stuck: they repeat themselves, or do nothing.

Input: the calls of each turn and their results. Output: the rollout's ending, or None.
Invariants: only calls and answers decide, so a recorded rollout gets the same result as a live one. Being stuck is the
agent's own fault: the rollout is graded and trained on. Doing nothing because replies were cut off is a limit that the
agent reached, as running out of turns is: nobody knows what would have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.agent.config import StuckRules
from slipstream.tools.toolset import CallResult
from slipstream.types import Ending, EndReason


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
        self._num_cut = 0
        """Of the idle ones, those whose reply was cut off."""
        self._num_failed = 0
        """With the same calls."""
        self._num_same = 0
        self._num_as_two_before = 0

    def note(self, results: Sequence[CallResult], *, was_cut: bool = False) -> Ending | None:
        """After each turn: the ending, if the agent is stuck. `was_cut`: the reply was cut off before a call."""
        now = _Turn(
            results=results,
            is_error=all(result.is_error for result in results),
            is_idle=all(result.call.problem is not None for result in results),
        )
        self._count(now, was_cut)
        self._one_before, self._last = self._last, now
        if 0 < self._rules.idle_turns <= self._num_idle:
            why = f"{self._rules.idle_turns} turns in a row without a call that could be run"
            if self._num_cut:
                cut = f"{why}, {self._num_cut} of them cut off at the limit of a reply"
                return Ending(reason=EndReason.TOKEN_LIMIT, detail=cut)
            return Ending(reason=EndReason.STUCK, detail=why)
        repetition = self._repetition(results)
        return None if repetition is None else Ending(reason=EndReason.STUCK, detail=repetition)

    def _repetition(self, results: Sequence[CallResult]) -> str | None:
        rules = self._rules
        if 0 < rules.same_errors <= self._num_failed:
            return f"the same calls failed {rules.same_errors} times in a row"
        if results and 0 < rules.same_turns <= self._num_same:
            return f"the same calls had the same answers {rules.same_turns} times in a row"
        if self._num_same == 1 and 0 < rules.alternations <= self._num_as_two_before // 2 + 1 and self._one_before:
            return f"two turns followed each other {rules.alternations} times"
        return None

    def _count(self, now: _Turn, was_cut: bool) -> None:
        last, one_before = self._last, self._one_before
        self._num_idle = self._num_idle + 1 if now.is_idle else 0
        self._num_cut = self._num_cut + was_cut if now.is_idle else 0
        if not (now.is_error and now.results):
            self._num_failed = 0
        else:
            self._num_failed = self._num_failed + 1 if self._num_failed and last and now.has_calls_of(last) else 1
        self._num_same = self._num_same + 1 if last and now.equals(last) else 1
        self._num_as_two_before = self._num_as_two_before + 1 if one_before and now.equals(one_before) else 0

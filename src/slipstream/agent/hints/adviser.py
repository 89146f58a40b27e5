"""Gives the hints of one rollout.

Input: the results of each turn's calls. Output: the hints to append to its answers. Invariants: hints depend only on
recorded turns, so a resumed rollout gets the same ones as an uninterrupted one. A tool's result does not change, except
that a call that would end the rollout may be held back. A rule repeats itself only after some turns, and a turn has few
hints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from slipstream.agent.config import HintRules
from slipstream.agent.hints import calls, code, finishing, limits
from slipstream.agent.hints.seen import AnsweredCall, Rule, Situation, Step
from slipstream.dialogue.base import Window
from slipstream.tools.base import Finish, Hint, Observation
from slipstream.tools.toolset import CallResult, context_edit

HELD = "Not ended yet."
"""The answer to a call that would end the rollout, if a rule holds it back."""
MAX_HINTS = 2
QUIET_STEPS = 5
"""For this many turns a rule does not repeat the same hint."""
MAX_CHARS = 400

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        limits.few_turns,
        limits.few_tokens,
        calls.malformed_call,
        calls.unknown_tool,
        calls.no_call,
        code.missed_edit,
        code.syntax_error,
        calls.repeated_failure,
        code.missing_module,
        code.traceback,
        calls.repeated_call,
        code.whole_file,
        code.long_output,
        limits.turns_left,
    )
}
"""By name, the most important first."""
FINISH_RULES: Mapping[str, Rule] = {
    rule.__name__: rule for rule in (finishing.finish_unchanged, finishing.finish_unchecked)
}


class Adviser:
    def __init__(
        self, rules: HintRules, *, tools: Iterable[str], num_turns: int, pure: Iterable[str] = ("finish",)
    ) -> None:
        """`pure` are those of the tools that change nothing."""
        self._rules = _switched_on(RULES, rules)
        self._finish_rules = _switched_on(FINISH_RULES, rules)
        self._is_on = bool(self._rules or self._finish_rules)
        self._tools = frozenset(tools)
        self._pure = frozenset(pure)
        self._num_turns = num_turns
        self._steps: list[Step] = []
        """Not kept if no rule is switched on."""

    @property
    def names(self) -> Collection[str]:
        """The names of the hints it may give."""
        return {*self._rules, *self._finish_rules}

    def advise(
        self, results: Sequence[CallResult], window: Window | None
    ) -> tuple[tuple[CallResult, ...], tuple[Hint, ...]]:
        """After each turn: its results, and the hints for them."""
        results, hints = tuple(results), tuple[Hint, ...]()
        if not self._is_on:
            return results, hints
        if context_edit(results):
            pass  # a rewritten conversation has no answer to append a hint to
        elif any(isinstance(result.outcome, Finish) for result in results):
            if hints := self._holding(results, window):
                held = Observation(text=HELD, is_error=True)
                results = (*results[:-1], replace(results[-1], outcome=held, text=HELD))
        else:
            hints = self._fired(self._rules, self._situation(results, window))
        self.recall(results, hints)
        return results, hints

    def recall(self, results: Sequence[CallResult], hints: Sequence[Hint]) -> None:
        """Record a finished turn, with the hints given after it."""
        if self._is_on:
            self._steps.append(Step(answers=_answers(results), hints=tuple(hints)))

    def _situation(self, results: Sequence[CallResult], window: Window | None) -> Situation:
        return Situation(
            steps=(*self._steps, Step(answers=_answers(results))),
            tools=self._tools,
            turns_left=self._num_turns - len(self._steps) - 1,
            pure=self._pure,
            window=window,
        )

    def _holding(self, results: Sequence[CallResult], window: Window | None) -> tuple[Hint, ...]:
        """Why the rollout should not end yet. Each rule holds it back once, and only if there are turns left."""
        situation = self._situation(results[:-1], window)
        if not isinstance(results[-1].outcome, Finish) or situation.turns_left < finishing.MIN_TURNS:
            return ()
        fresh = {name: rule for name, rule in self._finish_rules.items() if not situation.times_given(name)}
        return self._fired(fresh, situation)[:1]

    def _fired(self, rules: Mapping[str, Rule], situation: Situation) -> tuple[Hint, ...]:
        recent = {hint for step in self._steps[-QUIET_STEPS:] for hint in step.hints}
        fired: list[Hint] = []
        for name, rule in rules.items():
            if len(fired) < MAX_HINTS and (text := rule(situation)) is not None:
                hint = Hint(name=name, text=_one_line(text))
                if hint not in recent:
                    fired.append(hint)
        return tuple(fired)


def _switched_on(known: Mapping[str, Rule], rules: HintRules) -> Mapping[str, Rule]:
    return {name: rule for name, rule in known.items() if rules.on and getattr(rules, name)}


def _answers(results: Sequence[CallResult]) -> tuple[AnsweredCall, ...]:
    return tuple(AnsweredCall(call=result.call, text=result.text, is_error=result.is_error) for result in results)


def _one_line(text: str) -> str:
    """Remove line breaks, since paths and names are untrusted: a hint must stay separable from the answer."""
    flat = " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
    return flat if len(flat) <= MAX_CHARS else f"{flat[:MAX_CHARS]}..."

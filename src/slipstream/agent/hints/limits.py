"""Rules about limits that are nearly reached."""

from __future__ import annotations

from slipstream.agent.hints.seen import Situation

TURNS_LEFT = (5, 1)
EARLY_SHARE = 0.2
"""Of the turns: `turns_left` advises against finishing before."""
SHARES = (0.75, 0.9)
"""Of the context window; the hint is given once at each."""


def few_turns(situation: Situation) -> str | None:
    left = situation.turns_left
    if left not in TURNS_LEFT or len(situation.steps) < left:
        return None
    if left == 1:
        return "This is your last turn: call finish now."
    return f"{left} turns are left: make the change now, check it, and call finish."


def turns_left(situation: Situation) -> str | None:
    left, done = situation.turns_left, len(situation.steps)
    if left in TURNS_LEFT or left < 1:
        return None  # `few_turns` speaks of these
    early = int((left + done) * EARLY_SHARE) - done
    more = f" Take at least {early} more before you finish." if early > 0 else ""
    return f"{left} turns are left.{more}"


def few_tokens(situation: Situation) -> str | None:
    window = situation.window
    if window is None:
        return None
    num_reached = sum(window.num_used >= share * window.num_allowed for share in SHARES)
    if num_reached <= situation.times_given("few_tokens"):
        return None
    left = max(0, window.num_allowed - window.num_used)
    return f"About {left} tokens of context are left: read only what you need, and come to an end."

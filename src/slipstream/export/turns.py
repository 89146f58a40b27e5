"""The tree of turns as conversations: all messages up to a turn.

Invariants: the first turn of every branch has its whole conversation; any other has what came in since its parent, and
the reply.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import ConfigError
from slipstream.types import ForkReason, Message, Rollout, Turn

ASIDE = frozenset({ForkReason.SUB_AGENT, ForkReason.NESTED})
"""Conversations other than the rollout's own."""

_ANEW = ASIDE | {ForkReason.CONTEXT_EDIT, ForkReason.CONDENSED}


def checked_turns(rollout: Rollout) -> dict[int, Turn]:
    """The turns by index; ConfigError if one continues tokens that do not come before it."""
    found: dict[int, Turn] = {}
    lengths: dict[int, int] = {}
    for turn in rollout.turns:
        available = 0 if turn.parent is None else lengths.get(turn.parent, -1)
        if turn.index in found or available < turn.num_kept:
            raise ConfigError(
                f"turn {turn.index} of {rollout.job.key} keeps {turn.num_kept} tokens of turn {turn.parent}, which has "
                "fewer or does not come before it: the run is damaged; restore it from a copy"
            )
        num_sampled = 0 if turn.sampled is None else len(turn.sampled.ids)
        lengths[turn.index] = turn.num_kept + len(turn.added) + num_sampled
        found[turn.index] = turn
    return found


def starts_over(turn: Turn, turns: Mapping[int, Turn]) -> bool:
    """Whether a turn's messages are its whole conversation."""
    return turn.parent is None or turn.fork in _ANEW or turns[turn.parent].branch != turn.branch


def conversation_turns(last: Turn, turns: Mapping[int, Turn]) -> list[Turn]:
    """The turns whose messages, in order, are the conversation up to `last`."""
    found = [last]
    while not starts_over(found[-1], turns):
        parent = found[-1].parent
        assert parent is not None, "a turn without a parent starts over"
        found.append(turns[parent])
    return found[::-1]


def conversation(last: Turn, turns: Mapping[int, Turn]) -> tuple[Message, ...]:
    """All messages up to the end of `last`."""
    return tuple(message for turn in conversation_turns(last, turns) for message in turn.messages)


def last_turn(turns: Mapping[int, Turn]) -> Turn | None:
    """The turn that the rollout ended with: the last one that is not a sub-agent's or a nested call's, if any."""
    aside: set[int] = set()
    last: Turn | None = None
    for turn in turns.values():
        is_aside = turn.fork in ASIDE or turn.parent in aside
        if is_aside:
            aside.add(turn.index)
        if last is None or not is_aside or last.index in aside:
            last = turn
    return last

"""The rules for groups. Pure: rollouts in the order they came in, what to do with them out.

By default a group has `num` places, and is whole when all are in. With more jobs than places there are two ways:

- over-sampling keeps the first `num` that come out with a verdict and cancels the rest (`FirstFinished`, `split`). It
  favours short rollouts, since those come first.
- carrying cancels nothing: a step proceeds when `num` of every group are in (`has_enough`), and what is still under
  way counts for the next step. Every rollout is learnt from once, the long ones a step later.

A group whose rewards are all equal teaches nothing (`is_flat`): another task may take its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from slipstream.types import EndReason, JobKey, Rollout


class FirstFinished:
    """Says which jobs of a group to cancel once `num` of them have a verdict."""

    def __init__(self, keys: Collection[JobKey], num: int) -> None:
        self._under_way = set(keys)
        self._num_missing = num

    def note(self, rollout: Rollout) -> tuple[JobKey, ...]:
        """A rollout came out. If it was the last one needed, returns the jobs that no longer are."""
        key = rollout.job.key
        if key not in self._under_way:
            return ()
        self._under_way.discard(key)
        if rollout.verdict is None:
            return ()
        self._num_missing -= 1
        return tuple(sorted(self._under_way)) if self._num_missing == 0 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The members of a group, in the order they came."""

    kept: tuple[Rollout, ...]
    left_out: tuple[Rollout, ...]


def split(members: Iterable[Rollout], num: int) -> Split:
    """Keep the first `num` with a verdict, and those that failed, which count as in any group. Leave out the cancelled,
    and those that came too late to be needed."""
    kept: list[Rollout] = []
    left_out: list[Rollout] = []
    num_graded = 0
    for member in members:
        if member.verdict is None:
            (left_out if member.ending.reason is EndReason.CANCELLED else kept).append(member)
        else:
            num_graded += 1
            (kept if num_graded <= num else left_out).append(member)
    return Split(kept=tuple(kept), left_out=tuple(left_out))


def has_enough(members: Sequence[Rollout], num: int, num_started: int) -> bool:
    """Whether `num` with a verdict are in, or all that were started."""
    return len(members) == num_started or sum(member.verdict is not None for member in members) >= num


def is_flat(members: Iterable[Rollout]) -> bool:
    """Whether at least two have a verdict and all rewards are equal."""
    rewards = [member.verdict.reward for member in members if member.verdict is not None]
    return len(rewards) >= 2 and min(rewards) == max(rewards)

"""Which tasks come next: epochs in a shuffled order, whole steps at a time.

Input: the ids of the tasks, and the rewards of those given out. Output: the tasks of the next step.
Invariants: the order depends only on the seed, the weights and the rewards noted; no task is given out twice within an
epoch, nor within a step; given what was given out before, a feed continues from there.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slipstream.errors import ConfigError
from slipstream.types import set_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRateFilter:
    """Skips tasks for some epochs if the mean reward of their last group was at an extreme, so that it taught
    nothing."""

    above: float = 0.0
    """A task is skipped if the mean reward of its last group was at or below this; 0: if all its rollouts failed."""
    below: float = 1.0
    """A task is also skipped if that mean was at or above this."""
    rest_epochs: int = 2
    """For how many epochs such a task is skipped."""


class Feed:
    """Tasks of one set, or of the sets of a mixture, whose tasks are named `SET/ID`.

    A mixture gives each next task from the set that is furthest behind its share, so that the tasks given out keep to
    the weights as closely as whole tasks can. Each set has epochs of its own.
    """

    def __init__(
        self,
        task_ids: Sequence[str],
        *,
        num_per_step: int,
        seed: int,
        solve_rate: SolveRateFilter | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`weights`: of each set of a mixture."""
        if num_per_step > len(task_ids):
            raise ConfigError(f"groups={num_per_step}, but there are {len(task_ids)} tasks: ask for fewer groups")
        self._num_per_step = num_per_step
        self._weights = dict(weights or {"": 1.0})
        total = sum(self._weights.values())
        self._decks: dict[str, _Deck] = {}
        for name, weight in self._weights.items():
            own = [task for task in task_ids if set_of(task, self._weights) == name]
            num_needed = math.ceil(num_per_step * weight / total)
            if num_needed > len(own):
                raise ConfigError(
                    f"the set {name} has {len(own)} tasks, and its weight of {weight:g} asks for {num_needed} of the "
                    f"{num_per_step} in a step: lower its weight, or ask for fewer groups"
                )
            self._decks[name] = _Deck(
                own, num_needed=num_needed, seed=f"feed {name} {seed}" if name else f"feed {seed}", rule=solve_rate
            )

    @property
    def epoch(self) -> int:
        """How many epochs have begun; of a mixture, of the set that has begun most."""
        return max(deck.epoch for deck in self._decks.values())

    @property
    def num_per_step(self) -> int:
        return self._num_per_step

    def fresh(self, num: int, exclude: Collection[str]) -> tuple[str, ...]:
        """Up to `num` tasks that are not in `exclude`; fewer if there are no others."""
        chosen: list[str] = []
        num_begun = dict.fromkeys(self._decks, 0)
        while len(chosen) < num:
            for name in self._furthest_behind():
                task = self._decks[name].fresh((*exclude, *chosen), may_begin=not num_begun[name])
                num_begun[name] += self._decks[name].began
                if task is not None:
                    chosen.append(task)
                    break
            else:
                break
        return tuple(chosen)

    def next_step(self) -> tuple[str, ...]:
        """The tasks of the next step."""
        chosen: list[str] = []
        while len(chosen) < self._num_per_step:
            deck = next(self._decks[name] for name in self._furthest_behind() if self._decks[name].has_other(chosen))
            chosen.append(deck.next(chosen))
        return tuple(chosen)

    def given(self, task_ids: Sequence[str]) -> None:
        """A step with these tasks was given out before."""
        for task in task_ids:
            self._decks[self._set_of(task)].given(task)

    def note(self, task_id: str, rewards: Sequence[float]) -> None:
        """The rewards of a task's group."""
        if rewards:
            self._decks[self._set_of(task_id)].note(task_id, statistics.fmean(rewards))

    def _set_of(self, task_id: str) -> str:
        name = set_of(task_id, self._weights)
        if name not in self._decks:
            raise ConfigError(f"the run gave out the task {task_id!r}, which is not among its tasks now")
        return name

    def _furthest_behind(self) -> list[str]:
        """The sets, by how much they lack of their share of the tasks given out, the next one included."""
        num, total = sum(deck.num_given for deck in self._decks.values()), sum(self._weights.values())
        lacks = {name: self._weights[name] / total * (num + 1) - deck.num_given for name, deck in self._decks.items()}
        return sorted(lacks, key=lambda name: -lacks[name])


class _Deck:
    """The tasks of one set, in epochs."""

    def __init__(self, task_ids: Sequence[str], *, num_needed: int, seed: str, rule: SolveRateFilter | None) -> None:
        """`num_needed`: the most that one step asks for. `seed`: its epochs are shuffled by it."""
        self._task_ids = list(task_ids)
        self._num_needed = num_needed
        self._seed = seed
        self._rule = rule
        self.epoch = 0
        """How many epochs have begun."""
        self.num_given = 0
        self.began = False
        """Whether the last call of `fresh` began an epoch."""
        self._queue: list[str] = []
        self._rests_until: dict[str, int] = {}

    def has_other(self, chosen: Collection[str]) -> bool:
        """Whether it has a task that is not among the chosen ones."""
        return not set(chosen).issuperset(self._task_ids)

    def next(self, chosen: Collection[str]) -> str:
        while True:
            place = self._place(chosen)
            if place is not None:
                return self._take(place)
            self._begin_epoch()

    def fresh(self, exclude: Collection[str], *, may_begin: bool) -> str | None:
        """A task that is not in `exclude`, if there is one in this epoch or, if that `may_begin`, in the next."""
        self.began = False
        place = self._place(exclude)
        if place is None and may_begin:
            before = self.epoch, list(self._queue)
            self._begin_epoch()
            self.began = True
            place = self._place(exclude)
            if place is None:
                # Otherwise a feed restored from what was given out would not know of this epoch.
                self.epoch, self._queue = before
        return None if place is None else self._take(place)

    def given(self, task_id: str) -> None:
        while task_id not in self._queue:
            if task_id not in self._task_ids:
                raise ConfigError(f"the run gave out the task {task_id!r}, which is not among its tasks now")
            self._begin_epoch()
        self._take(self._queue.index(task_id))

    def note(self, task_id: str, mean: float) -> None:
        if self._rule is not None and (mean <= self._rule.above or mean >= self._rule.below):
            self._rests_until[task_id] = self.epoch + self._rule.rest_epochs

    def _place(self, exclude: Collection[str]) -> int | None:
        return next((at for at, task in enumerate(self._queue) if task not in exclude), None)

    def _take(self, place: int) -> str:
        self.num_given += 1
        return self._queue.pop(place)

    def _begin_epoch(self) -> None:
        order = list(self._task_ids)
        random.Random(f"{self._seed} {self.epoch}").shuffle(order)
        awake = [task for task in order if self._rests_until.get(task, 0) <= self.epoch]
        self.epoch += 1
        # With too few left to fill a step, all are tried again.
        self._queue += awake if len(awake) >= self._num_needed else order

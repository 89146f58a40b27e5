"""Which tasks come next: epochs in a shuffled order, whole steps at a time.

Input: the ids of the tasks, and the rewards of those given out. Output: the tasks of the next step.
Invariants: the order depends only on the seed and on the rewards noted; no task is given out twice within an epoch, nor
within a step; given what was given out before, a feed continues from there.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipstream.errors import ConfigError


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
    def __init__(
        self, task_ids: Sequence[str], *, num_per_step: int, seed: int, solve_rate: SolveRateFilter | None = None
    ) -> None:
        if num_per_step > len(task_ids):
            raise ConfigError(f"groups={num_per_step}, but there are {len(task_ids)} tasks: ask for fewer groups")
        self._task_ids = list(task_ids)
        self._num_per_step = num_per_step
        self._seed = seed
        self._filter = solve_rate
        self._epoch = 0
        """How many epochs have begun."""
        self._queue: list[str] = []
        self._rests_until: dict[str, int] = {}

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def num_per_step(self) -> int:
        return self._num_per_step

    def fresh(self, num: int, exclude: Collection[str]) -> tuple[str, ...]:
        """Up to `num` tasks that are not in `exclude`; fewer if there are no others."""
        chosen: list[str] = []
        has_begun = False
        while len(chosen) < num:
            place = next((at for at, task in enumerate(self._queue) if task not in (*exclude, *chosen)), None)
            if place is not None:
                chosen.append(self._queue.pop(place))
            elif has_begun:
                break
            else:
                before = self._epoch, list(self._queue)
                self._begin_epoch()
                has_begun = True
                if {*exclude, *chosen}.issuperset(self._queue):
                    # Otherwise a feed restored from what was given out would not know of this epoch.
                    self._epoch, self._queue = before
                    break
        return tuple(chosen)

    def next_step(self) -> tuple[str, ...]:
        """The tasks of the next step."""
        chosen: list[str] = []
        while len(chosen) < self._num_per_step:
            place = next((at for at, task in enumerate(self._queue) if task not in chosen), None)
            if place is None:
                self._begin_epoch()
            else:
                chosen.append(self._queue.pop(place))
        return tuple(chosen)

    def given(self, task_ids: Sequence[str]) -> None:
        """A step with these tasks was given out before."""
        for task in task_ids:
            while task not in self._queue:
                if task not in self._task_ids:
                    raise ConfigError(f"the run gave out the task {task!r}, which is not among its tasks now")
                self._begin_epoch()
            self._queue.remove(task)

    def note(self, task_id: str, rewards: Sequence[float]) -> None:
        """The rewards of a task's group."""
        if self._filter is None or not rewards:
            return
        mean = statistics.fmean(rewards)
        if mean <= self._filter.above or mean >= self._filter.below:
            self._rests_until[task_id] = self._epoch + self._filter.rest_epochs

    def _begin_epoch(self) -> None:
        order = list(self._task_ids)
        random.Random(f"feed {self._seed} {self._epoch}").shuffle(order)
        awake = [task for task in order if self._rests_until.get(task, 0) <= self._epoch]
        self._epoch += 1
        # With too few left to fill a step, all are tried again.
        self._queue += awake if len(awake) >= self._num_per_step else order

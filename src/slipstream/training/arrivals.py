"""Where finished rollouts wait for the step that requested them.

Input: rollouts, in any order. Output: those of a set of keys at once, in the order they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from slipstream.types import JobKey, Rollout


class Arrivals:
    def __init__(self) -> None:
        self._here: dict[JobKey, Rollout] = {}
        self._changed = asyncio.Condition()

    @property
    def here(self) -> Mapping[JobKey, Rollout]:
        """What waits, in the order it came."""
        return self._here

    async def put(self, rollouts: Iterable[Rollout]) -> None:
        async with self._changed:
            self._here.update({rollout.job.key: rollout for rollout in rollouts})
            self._changed.notify_all()

    async def until(self, test: Callable[[Mapping[JobKey, Rollout]], bool]) -> None:
        """Wait until what is here passes a test."""
        async with self._changed:
            await self._changed.wait_for(lambda: test(self._here))

    async def take(self, keys: Collection[JobKey]) -> tuple[Rollout, ...]:
        """The rollouts of `keys` once all are here; they are removed."""
        async with self._changed:
            await self._changed.wait_for(lambda: all(key in self._here for key in keys))
            return self.take_here(keys)

    def take_here(self, keys: Collection[JobKey]) -> tuple[Rollout, ...]:
        """Those of `keys` that are here now; they are removed."""
        wanted = set(keys)
        return tuple(self._here.pop(key) for key in [key for key in self._here if key in wanted])

"""Where finished rollouts wait for those who asked for them.

Enters: rollouts, in any order. Leaves: all of a set of keys at once, when the last one is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from slipstream.types import JobKey, Rollout


class Arrivals:
    def __init__(self) -> None:
        self._here: dict[JobKey, Rollout] = {}
        self._changed = asyncio.Condition()

    async def put(self, rollouts: Iterable[Rollout]) -> None:
        async with self._changed:
            self._here.update({rollout.job.key: rollout for rollout in rollouts})
            self._changed.notify_all()

    async def take(self, keys: Sequence[JobKey]) -> tuple[Rollout, ...]:
        """The rollouts of `keys`, by key, once all are there; they are kept here no longer."""
        async with self._changed:
            await self._changed.wait_for(lambda: all(key in self._here for key in keys))
            return tuple(self._here.pop(key) for key in sorted(keys))

"""The machine that sandboxes, and often an engine, are on, and the run's own process on it, on virtual time.

Input: seconds of work. Output: the wait until it is done, which depends on who else wants the cores or the process.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.simulate.machine.shared import SharedResource

FIRST = 0.9
"""Of the run's own process, what its event loop gets while an engine in it wants all of it too. The engine's thread
gives way at every operation on a tensor, and then waits until the event loop's turn is over."""


class SimHost:
    """The cores of one machine, evenly shared; nobody uses more than one at a time, but for engines that run on it."""

    def __init__(self, cores: float, others: float = 0.0) -> None:
        """`others`: cores that are wanted all the while by somebody else."""
        self.cores = cores
        self._others = others
        self.taken: list[Callable[[], float]] = []
        """What each engine on it takes now."""
        self.shared = SharedResource(lambda num: self.pace(num))

    def pace(self, num: int | None = None) -> float:
        """Of what it would get alone, the share that everybody on it gets."""
        wanted = (self.shared.num_inside if num is None else num) + sum(taken() for taken in self.taken) + self._others
        return min(1.0, self.cores / wanted) if wanted > 0 else 1.0

    async def work(self, cpu_s: float) -> None:
        await self.shared.work(cpu_s)


class RunProcess:
    """The run's own process, in which one thread of Python at a time goes on: the event loop's, with what every call
    and agent needs of it, or that of an engine in the same process."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._duties: list[Callable[[], float]] = []
        """What each engine in it needs of it now."""
        self.shared = SharedResource(self._speed)
        self.shared.link(host.shared)
        host.taken.append(lambda: 1.0 if self.shared.num_inside and not self._duty else 0.0)

    def join(self, duty: Callable[[], float]) -> None:
        """An engine in this process."""
        self._duties.append(duty)

    def pace(self, duty: float) -> float:
        """Of an engine's speed, what is left to it."""
        return min(1.0, (1.0 - FIRST) / duty) if duty and self.shared.num_inside else 1.0

    async def work(self, seconds: float) -> None:
        await self.shared.work(seconds)

    @property
    def _duty(self) -> float:
        return max((duty() for duty in self._duties), default=0.0)

    def _speed(self, num: int) -> float:
        return self._host.pace() * max(FIRST, 1.0 - self._duty) / num

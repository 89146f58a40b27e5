"""The simulated machine of the sandboxes (and often of an engine), and the run's own process on it.

Input: seconds of work. Output: the wait until it is done, which depends on who else uses the cores or the process.
"""

from __future__ import annotations

from collections.abc import Callable

from slipstream.simulate.machine.shared import SharedResource

FIRST = 0.9
"""The event loop's share of the run's own process while an engine in it wants all of it too. The engine's thread yields
at every tensor operation, and then waits until the event loop's turn is over."""


class SimHost:
    """The cores of one machine, shared evenly; everything except engines uses at most one core at a time."""

    def __init__(self, cores: float, others: float = 0.0) -> None:
        """`others`: cores that other programs use all the time."""
        self.cores = cores
        self._others = others
        self.taken: list[Callable[[], float]] = []
        """The cores each engine on it uses now."""
        self.shared = SharedResource(lambda num: self.pace(num))

    def pace(self, num: int | None = None) -> float:
        """The current speed of everything on it, relative to running alone."""
        wanted = (self.shared.num_inside if num is None else num) + sum(taken() for taken in self.taken) + self._others
        return min(1.0, self.cores / wanted) if wanted > 0 else 1.0

    async def work(self, cpu_s: float) -> None:
        await self.shared.work(cpu_s)


class RunProcess:
    """The run's own process, in which one Python thread runs at a time: the event loop, which serves every call and
    agent, or an engine in the same process."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._duties: list[Callable[[], float]] = []
        """How much of it each engine in it needs now."""
        self.shared = SharedResource(self._speed)
        self.shared.link(host.shared)
        host.taken.append(lambda: 1.0 if self.shared.num_inside and not self._duty else 0.0)

    def join(self, duty: Callable[[], float]) -> None:
        """Add an engine that runs in this process."""
        self._duties.append(duty)

    def pace(self, duty: float) -> float:
        """The speed that is left to an engine."""
        return min(1.0, (1.0 - FIRST) / duty) if duty and self.shared.num_inside else 1.0

    async def work(self, seconds: float) -> None:
        await self.shared.work(seconds)

    @property
    def _duty(self) -> float:
        return max((duty() for duty in self._duties), default=0.0)

    def _speed(self, num: int) -> float:
        return self._host.pace() * max(FIRST, 1.0 - self._duty) / num

"""How a run is paced: its scheduling policy, its limits, the gate of its turns, and the engine's load."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from slipstream.dispatch.adaptive import Adaptive
from slipstream.dispatch.base import DispatchLimits, PacingGate, SchedulingPolicy
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.kv_gate import KvGate
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.errors import InfrastructureError
from slipstream.model.base import Completer, LateReporter, WorkReporter
from slipstream.settings import DispatchConfig
from slipstream.types import EngineLoad, EngineWork


class Pacing:
    def __init__(self, config: DispatchConfig) -> None:
        self.policy, self.limits = make_policy(config)
        self._read_load: Callable[[], EngineLoad | None] = lambda: None
        self._take_work: Callable[[], tuple[EngineWork, ...]] = lambda: ()
        self._late: LateReporter | None = None
        self.needs_load = config.policy == "adaptive"
        self.gate: PacingGate = KvGate(self.load) if self.needs_load else OpenGate()

    def set_engine(self, completer: Completer) -> None:
        """Name what samples for the run."""
        self._read_load = completer.load
        if isinstance(completer, WorkReporter):
            self._take_work = completer.take_work
        if isinstance(completer, LateReporter):
            self._late = completer

    def load(self) -> EngineLoad | None:
        return self._read_load()

    def take_work(self) -> tuple[EngineWork, ...]:
        """What the engine did since the last call, if it reports that."""
        return self._take_work()

    async def catch_up(self) -> None:
        """On return `take_work` has all that the engine did."""
        if self._late is not None:
            with suppress(InfrastructureError):  # no figure is worth a run
                await self._late.catch_up()


def make_policy(config: DispatchConfig) -> tuple[SchedulingPolicy[Any], DispatchLimits]:
    """The scheduling policy, and the limits it runs under."""
    match config.policy:
        case "batch":
            return Batch(), DispatchLimits()
        case "bounded":
            return Bounded(slots=config.slots), config.limits
        case "pipeline":
            return Pipeline(init=config.slots, run=config.slots, grade=config.slots), config.limits
        case "adaptive":
            return Adaptive(), config.limits

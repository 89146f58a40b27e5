"""The fixed scheduling policies: everything at once, one slot for a whole job, one pool per stage."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.dispatch.base import Decision, DispatchLimits, DispatchView, Stage
from slipstream.types import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All jobs at once, by definition without limits."""

    def start(self, limits: DispatchLimits) -> None:
        return None

    def decide(self, view: DispatchView, memory: None) -> tuple[Decision, None]:
        return Decision(init=view.waiting, run=view.ready, grade=view.ended), None

    def observe(self, stage: Stage, seconds: float, inside: int, memory: None, *, failed: bool = False) -> None:
        return None

    def rank(self, job: Job, seen_s: float | None, mean_s: float) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One slot covers a job from its initialisation to its end."""

    slots: int

    def start(self, limits: DispatchLimits) -> None:
        return None

    def decide(self, view: DispatchView, memory: None) -> tuple[Decision, None]:
        return Decision(init=self.slots - view.in_flight, run=view.ready, grade=view.ended), None

    def observe(self, stage: Stage, seconds: float, inside: int, memory: None, *, failed: bool = False) -> None:
        return None

    def rank(self, job: Job, seen_s: float | None, mean_s: float) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pool of workers for each stage, as the paper describes it. Only the limits bound how many initialised sandboxes
    pile up before the run pool."""

    init: int
    run: int
    grade: int

    def start(self, limits: DispatchLimits) -> None:
        return None

    def decide(self, view: DispatchView, memory: None) -> tuple[Decision, None]:
        decision = Decision(
            init=self.init - view.initialising, run=self.run - view.running, grade=self.grade - view.grading
        )
        return decision, None

    def observe(self, stage: Stage, seconds: float, inside: int, memory: None, *, failed: bool = False) -> None:
        return None

    def rank(self, job: Job, seen_s: float | None, mean_s: float) -> float:
        return 0.0

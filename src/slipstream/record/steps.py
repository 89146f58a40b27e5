"""The training steps of a run, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slipstream.seams import BatchTaken, Event, StepDone, StepPlanned
from slipstream.types import JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    step: int
    planned: tuple[JobKey, ...]
    taken: tuple[JobKey, ...] | None = None
    """The rollouts of its batch; None before the batch was taken."""
    version: int | None = None
    """Of the policy after the update; None before it."""
    metrics: Mapping[str, float] | None = None


def fold_steps(events: Iterable[Event]) -> tuple[StepRecord, ...]:
    """The steps of these events, in order."""
    steps: dict[int, StepRecord] = {}
    for event in events:
        match event:
            case StepPlanned(step=step, jobs=jobs):
                steps[step] = StepRecord(step=step, planned=jobs)
            case BatchTaken(step=step, jobs=jobs):
                steps[step] = replace(steps[step], taken=jobs)
            case StepDone(step=step, version=version, metrics=metrics):
                steps[step] = replace(steps[step], version=version, metrics=metrics)
            case _:
                pass
    return tuple(steps[step] for step in sorted(steps))

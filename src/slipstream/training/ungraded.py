"""Rollouts without a verdict: when they end a run, and what replaces them when it is resumed.

Pure: records and rollouts in. Invariants: a job has one rollout, so one without a verdict is not run again under its
own key; its replacements have sample numbers that are not on record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from slipstream.errors import UngradedError
from slipstream.record import StepRecord
from slipstream.training.grouping import by_task
from slipstream.types import JobKey, Rollout

NUM_REASONS = 3


def check_graded(rollouts: Sequence[Rollout], what: str) -> None:
    """Raise UngradedError if there is no verdict at all, so nothing to learn from."""
    if any(rollout.verdict is not None for rollout in rollouts):
        return
    reasons = dict.fromkeys(reason for rollout in rollouts for reason in _reasons(rollout))
    raise UngradedError(
        f"none of the {len(rollouts)} rollouts of {what} has a verdict ({'; '.join(list(reasons)[:NUM_REASONS])}): "
        "fix that, then resume: the run retries them"
    )


def only_one_task_timed_out(rollouts: Sequence[Rollout]) -> bool:
    """Whether these are of one task and nothing failed. A task that always times out says nothing about the others, and
    would end the run again and again."""
    return len({rollout.job.key.task_id for rollout in rollouts}) == 1 and not any(each.failures for each in rollouts)


def _reasons(rollout: Rollout) -> list[str]:
    failures = [f"{failure.error} in {failure.stage}: {failure.message}" for failure in rollout.failures]
    ending = rollout.ending
    return failures or [f"{ending.reason}: {ending.detail}" if ending.detail else str(ending.reason)]


def replanned(record: StepRecord, recorded: Sequence[Rollout]) -> tuple[JobKey, ...]:
    """The plan of a step without a batch: its own; or other samples, if all of that is on record without a verdict."""
    found = {rollout.job.key: rollout for rollout in recorded}
    if any(key not in found or found[key].verdict is not None for key in record.planned):
        return record.planned
    highest = {task_id: max(key.sample for key in keys) for task_id, keys in by_task(sorted(found)).items()}
    return tuple(
        replace(key, sample=highest[task_id] + place)
        for task_id, keys in by_task(record.planned).items()
        for place, key in enumerate(keys, start=1)
    )


def keys_to_grade(
    phase: str, step: int, task_ids: Sequence[str], num: int, recorded: Sequence[Rollout]
) -> list[JobKey]:
    """`num` samples of each task, sample by sample, skipping those on record without a verdict."""
    lost = {rollout.job.key for rollout in recorded if rollout.verdict is None}
    samples = [islice((key for key in _samples(phase, step, task_id) if key not in lost), num) for task_id in task_ids]
    return [key for place in zip(*samples, strict=True) for key in place]


def _samples(phase: str, step: int, task_id: str) -> Iterator[JobKey]:
    return (JobKey(phase=phase, step=step, task_id=task_id, sample=sample) for sample in count())

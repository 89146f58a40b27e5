"""What a step's groups are made of, under the rules of `dispatch.groups`. Pure: records and rollouts in.

Invariants: what a step learns from follows from its plan, the batch of the step before and the rollouts that came, and
is written down as its batch. From then on plans and batches alone say what each group is, so an update repeated after
a kill is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream.dispatch.groups import has_enough, is_flat, split
from slipstream.record import StepRecord
from slipstream.types import Group, JobKey, Rollout

TRAIN = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    num_groups: int
    """Tasks of a step, before any replacement."""
    samples: int
    """Rollouts of a task that are needed,"""
    oversample: int = 0
    """and those started on top."""
    carry: bool = False
    replace_flat: int = 0

    @property
    def num_started(self) -> int:
        return self.samples + self.oversample

    @property
    def cancels(self) -> bool:
        return self.oversample > 0 and not self.carry

    def carried(self, before: StepRecord | None) -> tuple[JobKey, ...]:
        """Jobs of the step before that are not in its batch, and so count for this one."""
        if not self.carry or before is None or before.taken is None:
            return ()
        return tuple(sorted(set(before.planned) - set(before.taken)))

    def is_ready(self, record: StepRecord, here: Mapping[JobKey, Rollout], *, is_last: bool) -> bool:
        """Whether enough of a step's own jobs are in. The last step has none to carry to."""
        if not self.carry or is_last:
            return all(key in here for key in record.planned)
        return all(
            has_enough([here[key] for key in keys if key in here], self.samples, len(keys))
            for keys in by_task(record.planned).values()
        )

    def num_replaced(self, record: StepRecord) -> int:
        return len(by_task(record.planned)) - self.num_groups

    def num_to_replace(self, record: StepRecord, here: Mapping[JobKey, Rollout]) -> int:
        """How many complete groups without signal may still be replaced. `here` is in order of arrival."""
        if not self.replace_flat:
            return 0
        whole = [keys for keys in by_task(record.planned).values() if all(key in here for key in keys)]
        num_flat = sum(is_flat(self._kept([here[key] for key in here if key in keys])) for keys in map(set, whole))
        return max(0, min(num_flat, self.replace_flat) - self.num_replaced(record))

    def learnt_from(self, record: StepRecord, came: Sequence[Rollout]) -> Iterator[JobKey]:
        """Of the rollouts that came, in this order, those of the batch."""
        if self.carry:
            yield from (rollout.job.key for rollout in came)
            return
        num_flat = self.num_replaced(record)
        for keys in map(set, by_task(record.planned).values()):
            kept = self._kept([rollout for rollout in came if rollout.job.key in keys])
            if num_flat and is_flat(kept):
                num_flat -= 1
            else:
                yield from (rollout.job.key for rollout in kept)

    def _kept(self, members: Sequence[Rollout]) -> Sequence[Rollout]:
        return split(members, self.samples).kept if self.cancels else members

    def groups(self, record: StepRecord, before: StepRecord | None, found: Mapping[JobKey, Rollout]) -> list[Group]:
        """The groups of a step whose batch was taken. `found` holds all that was started for it and, where jobs were
        carried over to it, the batch of the step before."""
        taken = set(record.taken or ())
        carried = [key for key in taken if key.step != record.step]
        compared = sorted(before.taken or ()) if before is not None and carried else []
        places: dict[tuple[int, str], list[JobKey]] = {}
        for key in sorted({*record.planned, *carried}):
            if key in taken or not self.carry:
                places.setdefault((key.step, key.task_id), []).append(key)
        return [
            Group(
                phase=TRAIN,
                step=step,
                task_id=task_id,
                rollouts=tuple(found[key] for key in keys if key in taken),
                left_out=tuple(found[key] for key in keys if key not in taken),
                earlier=tuple(found[key] for key in compared if (key.step, key.task_id) == (step, task_id)),
            )
            for (step, task_id), keys in places.items()
        ]


def by_task(keys: Sequence[JobKey]) -> dict[str, list[JobKey]]:
    found: dict[str, list[JobKey]] = {}
    for key in keys:
        found.setdefault(key.task_id, []).append(key)
    return found

"""The steps of training as rows that outlast the run store.

Input: the folder of an experiment. Output: `steps.jsonl`, a line for each step: its metrics, what was solved at each
level, its time. Invariants: a step that has a line keeps it, so an experiment that moved without its rollouts keeps the
figures that came from them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.atomic import atomic_file
from slipstream.experiment.design import Design
from slipstream.record import RunReader, RunStore
from slipstream.record.steps import StepRecord
from slipstream.seams import LearnerWork
from slipstream.training.grouping import TRAIN
from slipstream.types import Json, Rollout

TRAINING, STEPS = "training", "steps.jsonl"


def read_steps(out: Path) -> list[dict[str, Any]]:
    """In order. Our own JSON, hence Any."""
    path = out / TRAINING / STEPS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def update_steps(out: Path, design: Design) -> None:
    """Add the steps that were made since."""
    folder = out / TRAINING
    if not RunStore.exists(folder):
        return
    reader = RunStore.read(folder)
    known = {step["step"]: step for step in read_steps(out)}
    ends = _update_ends(reader)
    load = _Load(reader)
    for record in reader.steps():
        if record.metrics is not None and record.step not in known:
            known[record.step] = _row(reader, record, design, ends, load)
    with atomic_file(folder / STEPS) as part:
        part.write_text("".join(json.dumps(known[step]) + "\n" for step in sorted(known)), encoding="utf-8")


def _row(
    reader: RunReader, record: StepRecord, design: Design, ends: Mapping[int, tuple[float, float]], load: _Load
) -> dict[str, Json]:
    rollouts = list(reader.rollouts(with_turns=False, phase=TRAIN, step=record.step))
    start_s, end_s = ends.get(record.step, (math.nan, math.nan))
    return {
        "step": record.step,
        "version": record.version,
        "end_s": _number(end_s),
        "seconds": _number(end_s - start_s),
        **load.between(start_s, end_s),
        "levels": _levels(rollouts, record, design),
        "metrics": {name: _number(value) for name, value in (record.metrics or {}).items()},
    }


def _update_ends(reader: RunReader) -> dict[int, tuple[float, float]]:
    """For each step when the one before it ended, or its own rollouts began, and when its update ended."""
    updates = [work for work in reader.learner_work() if work.work is LearnerWork.UPDATE]
    found: dict[int, tuple[float, float]] = {}
    before_s = -math.inf
    for work in updates:
        if work.step not in found:
            found[work.step] = (max(before_s, _first_start(reader, work.step, before_s)), work.end_s)
        before_s = work.end_s
    return found


def _first_start(reader: RunReader, step: int, before_s: float) -> float:
    """When the first rollout of a step began, if no step ended just before: after a pause, or at the beginning."""
    starts = [
        min(span.start_s for span in rollout.spans)
        for rollout in reader.rollouts(with_turns=False, phase=TRAIN, step=step)
        if rollout.spans
    ]
    first_s = min(starts, default=math.nan)
    return first_s if not math.isnan(first_s) and first_s > before_s else before_s


def _levels(rollouts: Sequence[Rollout], record: StepRecord, design: Design) -> dict[str, Json]:
    """Over everything that was started for the step and has a verdict."""
    planned = {*record.planned}
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rollout in rollouts:
        if rollout.job.key in planned and rollout.verdict is not None:
            task = rollout.job.key.task_id
            groups[design.level_of(task)][task].append(rollout.verdict.reward)
    return {level: _level(list(found.values())) for level, found in sorted(groups.items())}


def _level(groups: Sequence[Sequence[float]]) -> dict[str, Json]:
    rewards = [reward for group in groups for reward in group]
    return {
        "groups": len(groups),
        "mixed": sum(min(group) < max(group) for group in groups),
        "rollouts": len(rewards),
        "reward": _number(statistics.fmean(rewards)),
    }


class _Load:
    """How busy the machine was."""

    def __init__(self, reader: RunReader) -> None:
        self._gpu: list[tuple[float, float]] = []
        self._cores: list[tuple[float, float]] = []
        for sample in reader.hardware():
            if sample.gpus:
                self._gpu.append((sample.at_s, statistics.fmean(gpu.percent for gpu in sample.gpus)))
            if sample.cpu is not None:
                self._cores.append((sample.at_s, sample.cpu.percent))

    def between(self, start_s: float, end_s: float) -> dict[str, Json]:
        found = {"gpu_percent": _mean(self._gpu, start_s, end_s), "cores_percent": _mean(self._cores, start_s, end_s)}
        return {name: value for name, value in found.items() if value is not None}


def _mean(samples: Iterable[tuple[float, float]], start_s: float, end_s: float) -> float | None:
    within = [value for at_s, value in samples if start_s < at_s <= end_s]
    return _number(statistics.fmean(within)) if within else None


def _number(value: float) -> float | None:
    """With six digits; None for what is not a number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None

"""Whole steps of a trainer that drives, checked: what `step_log` has against the run store and the checkpoints.

    python -m slipstream.bridges.step_report FOLDER

prints one JSON object. FOLDER is that of runs of verl or SkyRL-train with the setup `one_gpu`: it has `steps.jsonl`,
the run stores in `rollouts`, and the trainer's checkpoints. Nothing of a trainer or of torch is imported here.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.batch.advantages import ESTIMATORS
from slipstream.batch.rows import make_batch
from slipstream.bridges.driven import TRAIN
from slipstream.config import from_json
from slipstream.record import RunReader, RunStore
from slipstream.settings import TrainConfig
from slipstream.types import Group, JobKey, Rollout

MAX_ADVANTAGE_DIFFERENCE = 1e-5
MAX_LOGPROB_DIFFERENCE = 0.02
"""In nats, the mean over the tokens of a step."""

Line: TypeAlias = Mapping[str, Any]
"""What an observed trainer wrote of a step, as `json.loads` returns it."""


def report(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    stored = _stored(folder / "rollouts")
    weights = dict(_weights(folder))
    steps = [_step(line, stored, weights) for line in lines]
    return {
        "steps": steps,
        "passed": all(step["passed"] for step in steps),
        "restarted_at": [line["step"] for line in lines if "engine_after_restart" in line],
    }


def _step(line: Line, stored: Mapping[int, _StoredStep], weights: Mapping[int, str]) -> dict[str, Any]:
    number = line["step"]
    ours = stored[number]
    rows = line["rows"]
    rewards = [[each.verdict.reward for each in group if each.verdict is not None] for group in ours.groups]
    flat = [reward for group in rewards for reward in group]
    differences = [abs(row["advantage"] - ours.advantages.get(_place(row), 0.0)) for row in _expanded(rows)]
    sync, passed = line["engine_after_sync"], line["trainer_against_passed"]
    restart = line.get("engine_after_restart")
    checks = {
        "all_rollouts_stored": ours.num_rollouts == len({(row["task_id"], row["sample"]) for row in rows}),
        "all_rows_arrived": set(ours.advantages) <= {_place(row) for row in rows},
        "advantages": max(differences, default=1.0) <= MAX_ADVANTAGE_DIFFERENCE
        and not any(row["outside"] for row in rows),
        "trainer_logprobs": passed["tokens"] > 0 and passed["mean"] <= MAX_LOGPROB_DIFFERENCE,
        "engine_logprobs": sync["tokens"] > 0 and sync["mean"] <= MAX_LOGPROB_DIFFERENCE,
        "update_moved_logprobs": line["update_moved"]["max"] > 0,
        "checkpoint_has_other_weights": number in weights and weights[number] != weights.get(number - 1),
        "restart_has_the_weights": restart is None or restart["mean"] <= MAX_LOGPROB_DIFFERENCE,
        "gradient": line["grad_norm"] > 0,
    }
    return {
        "step": number,
        "rollouts": ours.num_rollouts,
        "rows": len(rows),
        "trained_tokens": sum(row["num_trained"] for row in rows),
        "groups": len(rewards),
        "mixed_groups": sum(len(set(group)) > 1 for group in rewards),
        "mean_reward": sum(flat) / max(1, len(flat)),
        "max_advantage_difference": max(differences, default=None),
        "trainer_against_passed": passed,
        "update_moved": line["update_moved"],
        "engine_after_sync": sync,
        "engine_after_restart": restart,
        "grad_norm": line["grad_norm"],
        "weights": weights.get(number),
        "seconds": {name: round(value, 2) for name, value in line["seconds"].items()},
        "failed": [name for name, holds in checks.items() if not holds],
        "passed": all(checks.values()),
    }


class _StoredStep:
    """The rollouts of a step as our run store has them, and what they should have become."""

    def __init__(self, rollouts: Sequence[Rollout], config: TrainConfig) -> None:
        by_task: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in sorted(rollouts, key=lambda each: each.job.key):
            by_task[rollout.job.key.task_id].append(rollout)
        self.num_rollouts = len(rollouts)
        self.groups = list(by_task.values())
        groups = [
            Group(phase=TRAIN, step=group[0].job.key.step, task_id=task_id, rollouts=tuple(group))
            for task_id, group in by_task.items()
        ]
        batch = make_batch(
            groups, ESTIMATORS[config.advantages], max_tokens=config.max_sample_tokens, solved_at=config.solved_at
        )
        self.advantages: dict[tuple[str, int, int], float] = {}
        num_rows: dict[JobKey, int] = defaultdict(int)
        for row in batch.rows:
            key = row.sample.key
            self.advantages[key.task_id, key.sample, num_rows[key]] = row.advantage
            num_rows[key] += 1


def _stored(folder: Path) -> dict[int, _StoredStep]:
    """By step. If a step was made twice because of a restart, the later run's."""
    found: dict[int, _StoredStep] = {}
    for path in sorted((each for each in folder.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)):
        reader = RunStore.read(path)
        by_step: dict[int, list[Rollout]] = defaultdict(list)
        for rollout in reader.rollouts():
            if rollout.job.key.phase == TRAIN:
                by_step[rollout.job.key.step].append(rollout)
        found |= {step: _StoredStep(rollouts, _config(reader)) for step, rollouts in by_step.items()}
    return found


def _config(reader: RunReader) -> TrainConfig:
    said = reader.config()
    assert isinstance(said, dict)
    return from_json(TrainConfig, said["settings"])


def _weights(folder: Path) -> Iterator[tuple[int, str]]:
    """A digest of the weights of each checkpoint, which both trainers keep below a folder `global_step_N`."""
    for path in sorted(folder.rglob("global_step_*/**/*.safetensors")):
        step = next(part for part in path.parts if part.startswith("global_step_"))
        yield int(step.removeprefix("global_step_")), hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _place(row: Line) -> tuple[str, int, int]:
    return row["task_id"], row["sample"], row["row"]


def _expanded(rows: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """Each row with each advantage that its tokens have."""
    for row in rows:
        for advantage in row["advantages"]:
            yield {**row, "advantage": advantage}


if __name__ == "__main__":
    found = report(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.exit(not found["passed"])

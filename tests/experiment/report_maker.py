"""Reports of made-up experiments, in the form that a session writes."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.experiment.rows import COLUMNS


def evaluation(
    rewards: Mapping[str, Sequence[float | None]], *, version: int, arm: str = "full", part: str = "held_out"
) -> dict[str, Any]:
    """`rewards` by task, whose name is `PACKAGE-NUMBER@LEVEL`."""
    tasks = sorted(rewards)
    rows = [
        [place, sample, reward, "finished", 3, 100, 50, 1.0, {"bash": 2, "search": 1}, {"bash": 1}, 0, 1, 0]
        for place, task in enumerate(tasks)
        for sample, reward in enumerate(rewards[task])
    ]
    return {
        "part": part,
        "arm": arm,
        "version": version,
        "num_jobs": len(rows),
        "num_tasks": len(tasks),
        "solved_at": 1.0,
        "seconds": 10.0,
        "tasks": [[task, task.partition("-")[0], task.partition("@")[2]] for task in tasks],
        "columns": list(COLUMNS),
        "rows": rows,
    }


def step(number: int, reward: float) -> dict[str, Any]:
    return {
        "step": number,
        "version": number + 1,
        "seconds": 10.0,
        "gpu_percent": 80.0,
        "levels": {"easy": {"groups": 2, "mixed": 1, "rollouts": 8, "reward": reward}},
        "metrics": {"reward/mean": reward, "learn/entropy": 0.3},
    }


def report(*evaluations: dict[str, Any], arm: str = "full", seed: int = 1, num_steps: int = 4) -> dict[str, Any]:
    return {
        "format": 1,
        "experiment": {"design": "swe", "arm": arm, "seed": seed},
        "sessions": [
            {"stage": "opening", "start_s": 0.0, "end_s": 30.0, "machine": {"gpus": ["NVIDIA H200"]}},
            {"stage": "start", "start_s": 30.0, "end_s": 55.0},
            {"stage": "training", "start_s": 60.0, "end_s": 100.0},
        ],
        "start": None,
        "steps": [step(number, number / 10) for number in range(num_steps)],
        "evaluations": list(evaluations),
    }

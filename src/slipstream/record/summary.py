"""A run and a rollout in a row each, as lists of them show it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.record.lock import is_being_written
from slipstream.record.metrics_file import read_metrics
from slipstream.record.reader import RunReader
from slipstream.record.schema import run_folders
from slipstream.types import Json, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    folder: Path
    recipe: str
    command: str
    """`eval` or `train`; empty for a run that another trainer drives."""
    state: str
    """`running`, `finished`, `stopped`, or why it cannot be read."""
    steps: int | None
    """Training steps made; None for an evaluation."""
    planned_steps: int | None
    rollouts: int
    reward: float | None
    """The mean of an evaluation, or of the last training step."""
    began_s: float
    """In epoch seconds."""

    def as_json(self) -> dict[str, Json]:
        return {
            "run": self.folder.name,
            "recipe": self.recipe,
            "command": self.command,
            "state": self.state,
            "steps": self.steps,
            "planned_steps": self.planned_steps,
            "rollouts": self.rollouts,
            "reward": self.reward,
            "began_s": self.began_s,
        }


def list_runs(root: Path) -> list[RunSummary]:
    """Every run directly below `root`, the newest last."""
    return sorted((summarise(folder) for folder in run_folders(root)), key=lambda run: (run.began_s, run.folder.name))


def summarise(folder: Path) -> RunSummary:
    try:
        return _summary(RunReader(folder))
    except ConfigError as raised:
        return RunSummary(
            folder=folder,
            recipe="",
            command="",
            state=f"unreadable: {raised}",
            steps=None,
            planned_steps=None,
            rollouts=0,
            reward=None,
            began_s=folder.stat().st_mtime,
        )


def _summary(run: RunReader) -> RunSummary:
    header = run.config()
    began = header if isinstance(header, dict) else {}
    found = began.get("settings")
    settings = found if isinstance(found, dict) else {}
    command = str(began.get("command") or "")
    planned = settings.get("steps")
    planned_steps = planned if isinstance(planned, int) else None
    steps: int | None = None
    if command == "eval":
        reward, is_finished = _of_evaluation(run)
    else:
        done = [step.metrics for step in run.steps() if step.version is not None and step.metrics is not None]
        steps, reward = len(done), done[-1].get("reward/mean") if done else None
        is_finished = steps == planned_steps and (run.folder / "trained").is_dir()
    state = "finished" if is_finished else "stopped"
    if is_being_written(run.folder):
        state = "running"
    return RunSummary(
        folder=run.folder,
        recipe=str(settings.get("name") or ""),
        command=command,
        state=state,
        steps=steps,
        planned_steps=planned_steps,
        rollouts=run.counts().rollouts,
        reward=reward,
        began_s=run.created_s(),
    )


def _of_evaluation(run: RunReader) -> tuple[float | None, bool]:
    """The mean over tasks of each task's mean so far, and whether it was reported."""
    for line in read_metrics(run.folder):
        if line.get("kind") == "eval":
            reward = line.get("reward/mean")
            return reward if isinstance(reward, float) else None, True
    rewards: dict[str, list[float]] = defaultdict(list)
    for rollout in run.rollouts(with_turns=False):
        if rollout.verdict is not None:
            rewards[rollout.job.key.task_id].append(rollout.verdict.reward)
    return statistics.fmean(map(statistics.fmean, rewards.values())) if rewards else None, False


def rollout_row(rollout: Rollout) -> dict[str, Json]:
    """What a rollout was, how it ended and what it earned."""
    key, verdict = rollout.job.key, rollout.verdict
    components = {} if verdict is None else verdict.components
    return {
        "phase": key.phase,
        "step": key.step,
        "task": key.task_id,
        "sample": key.sample,
        "ending": rollout.ending.reason.value,
        "trust": rollout.trust.value,
        "answer": rollout.ending.answer,
        "reward": None if verdict is None else verdict.reward,
        "turns": len(rollout.turns),
        **{f"reward/{name}": value for name, value in components.items()},
    }

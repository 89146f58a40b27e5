"""Attempts in this process."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.rollout.attempt import AttemptDeps, RolloutAttempt
from slipstream.seams import PastAttempt
from slipstream.types import Job, Task


class InProcess:
    def __init__(self, deps: AttemptDeps, tasks: Mapping[str, Task]) -> None:
        self._deps = deps
        self._tasks = tasks

    def expect(self, job: Job) -> None:
        task = self._tasks.get(job.key.task_id)
        if task is not None and task.sandbox is not None:
            self._deps.expect(task.sandbox)

    def open(self, job: Job, number: int, past: PastAttempt | None) -> RolloutAttempt:
        return RolloutAttempt(self._deps, self._tasks[job.key.task_id], job, number, past)

"""Attempts in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.rollout.attempt import Crew, RolloutAttempt
from slipstream.types import Job, Task, Turn


class InProcess:
    def __init__(self, crew: Crew, tasks: Mapping[str, Task]) -> None:
        self._crew = crew
        self._tasks = tasks

    def open(self, job: Job, number: int, past_turns: Sequence[Turn]) -> RolloutAttempt:
        return RolloutAttempt(self._crew, self._tasks[job.key.task_id], job, number, past_turns)

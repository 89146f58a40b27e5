"""Jobs from tasks."""

from __future__ import annotations

from slipstream.graders.base import needs_sandbox
from slipstream.graders.registry import find_grader
from slipstream.types import Job, JobKey, SandboxSpec, Task, job_seed


def make_job(task: Task, key: JobKey, *, run_seed: int, group_size: int) -> Job:
    """A job for this task, with what its sandbox, or its grader's, takes of the limits."""
    needs_any = task.sandbox is not None or needs_sandbox(find_grader(task.grading.kind), task.grading.spec)
    limits = (task.sandbox or SandboxSpec()).limits if needs_any else None
    return Job(
        key=key,
        seed=job_seed(run_seed, key),
        weight=0 if task.sandbox is None else 1,
        group_size=group_size,
        memory_mb=0 if limits is None else limits.memory_mb,
        cpus=0.0 if limits is None else limits.cpus,
    )

"""What an evaluation is going to do: which jobs, with which seeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.dispatch.base import Deadlines, DispatchLimits
from slipstream.errors import ConfigError
from slipstream.evaluation import plan_evaluation, plan_jobs
from slipstream.settings import DispatchConfig, EvalConfig, TasksConfig
from slipstream.tasks.source import digest_of
from slipstream.types import Brief, Grading, JobKey, SandboxLimits, SandboxSpec, Task


def config(*, samples: int = 2, seed: int = 0, source: str = "") -> EvalConfig:
    return EvalConfig(name="x", tasks=TasksConfig(source=source), samples=samples, seed=seed)


def tasks(*ids: str) -> list[Task]:
    return [Task(id=name, brief=Brief(instruction="Go."), grading=Grading(kind="exact")) for name in ids]


def test_all_tasks_come_once_then_all_again() -> None:
    jobs = plan_jobs(config(), tasks("b", "a"))
    assert [(job.key.task_id, job.key.sample) for job in jobs] == [("b", 0), ("a", 0), ("b", 1), ("a", 1)]
    assert {(job.key.phase, job.key.step, job.group_size) for job in jobs} == {("eval", 0, 2)}


def test_a_seed_depends_on_run_task_and_sample_and_on_nothing_else() -> None:
    seeds = {job.key: job.seed for job in plan_jobs(config(), tasks("a", "b", "c"))}
    again = {job.key: job.seed for job in plan_jobs(config(samples=3), tasks("d", "c", "a", "b"))}
    assert {key: again[key] for key in seeds} == seeds
    assert len(set(again.values())) == len(again)
    others = {job.key: job.seed for job in plan_jobs(config(seed=1), tasks("a", "b", "c"))}
    assert not set(others.values()) & set(seeds.values())


def test_a_seed_is_the_same_in_every_version() -> None:
    (job,) = plan_jobs(config(samples=1), tasks("a"))
    assert job.key == JobKey(phase="eval", step=0, task_id="a", sample=0)
    assert job.seed == SEED_OF_A


SEED_OF_A = 3_170_868_432_600_982_440
"""Of run seed 0: a recorded run is resumed with the seeds it was started with."""


def test_more_rollouts_than_a_run_holds_are_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        plan_jobs(config(samples=10**11), tasks("a", "b"))
    assert raised.value.key == "samples"


def test_a_plan_checks_the_settings_before_it_loads_a_task() -> None:
    with pytest.raises(ConfigError, match="samples=0"):
        plan_evaluation(config(samples=0, source="no.such.module:tasks"))


def test_a_plan_holds_the_tasks_by_id(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a", "instruction": "x", "grading": {"kind": "exact", "expected": "1"}}')
    plan = plan_evaluation(config(samples=3, source=str(path)))
    assert list(plan.tasks) == ["a"]
    assert len(plan.jobs) == 3


def test_a_task_without_a_sandbox_weighs_nothing() -> None:
    (task,) = tasks("a")
    heavy, light = plan_jobs(config(samples=1), [task, replace(task, id="b", sandbox=None)])
    assert (heavy.weight, light.weight) == (1, 0)


def test_the_digest_changes_with_any_task() -> None:
    ours = tasks("a", "b")
    changed = [ours[0], replace(ours[1], brief=Brief(instruction="Stop."))]
    assert digest_of(ours) == digest_of(tasks("a", "b"))
    assert len({digest_of(ours), digest_of(changed), digest_of(ours[::-1])}) == 3


def test_jobs_take_memory_and_cores_from_the_sandbox_that_they_or_their_graders_have() -> None:
    (task,) = tasks("a")
    limited = SandboxSpec(limits=SandboxLimits(memory_mb=512, cpus=0.5))
    sandboxed, alone, graded = plan_jobs(
        config(samples=1),
        [
            replace(task, sandbox=limited),
            replace(task, id="b", sandbox=None),
            replace(task, id="c", sandbox=None, grading=Grading(kind="command", spec={"command": "true"})),
        ],
    )
    assert (sandboxed.memory_mb, sandboxed.cpus) == (512, 0.5)
    assert (alone.memory_mb, alone.cpus) == (0, 0.0)
    assert (graded.weight, graded.memory_mb, graded.cpus) == (0, SandboxLimits().memory_mb, SandboxLimits().cpus)


def test_a_task_above_a_limit_by_itself_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        '{"id": "a", "instruction": "x", "grading": {"kind": "exact", "expected": "1"}, '
        '"sandbox": {"limits": {"memory_mb": 4096}}}'
    )
    limited = replace(config(source=str(path)), dispatch=DispatchConfig(limits=DispatchLimits(memory_mb=1024)))
    with pytest.raises(ConfigError, match="job eval/0/a/0 needs 4096 MB") as raised:
        plan_evaluation(limited)
    assert (raised.value.key, raised.value.value) == ("dispatch.limits.memory_mb", 1024)
    assert plan_evaluation(replace(limited, dispatch=DispatchConfig(policy="batch"))).jobs


def test_a_deadline_that_would_end_a_grading_before_its_own_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        '{"id": "a", "instruction": "x", "sandbox": {}, '
        '"grading": {"kind": "command", "command": "./check", "timeout_s": 890}}'
    )
    with pytest.raises(ConfigError) as raised:
        plan_evaluation(config(source=str(path)))
    assert raised.value.remedies == ("dispatch.deadlines.grade_s=950",)
    longer = DispatchConfig(deadlines=Deadlines(grade_s=950))
    assert plan_evaluation(replace(config(source=str(path)), dispatch=longer)).jobs


def test_the_weight_of_a_sandbox_is_no_part_of_a_tasks_digest() -> None:
    (task,) = tasks("a")
    assert digest_of([task]) == digest_of([replace(task, sandbox=SandboxSpec(limits=SandboxLimits(cpus=4.0)))])

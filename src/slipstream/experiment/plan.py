"""The settings of every stage of an experiment, and its record in the folder where its results are.

Input: a design, an arm, a seed, changed settings. Output: a TrainConfig for the start, one for training, an EvalConfig
for every evaluation. Invariants: the start and the seed of the evaluations are the same for every arm and seed; an
experiment is resumed only as the arm and with the seed and the tasks that it began with. Paths of tasks are no part of
that, since it may be resumed on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slipstream.atomic import atomic_file
from slipstream.config import apply_overrides, from_json, leaves, to_json
from slipstream.errors import ConfigError
from slipstream.experiment.design import Arm, Design, find_design
from slipstream.settings import EvalConfig, TasksConfig, TaskSetConfig, TrainConfig
from slipstream.settings.resume_rules import check_changes
from slipstream.tasks.source import load_tasks
from slipstream.types import Json, Task

AnyTasks = TypeVar("AnyTasks", TasksConfig, TaskSetConfig)

FORMAT = 1
RECORD = "experiment.json"
START_SEED = 0
EVAL_SEED = 1
_TASKS = Path("TASKS")
"""Stands for the folder of tasks in what is recorded."""
_OF_START = ("model.folder", "model.make", "model.family", "learner.method", "learner.lora", "warm_start")
"""Settings that the start depends on, and the groups of such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    design: Design
    name: str
    """Of the design."""
    arm: str
    seed: int
    start_digest: str
    """Changes with any setting that the start depends on."""
    config: TrainConfig
    """Of the training of this arm."""
    recorded: TrainConfig
    """The same, without the folder of the tasks."""

    @property
    def start_config(self) -> TrainConfig:
        """Of the warm start."""
        return replace(self.config, seed=START_SEED)

    def eval_config(self, part: str, arm: str, *, samples: int, policy: TrainConfig) -> EvalConfig:
        """Of an evaluation of a policy that was opened with the settings `policy`."""
        changed = self.design.arm(arm)
        base = EvalConfig(
            name=f"{self.name}-{part}",
            tasks=with_arm(self.design.part(part), changed),
            model=policy.model,
            agent=self.design.recipe.agent,
            sandbox=policy.sandbox,
            dispatch=policy.dispatch,
            hardware=policy.hardware,
            samples=samples,
            seed=EVAL_SEED,
            solved_at=policy.solved_at,
        )
        return apply_overrides(base, changed.settings)


def make_plan(name: str, tasks: Path, *, arm: str, seed: int, overrides: Sequence[str] = ()) -> ExperimentPlan:
    """Raises ConfigError for a name, an arm or a setting that does not exist."""
    configured = partial(_configured, name, arm=arm, seed=seed, overrides=overrides)
    design, config = configured(tasks)
    recorded = configured(_TASKS)[1]
    return ExperimentPlan(
        design=design,
        name=design.name,
        arm=arm,
        seed=seed,
        start_digest=_digest([pair for pair in leaves(recorded) if _is_of_start(pair[0])]),
        config=config,
        recorded=recorded,
    )


def _configured(name: str, tasks: Path, *, arm: str, seed: int, overrides: Sequence[str]) -> tuple[Design, TrainConfig]:
    """The design with the changed settings, and the settings of the arm."""
    design = find_design(name, tasks)
    base = apply_overrides(replace(design.recipe, seed=seed), overrides)
    changed = design.arm(arm)
    config = apply_overrides(base, changed.settings)
    watched = config.held_out if config.eval_every else TasksConfig()  # the stages evaluate before and after
    config = replace(config, tasks=with_arm(config.tasks, changed), held_out=with_arm(watched, changed))
    return replace(design, recipe=base), config


def _is_of_start(key: str) -> bool:
    return any(key == each or key.startswith((f"{each}.", f"{each}_")) for each in _OF_START)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- tasks without some tools


def with_arm(tasks: TasksConfig, arm: Arm) -> TasksConfig:
    """A source of the same tasks without the tools that the arm takes away."""
    if not arm.without_tools or not tasks.are_named:
        return tasks
    if tasks.sets:
        return replace(tasks, sets={name: _without(each, arm) for name, each in tasks.sets.items()})
    return _without(tasks, arm)


def _without(tasks: AnyTasks, arm: Arm) -> AnyTasks:
    args: dict[str, Json] = {"source": tasks.source, "args": dict(tasks.args), "without": list(arm.without_tools)}
    return replace(tasks, source=f"{__name__}:{read_without.__name__}", args=args)


def read_without(*, source: str, args: Mapping[str, Any], without: Sequence[str], num: int | None = None) -> list[Task]:
    """The tasks of a source, without the tools of these names. Raises ConfigError if no task has one of them."""
    from slipstream.tools.registry import resolve

    found: list[Task] = []
    named: dict[str, str] = {}
    taken: set[str] = set()
    for task in load_tasks(source, num=num, args=args):
        kept = []
        for path in task.brief.tools:
            if path not in named:
                named[path] = resolve(path).spec.name
            if named[path] in without:
                taken.add(named[path])
            else:
                kept.append(path)
        found.append(replace(task, brief=replace(task.brief, tools=tuple(kept))))
    if missing := sorted(set(without) - taken):
        raise ConfigError(
            f"the arm takes {', '.join(missing)} away, but no task of {source} offers it "
            f"({', '.join(sorted(set(named.values())))}): give the tasks that tool, or choose another arm"
        )
    return found


# ---------------------------------------------------------------- on record


def tasks_digest(tasks: Sequence[Task]) -> str:
    """Of what the agent is told, in order. Where the trees lie does not matter."""
    return _digest([[task.id, task.brief.instruction, list(task.brief.tools)] for task in tasks])


def record_plan(out: Path, plan: ExperimentPlan, tasks: Sequence[Task]) -> None:
    """Write what the experiment is, or check that it is the one in the folder. Raises ConfigError if it is another."""
    path = out / RECORD
    digest = tasks_digest(tasks)
    if path.exists():
        _check_same(read_record(out), plan, digest, out)
    out.mkdir(parents=True, exist_ok=True)
    told: dict[str, Json] = {
        "format": FORMAT,
        "design": plan.name,
        "arm": plan.arm,
        "seed": plan.seed,
        "start": plan.start_digest,
        "tasks": digest,
        "num_tasks": len(tasks),
        "settings": to_json(plan.recorded),
    }
    with atomic_file(path) as part:
        part.write_text(json.dumps(told, indent=1), encoding="utf-8")


def read_record(out: Path) -> dict[str, Any]:
    """Our own JSON, hence Any."""
    try:
        found: dict[str, Any] = json.loads((out / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as raised:
        raise ConfigError(f"{out} holds no experiment ({raised}): give the folder of --out") from None
    if found.get("format") != FORMAT:
        raise ConfigError(f"{out} holds an experiment of format {found.get('format')}, and this is {FORMAT}")
    return found


def _check_same(before: dict[str, Any], plan: ExperimentPlan, digest: str, out: Path) -> None:
    for key, was, now in (
        ("the experiment", before["design"], plan.name),
        ("--arm", before["arm"], plan.arm),
        ("--seed", before["seed"], plan.seed),
        ("the tasks to train on", before["tasks"], digest),
    ):
        if was != now:
            raise ConfigError(f"{out} was begun with {key} {was}, and this is {now}: use the same, or another --out")
    check_changes(from_json(TrainConfig, before["settings"]), plan.recorded, run=str(out))

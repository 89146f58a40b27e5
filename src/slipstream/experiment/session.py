"""One session of an experiment: its stages, in order, each skipped if an earlier session did it.

    1 start      the warm start, the same for every arm and seed
    2 before     the evaluation of the start
    3 training   reinforcement learning, until the last step or the end of the time
    4 after      the evaluation of what was learnt so far, on the same tasks with the same seeds

Input: a plan, a folder, a budget of time. Output: in the folder the start, the run store of training with its
checkpoints, rows of every evaluation, and a line in `sessions.jsonl` for each stage. Invariants: whatever kills it, the
next session in that folder, or in one that was unpacked elsewhere, continues the same plan; the engine and the learner
are opened once for all stages.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.experiment.budget import Budget
from slipstream.experiment.evaluations import TELL_EVERY_S, Evaluation, EvaluationName, EvaluationState, in_flight
from slipstream.experiment.machine import machine_facts
from slipstream.experiment.plan import ExperimentPlan, record_plan, with_arm
from slipstream.experiment.start import Start
from slipstream.experiment.steps import TRAINING, update_steps
from slipstream.record import RunStore
from slipstream.settings.header import run_header
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.loop import TrainProgress
from slipstream.training.policy import PolicyModel, WarmProgress, make_policy_folder, open_policy
from slipstream.training.run import Listener, TrainPlan, plan_training, train_from
from slipstream.types import Json
from slipstream.wiring.task_sets import tasks_of

SESSIONS = "sessions.jsonl"
OPENING = "opening"
"""In place of a stage: until the engine and the learner were open."""
UNKNOWN_SHARE = 0.25
"""Of a session's time, kept for an evaluation after training if none was made before."""


class Stage(StrEnum):
    START = "start"
    BEFORE = "before"
    TRAINING = "training"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    part: str = "held_out"
    samples: int = 8
    """Rollouts of each task in an evaluation."""
    minutes: float | None = None
    stages: Collection[Stage] = frozenset(Stage)
    eval_arms: tuple[str, ...] = ()
    """Arms that the trained agent is evaluated as, besides its own."""
    start: Path | None = None
    """The folder of another experiment whose start, and evaluations of it, are taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResult:
    version: int
    steps: int
    evaluated: tuple[tuple[EvaluationName, EvaluationState], ...]

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.version >= self.steps and all(state.is_whole for _, state in self.evaluated)


@dataclass(slots=True, kw_only=True)
class _Session:
    plan: ExperimentPlan
    out: Path
    options: SessionOptions
    budget: Budget
    on_status: Callable[[str], None]
    start: Start
    began_s: float
    evaluated: dict[EvaluationName, EvaluationState] = field(default_factory=dict)
    loaded: int | None = None
    """The version that the policy is known to be at."""

    # ---------------------------------------------------------------- stages

    async def run(self, training: TrainPlan) -> SessionResult:
        self.start.adopt(self.options.start, self.on_status)
        make_policy_folder(self.plan.start_config, self.out, self.on_status)
        opened_s = time.time()
        async with open_policy(self.plan.start_config, self.out) as policy:
            self._log(OPENING, opened_s, {"planning_s": round(opened_s - self.began_s, 2), "machine": machine_facts()})
            if not self.start.is_made and not self._reached():
                self._require(Stage.START, "the start is not made")
                with self._stage(Stage.START):
                    await self.start.make(policy, self.plan.start_config, self.on_status)
                self.loaded = 0
            if Stage.BEFORE in self.options.stages and self.start.is_made:
                await self._evaluate(policy, 0)
            version = self._reached()
            if Stage.TRAINING in self.options.stages and version < training.config.steps:
                version = await self._train(policy, training)
            if Stage.AFTER in self.options.stages and version:
                await self._evaluate(policy, version)
        return SessionResult(version=version, steps=training.config.steps, evaluated=tuple(self.evaluated.items()))

    async def _evaluate(self, policy: PolicyModel, version: int) -> None:
        arms = [self.plan.arm, *self.options.eval_arms]
        for arm in dict.fromkeys(arms):
            evaluation = Evaluation(self.out, EvaluationName(part=self.options.part, arm=arm, version=version))
            config = self.plan.eval_config(self.options.part, arm, samples=self.options.samples, policy=policy.settings)
            work = await evaluation.missing(config)
            if not work.jobs or self.budget.left_s <= 0:
                self.on_status(f"evaluation {evaluation.name}: {'out of time' if work.jobs else 'done before'}")
                self.evaluated[evaluation.name] = evaluation.state()
                continue
            await self._load(policy, version)
            with self._stage(Stage.AFTER if version else Stage.BEFORE, name=str(evaluation.name)):
                state = await evaluation.run(
                    work, policy.learner.completer, until_s=self.budget.until_s, on_status=self.on_status
                )
            self.evaluated[evaluation.name] = state
            self.on_status(f"evaluation {evaluation.name}: {_figures(evaluation)}")

    async def _load(self, policy: PolicyModel, version: int) -> None:
        """Bring the policy to a version, unless it is there."""
        if self.loaded == version:
            return
        path = Checkpoints.of_run(self.out / TRAINING).path(version) if version else self.start.checkpoint
        if not path.exists():
            raise ConfigError(f"{self.out} has no checkpoint of version {version} any more: it cannot be evaluated")
        await policy.learner.load(path)
        self.loaded = version

    async def _train(self, policy: PolicyModel, training: TrainPlan) -> int:
        folder = self.out / TRAINING
        after_s = self._seconds_after() if Stage.AFTER in self.options.stages else 0.0
        if not self.budget.has_step(after_s):
            self.on_status("no time for another training step")
            return self._reached()
        store = RunStore.open(folder) if RunStore.exists(folder) else _new_store(folder, training)
        self.loaded = None
        with self._stage(Stage.TRAINING):
            async with store:
                self.budget.begin_steps()  # the question above was about no step
                await train_from(
                    training,
                    store,
                    policy,
                    self.start.checkpoint,
                    Listener(on_progress=_steps_told(self.on_status), on_status=self.on_status, on_warm=_ignored),
                    should_stop=lambda: not self.budget.has_step(after_s),
                )
        self.loaded = policy.learner.version
        return policy.learner.version

    def _seconds_after(self) -> float:
        """What the evaluation after training takes, judging by the one before it."""
        arms = len({self.plan.arm, *self.options.eval_arms})
        before = Evaluation(self.out, EvaluationName(part=self.options.part, arm=self.plan.arm, version=0)).state()
        if not before.num_done:
            return self.budget.share_s(UNKNOWN_SHARE)
        return arms * before.seconds * before.num_jobs / before.num_done

    def _reached(self) -> int:
        """The newest version that has a checkpoint."""
        return max(Checkpoints.of_run(self.out / TRAINING).versions(), default=0)

    # ---------------------------------------------------------------- on record

    def _require(self, stage: Stage, problem: str) -> None:
        if stage not in self.options.stages:
            raise ConfigError(f"{problem}: leave out --stages, add {stage} to it, or name a start with --start")

    @contextmanager
    def _stage(self, stage: Stage, *, name: str = "") -> Iterator[None]:
        start_s, from_version = time.time(), self._reached()
        self.on_status(f"stage {stage}{f' ({name})' if name else ''}")
        try:
            yield
        finally:
            facts: dict[str, Json] = {"from_version": from_version, "to_version": self._reached()}
            self._log(stage, start_s, {**facts, **({"evaluation": name} if name else {})})

    def _log(self, stage: str, start_s: float, facts: dict[str, Json]) -> None:
        line: dict[str, Json] = {"stage": stage, "start_s": start_s, "end_s": time.time(), **facts}
        with (self.out / SESSIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


async def run_session(
    plan: ExperimentPlan, out: Path, options: SessionOptions, *, on_status: Callable[[str], None]
) -> SessionResult:
    """Do what is missing of an experiment, as far as the time allows."""
    budget, began_s = Budget(options.minutes), time.time()
    training = await asyncio.to_thread(plan_training, plan.config)
    for name in (plan.arm, *options.eval_arms):
        arm, part = plan.design.arm(name), plan.design.part(options.part)
        if arm.without_tools:  # refused now, rather than after the hours before its evaluation
            await asyncio.to_thread(tasks_of, with_arm(part, arm))
    record_plan(out, plan, [training.tasks[task_id] for task_id in training.train_ids])
    session = _Session(
        plan=plan,
        out=out,
        options=options,
        budget=budget,
        on_status=on_status,
        start=Start(out, plan.start_digest),
        began_s=began_s,
    )
    try:
        return await session.run(training)
    finally:
        update_steps(out, plan.design)


def _new_store(folder: Path, training: TrainPlan) -> RunStore:
    return RunStore.create(folder, config=run_header(training.config, training.tasks_digest))


_SHOWN = {
    "reward/mean": "reward",
    "groups/without_signal": "flat groups",
    "turns/mean": "turns",
    "learn/entropy": "entropy",
    "learn/engine_diff_mean": "engine diff",
    "learn/grad_norm": "grad norm",
}


def _steps_told(on_status: Callable[[str], None]) -> Callable[[TrainProgress], None]:
    """A line for each step, and for one that takes long now and then."""
    told, last_s = -1, time.monotonic()

    def tell(progress: TrainProgress) -> None:
        nonlocal told, last_s
        now_s = time.monotonic()
        if progress.version != told and progress.metrics:
            figures = [
                f"{label} {progress.metrics[name]:.4g}" for name, label in _SHOWN.items() if name in progress.metrics
            ]
            on_status(f"step {progress.version}/{progress.steps} in {now_s - last_s:.1f} s: {', '.join(figures)}")
            told, last_s = progress.version, now_s
        elif now_s - last_s > TELL_EVERY_S:
            on_status(f"step {progress.version}/{progress.steps}: {progress.doing}; {in_flight(progress.view)}")
            last_s = now_s

    return tell


def _ignored(progress: WarmProgress) -> None: ...


def _figures(evaluation: Evaluation) -> str:
    rewards = [row.reward for row in evaluation.rows().values() if row.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    return f"mean reward {mean:.4f} of {len(rewards)} rollouts"

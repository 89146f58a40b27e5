"""A training run on virtual time: simulated attempts, a learner that counts."""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.batch.advantages import leave_one_out
from slipstream.bridges.null import NullLearner
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch as AllAtOnce
from slipstream.feed import Feed, SolveRateFilter
from slipstream.model.scripted import ScriptedModel, replies
from slipstream.placement.simulated import Plan, SimulatedAttempt, SimulatedPlacement
from slipstream.record import MemoryJournal, RunStore, plan_resume
from slipstream.seams import Measured, PastAttempt, StepDone
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.loop import LoopSettings, Trainer, TrainProgress
from slipstream.types import (
    Batch,
    Brief,
    Grading,
    Job,
    Rollout,
    Sampled,
    StopReason,
    Task,
    Turn,
    UpdateResult,
    token_ids,
)

TASKS = [Task(id=f"t{number}", brief=Brief(instruction="?"), grading=Grading(kind="exact")) for number in range(6)]
HELD_OUT = [Task(id=f"h{number}", brief=Brief(instruction="?"), grading=Grading(kind="exact")) for number in range(2)]
SETTINGS = LoopSettings(steps=4, samples=2, staleness=0, estimator=leave_one_out, seed=7, eval_every=2)


class TokenPlacement(SimulatedPlacement):
    """Attempts whose one turn carries the policy's version at the time it was run."""

    def __init__(self, plan: Callable[[Job, int], Plan], version: Callable[[], int]) -> None:
        super().__init__(plan)
        self._version = version
        self.expected: list[tuple[float, Job]] = []

    def expect(self, job: Job) -> None:
        self.expected.append((asyncio.get_running_loop().time(), job))

    def open(self, job: Job, number: int, past: PastAttempt | None) -> SimulatedAttempt:
        self.started.append((job.key, number))
        return TokenAttempt(job, number, self._plan(job, number), self.usage, self._version)


class TokenAttempt(SimulatedAttempt):
    def __init__(self, job: Job, number: int, plan: Plan, usage: Any, version: Callable[[], int]) -> None:
        super().__init__(job, number, plan, usage)
        self._version_now = version
        self._turn: Turn | None = None

    async def run(self) -> None:
        version = self._version_now()
        await super().run()
        sampled = Sampled(
            ids=token_ids([5, self._job.key.sample]),
            logprobs=array("f", [-0.5, -0.25]),
            versions=array("i", [version, version]),
            stop=StopReason.STOP,
        )
        self._turn = Turn(index=0, added=token_ids([1, 2]), sampled=sampled)

    async def grade(self) -> Rollout:
        rollout = await super().grade()
        return replace(rollout, turns=(self._turn,) if self._turn else ())


class SlowLearner(NullLearner):
    """An update takes time, and can be made to fail."""

    def __init__(self, seconds: float = 0.0, fail_at: int | None = None) -> None:
        super().__init__(
            ScriptedModel(replies("?"), decode=str, encode=lambda m: token_ids(), encode_text=lambda t: token_ids())
        )
        self._seconds = seconds
        self._fail_at = fail_at

    async def update(self, batch: Batch) -> UpdateResult:
        await asyncio.sleep(self._seconds)
        if self.version == self._fail_at:
            raise RuntimeError("told to fail")
        return await super().update(batch)


@dataclass
class Run:
    trainer: Trainer
    learner: SlowLearner
    placement: TokenPlacement
    journal: MemoryJournal | RunStore
    told: list[TrainProgress] = field(default_factory=list)

    def trained_keys(self) -> list[list[str]]:
        return [[str(row.sample.key) for row in batch.rows] for batch in self.learner.batches]

    def ages(self) -> list[int]:
        """For each batch, how many versions behind its update the oldest token was."""
        return [
            step - min(min(row.sample.versions[2:]) for row in batch.rows)
            for step, batch in enumerate(self.learner.batches)
        ]


def make_run(
    folder: Path,
    *,
    settings: LoopSettings = SETTINGS,
    plan: Callable[[Job, int], Plan] | None = None,
    learner: SlowLearner | None = None,
    journal: MemoryJournal | RunStore | None = None,
    held_out: Sequence[Task] = HELD_OUT,
    groups: int = 3,
    solve_rate: SolveRateFilter | None = None,
    on_figures: Callable[[StepDone | Measured], None] = lambda figures: None,
    on_status: Callable[[str], None] = lambda word: None,
    times: Callable[[], Measured] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    tasks: Sequence[Task] = TASKS,
    weights: Mapping[str, float] | None = None,
) -> Run:
    """Call it inside the event loop."""
    learner = learner or SlowLearner()
    journal = journal if journal is not None else MemoryJournal()
    placement = TokenPlacement(plan or (lambda job, number: Plan(reward=job.key.sample % 2)), lambda: learner.version)
    told: list[TrainProgress] = []
    dispatcher = Dispatcher(
        placement,
        policy=AllAtOnce(),
        journal=journal,
        resumed=plan_resume(journal.events(unfinished_only=True)).unfinished,
    )
    trainer = Trainer(
        settings,
        learner=learner,
        dispatcher=dispatcher,
        store=journal,
        feed=Feed(
            [task.id for task in tasks],
            num_per_step=groups,
            seed=settings.seed,
            solve_rate=solve_rate,
            weights=weights,
        ),
        tasks={task.id: task for task in (*tasks, *held_out)},
        held_out=held_out,
        checkpoints=Checkpoints(folder / "checkpoints", keep=2),
        on_progress=told.append,
        on_figures=on_figures,
        on_status=on_status,
        times=times,
        should_stop=should_stop,
    )
    return Run(trainer=trainer, learner=learner, placement=placement, journal=journal, told=told)

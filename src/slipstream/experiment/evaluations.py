"""The evaluation of one version of the policy, as rows that outlast its run store.

Input: an EvalConfig, a folder, a model that is open. Output: a row for each task and sample in `rows.jsonl`, and facts
in `evaluation.json`. Invariants: a job with a row is not run again, on whichever machine; jobs are in the order of
samples, so what a limit of time leaves covers every task first; the seeds are those of the job alone, so two versions
are compared on the same draws.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.aio import task_group
from slipstream.atomic import atomic_file
from slipstream.config import to_json
from slipstream.dispatch.base import DispatchView
from slipstream.errors import ConfigError
from slipstream.evaluation import EvalPlan, plan_evaluation, submit_all
from slipstream.experiment.plan import tasks_digest
from slipstream.experiment.rows import Row, RowFile, row_of
from slipstream.model.base import Completer
from slipstream.record import RunStore
from slipstream.settings import EvalConfig
from slipstream.tools import Toolset
from slipstream.types import Job, Json, Rollout, Task
from slipstream.wiring.run import start_run

FOLDER, FACTS, ROWS, STORE = "evaluations", "evaluation.json", "rows.jsonl", "run"
TELL_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationName:
    """`held_out-full-v000024`: the part, the arm that the agent was evaluated as, the version of the policy."""

    part: str
    arm: str
    version: int

    def __str__(self) -> str:
        return f"{self.part}-{self.arm}-v{self.version:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationState:
    """How far an evaluation is."""

    num_jobs: int
    num_done: int
    seconds: float
    """Of all its sessions."""

    @property
    def is_whole(self) -> bool:
        return self.num_done >= self.num_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalWork:
    """What one session has to do of an evaluation."""

    config: EvalConfig
    plan: EvalPlan
    offered: Mapping[str, frozenset[str]]
    """The names of the tools that each task offers."""
    jobs: tuple[Job, ...]


class Evaluation:
    """One evaluation in the folder of an experiment."""

    def __init__(self, out: Path, name: EvaluationName) -> None:
        self.folder = out / FOLDER / str(name)
        self.name = name
        self._file = RowFile(self.folder / ROWS)

    def rows(self) -> dict[tuple[str, int], Row]:
        return self._file.read()

    def facts(self) -> dict[str, Any]:
        """Our own JSON, hence Any; empty before it began."""
        try:
            found: dict[str, Any] = json.loads((self.folder / FACTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as raised:
            raise ConfigError(f"{self.folder / FACTS} cannot be read ({raised}): remove {self.folder}") from None
        return found

    def state(self) -> EvaluationState:
        facts = self.facts()
        return EvaluationState(
            num_jobs=facts.get("num_jobs", 0), num_done=len(self.rows()), seconds=facts.get("seconds", 0.0)
        )

    async def missing(self, config: EvalConfig) -> EvalWork:
        """What is still to be done for these settings. Raises ConfigError if there are rows of others."""
        plan = await asyncio.to_thread(plan_evaluation, config)
        self._check(config, plan)
        offered = _tools_of(plan.tasks)
        self._catch_up(offered)
        done = self.rows().keys()
        missing = tuple(job for job in plan.jobs if (job.key.task_id, job.key.sample) not in done)
        return EvalWork(config=config, plan=plan, offered=offered, jobs=missing)

    async def run(
        self,
        work: EvalWork,
        model: Completer,
        *,
        until_s: float | None,
        on_status: Callable[[str], None],
    ) -> EvaluationState:
        """Do that work, until the event loop's time `until_s` at most."""
        before_s, start_s = self.state().seconds, time.monotonic()
        self._write_facts(work, before_s)
        on_status(f"evaluation {self.name}: {len(work.jobs)} rollouts of {len(work.plan.jobs)} to do")
        limit = asyncio.timeout_at(until_s)
        try:
            async with limit:
                await self._run(work, model, on_status)
        except TimeoutError:
            if not limit.expired():
                raise
            on_status(f"evaluation {self.name}: out of time")
        finally:
            self._write_facts(work, before_s + time.monotonic() - start_s)
        return self.state()

    async def _run(self, work: EvalWork, model: Completer, on_status: Callable[[str], None]) -> None:
        folder, config = self.folder / STORE, work.config
        store = RunStore.open(folder) if RunStore.exists(folder) else RunStore.create(folder, config=to_json(config))
        async with store, start_run(config, work.plan.tasks, lambda: nullcontext(store), model=model) as run:
            dispatcher, told_s, num = run.dispatcher, time.monotonic(), 0
            async with dispatcher, task_group() as group:
                group.create_task(submit_all(dispatcher, work.jobs))
                async for rollout in dispatcher.finished():
                    self._add([rollout], work.offered)
                    num += 1
                    if time.monotonic() - told_s > TELL_EVERY_S:
                        told_s = time.monotonic()
                        view = in_flight(dispatcher.view())
                        on_status(f"evaluation {self.name}: {num} of {len(work.jobs)}, {view}")

    def _add(self, rollouts: Sequence[Rollout], offered: Mapping[str, frozenset[str]]) -> None:
        self._file.add(row_of(each, tools=offered[each.job.key.task_id]) for each in rollouts)

    def _catch_up(self, offered: Mapping[str, frozenset[str]]) -> None:
        """Add the rows of rollouts that are in the run store alone, since the process was killed in between."""
        folder = self.folder / STORE
        if not RunStore.exists(folder):
            return
        reader, have = RunStore.read(folder), self.rows().keys()
        if any((key.task_id, key.sample) not in have for key in reader.done_keys()):
            found = [each for each in reader.rollouts() if (each.job.key.task_id, each.job.key.sample) not in have]
            self._add([each for each in found if each.job.key.task_id in offered], offered)

    def _check(self, config: EvalConfig, plan: EvalPlan) -> None:
        """Refuse to add to rows of other tasks, or of an agent with other settings."""
        facts = self.facts()
        if not facts:
            return
        for key, now in _identity(config, plan).items():
            if facts[key] != now:
                raise ConfigError(
                    f"{self.folder} was begun with {key} {facts[key]!r:.200}, and now it is {now!r:.200}: use the "
                    "same, or remove that folder"
                )

    def _write_facts(self, work: EvalWork, seconds: float) -> None:
        told: dict[str, Json] = {
            "part": self.name.part,
            "arm": self.name.arm,
            "version": self.name.version,
            "num_tasks": len(work.plan.tasks),
            "num_jobs": max(len(work.plan.jobs), self.state().num_jobs),
            "seconds": round(seconds, 2),
            **_identity(work.config, work.plan),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.folder / FACTS) as part:
            part.write_text(json.dumps(told), encoding="utf-8")


def _identity(config: EvalConfig, plan: EvalPlan) -> dict[str, Json]:
    """What may not change between sessions."""
    return {
        "tasks": tasks_digest(list(plan.tasks.values())),
        "seed": config.seed,
        "solved_at": config.solved_at,
        "temperature": config.model.temperature,
        "max_tokens": config.model.max_tokens,
        "context_tokens": config.model.context_tokens,
        "agent": to_json(config.agent),
    }


def in_flight(view: DispatchView) -> str:
    """What is under way, for a line of progress."""
    return f"{view.running} running, {view.initialising} starting, {view.ready} ready, {view.grading} being graded"


def _tools_of(tasks: Mapping[str, Task]) -> dict[str, frozenset[str]]:
    """The names of the tools that each task offers."""
    known: dict[tuple[str, ...], frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for task in tasks.values():
        paths = tuple(task.brief.tools)
        if paths not in known:
            known[paths] = frozenset(spec.name for spec in Toolset.named(paths).specs)
        found[task.id] = known[paths]
    return found


def evaluations(out: Path) -> list[Evaluation]:
    """Those in the folder of an experiment, by name."""
    found = []
    for folder in sorted((out / FOLDER).glob(f"*/{FACTS}")):
        facts = json.loads(folder.read_text(encoding="utf-8"))
        name = EvaluationName(part=facts["part"], arm=facts["arm"], version=facts["version"])
        found.append(Evaluation(out, name))
    return found

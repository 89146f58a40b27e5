"""A run put together: model, sandboxes and helper processes opened, then the run store, then the dispatcher.

Invariants: the store is opened last, when all that can be checked was, so bad settings leave no run behind. What is
opened here is closed when the context ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from slipstream.dispatch.base import Placement
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.graders.registry import find_grader
from slipstream.model.base import ChatModel, Completer
from slipstream.placement.inprocess import InProcess
from slipstream.placement.processes import HelperSpec, Processes, open_processes
from slipstream.record import RunStore, plan_resume
from slipstream.rollout.attempt import weight_of_grading
from slipstream.seams import Journal, RunEnded
from slipstream.settings import RunConfig
from slipstream.telemetry.sampler import sampling
from slipstream.types import Grading, Job, Task
from slipstream.wiring.attempts import AttemptResources, open_helper_deps, open_resources, sandbox_shares
from slipstream.wiring.models import dialogue_maker, open_model
from slipstream.wiring.pacing import Pacing

OpenStore: TypeAlias = Callable[[], AbstractAsyncContextManager[RunStore]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    dispatcher: Dispatcher
    """Not entered yet."""
    store: RunStore


@asynccontextmanager
async def start_run(
    config: RunConfig,
    tasks: Mapping[str, Task],
    open_store: OpenStore,
    *,
    model: Completer | ChatModel | None = None,
    is_proven: bool = False,
) -> AsyncIterator[LiveRun]:
    """A run that is ready to take jobs. Unfinished jobs in its store are resumed when they are submitted.

    `model` samples in place of what the settings name, and is not closed here. `is_proven`: user code that fails
    every attempt does not end the run; nor does it once the store has a verdict.
    """
    async with open_parts(config, tasks, model=model) as parts, open_store() as store:
        pacing = parts.pacing
        async with sampling(store, config.hardware.every_s, take_work=pacing.take_work):
            await store.flush()  # an earlier session may have left unflushed events
            yield LiveRun(
                dispatcher=Dispatcher(
                    parts.placement(store),
                    policy=pacing.policy,
                    journal=store,
                    limits=pacing.limits,
                    gate=pacing.gate,
                    load=pacing.load,
                    deadlines=config.dispatch.deadlines,
                    retries=config.dispatch.retries,
                    resumed=plan_resume(store.events(unfinished_only=True)).unfinished,
                    is_proven=is_proven or any(each.verdict is not None for each in store.rollouts(with_turns=False)),
                ),
                store=store,
            )
            await pacing.catch_up()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """All that the attempts of a run need except the journal."""

    config: RunConfig
    tasks: Mapping[str, Task]
    pacing: Pacing
    model: Completer | ChatModel
    workers: AttemptResources | Processes
    """For attempts in this process, or in helper processes."""

    def placement(self, journal: Journal) -> Placement:
        if isinstance(self.workers, Processes):
            self.workers.journal = journal
            return self.workers
        make_dialogue = dialogue_maker(self.config.model, self.model, self.pacing.gate)
        return InProcess(self.workers.deps(journal, make_dialogue), self.tasks)


@asynccontextmanager
async def open_parts(
    config: RunConfig, tasks: Mapping[str, Task], *, model: Completer | ChatModel | None = None
) -> AsyncIterator[RunParts]:
    pacing = Pacing(config.dispatch)
    shares = sandbox_shares(config, pacing.limits.sandboxes)
    async with AsyncExitStack() as stack:
        workers: AttemptResources | Processes | None = None
        if not config.dispatch.processes:
            workers = await stack.enter_async_context(open_resources(config, tasks, shares[0]))
        if model is None:
            model = await stack.enter_async_context(open_model(config.model, asks_load=pacing.needs_load))
        if isinstance(model, Completer):
            pacing.set_engine(model)
        if workers is None:
            spec = HelperSpec(
                opener=f"{open_helper_deps.__module__}:{open_helper_deps.__name__}",
                works=tuple((config, tasks, share) for share in shares),
                max_sandboxes=tuple(share.live for share in shares),
            )
            workers = await stack.enter_async_context(
                open_processes(
                    spec,
                    model=model,
                    gate=pacing.gate,
                    grade_weight=lambda job, ended: _grade_weight(job, tasks[job.key.task_id].grading, ended),
                )
            )
        yield RunParts(config=config, tasks=tasks, pacing=pacing, model=model, workers=workers)


def _grade_weight(job: Job, grading: Grading, ended: RunEnded) -> int:
    return weight_of_grading(job, find_grader(grading.kind), grading, ended)

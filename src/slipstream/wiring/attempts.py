"""What the attempts of one process share: its sandbox pool, the toolsets, the agent's settings.

Invariants: everything that can be checked is checked before the first rollout starts, and what is opened here is
closed when the context ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from slipstream.agent.config import AgentConfig
from slipstream.agent.loop import ToolAgent
from slipstream.errors import ConfigError
from slipstream.graders.registry import find_grader
from slipstream.hub import default_home
from slipstream.placement.open_files import raise_open_files
from slipstream.rollout.attempt import AttemptDeps, DialogueMaker
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.cleanup.lease import Lease, take_lease
from slipstream.sandbox.cleanup.reaper import reap
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.pool.pool import Pool
from slipstream.seams import Journal, TurnGate
from slipstream.settings import RunConfig, SandboxConfig
from slipstream.settings.prompt import agent_as_trained
from slipstream.tools.toolset import Toolset
from slipstream.types import Task
from slipstream.wiring.models import dialogue_maker, trained_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxShare:
    """What one process may have of the run's sandboxes."""

    warm: int
    live: int | None
    num_processes: int = 1


def sandbox_shares(config: RunConfig, max_live: int | None) -> list[SandboxShare]:
    """One share for each process; together they are what the settings say."""
    num = max(1, config.dispatch.processes)
    if max_live is not None and max_live < num:
        raise ConfigError.setting(
            "dispatch.processes",
            num,
            f"dispatch.limits.sandboxes={max_live} leaves some process without a sandbox, so it would have nothing to "
            "do; ask for fewer processes, or more sandboxes",
            f"dispatch.processes={max_live}",
            f"dispatch.limits.sandboxes={num}",
        )
    warm = config.sandbox.warm
    return [
        SandboxShare(
            warm=warm // num + (place < warm % num),
            live=None if max_live is None else max_live // num + (place < max_live % num),
            num_processes=num,
        )
        for place in range(num)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResources:
    """Everything the attempts of a process share except the journal and the model."""

    pool: Pool
    toolsets: Mapping[tuple[str, ...], Toolset]
    agent: AgentConfig
    start_timeout_s: float

    def deps(self, journal: Journal, make_dialogue: DialogueMaker) -> AttemptDeps:
        return AttemptDeps(
            provider=self.pool,
            journal=journal,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(self.toolsets[task.brief.tools], self.agent),
            find_grader=find_grader,
            start_timeout_s=self.start_timeout_s,
            expect=lambda spec: self.pool.expect_more([spec]),
        )


@asynccontextmanager
async def open_resources(
    config: RunConfig, tasks: Mapping[str, Task], share: SandboxShare
) -> AsyncIterator[AttemptResources]:
    toolsets = {names: Toolset.named(names) for names in {task.brief.tools for task in tasks.values()}}
    agent = agent_as_trained(config.agent, trained_folder(config.model))
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(_open_pool(config.sandbox, share))
        check_sandboxes(pool, tasks)
        for toolset in toolsets.values():
            stack.push_async_callback(toolset.aclose)
        yield AttemptResources(
            pool=pool, toolsets=toolsets, agent=agent, start_timeout_s=config.sandbox.start_timeout_s
        )


@asynccontextmanager
async def open_helper_deps(
    work: tuple[RunConfig, Mapping[str, Task], SandboxShare], *, model: Any, gate: TurnGate, journal: Journal
) -> AsyncIterator[tuple[AttemptDeps, Mapping[str, Task]]]:
    """What a helper process does its part of a run with (see `placement.helper`)."""
    config, tasks, share = work
    async with open_resources(config, tasks, share) as resources:
        yield resources.deps(journal, dialogue_maker(config.model, model, gate)), tasks


@asynccontextmanager
async def _open_pool(config: SandboxConfig, share: SandboxShare) -> AsyncIterator[Pool]:
    """The run's sandboxes. Whatever killed runs left behind is removed first."""
    home = default_home()
    left = await asyncio.to_thread(reap, home)
    for problem in left.problems:
        log.warning("leftovers of a killed run could not be removed: %s", problem)
    lease = take_lease(home)
    pool = Pool(
        make_provider(config, lease, share.num_processes, raise_open_files()),
        max_warm=share.warm,
        max_live=share.live,
        start_timeout_s=config.start_timeout_s / 2,
    )
    try:
        yield pool
    finally:
        try:
            await pool.aclose()
        finally:
            lease.release()


def make_provider(
    config: SandboxConfig, lease: Lease | None = None, num_processes: int = 1, open_files: int | None = None
) -> SandboxProvider:
    """What starts sandboxes. `lease` ties them to the run, `num_processes` of which start any; `open_files` is the
    soft limit of programs inside, if it is not this process's own."""
    if config.provider == "oci":
        from slipstream.sandbox.oci.provider import OciProvider

        return OciProvider(engine=config.engine or None, lease=lease, start_timeout_s=config.start_timeout_s)
    lease_id = "" if lease is None else lease.id
    return LocalProvider(
        lease=lease_id, start_timeout_s=config.start_timeout_s, sharers=num_processes, open_files=open_files
    )


def check_sandboxes(provider: SandboxProvider, tasks: Mapping[str, Task]) -> None:
    """Refuse what the tasks' sandboxes cannot be started from."""
    provider.check()
    for task in tasks.values():
        if task.sandbox is not None:
            provider.check_spec(task.sandbox)

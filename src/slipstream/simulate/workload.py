"""Workloads: what jobs would do, and the machine that they would do it on. `docs/dispatch.md` has the JSON form.

Enters: JSON, or a regime's own numbers. Leaves: a Workload, checked. Pure data: nothing here runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from slipstream.dispatch.base import Deadlines, Retries
from slipstream.errors import ConfigError
from slipstream.simulate.engine import EngineSpec

SimFault = Literal["raise", "hang", "lose"]
"""`raise` and `lose` (the sandbox is gone) come half-way through a stage, `hang` never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """Work of a stage: first a wait that uses nothing, such as a download; then work on the machine's cores."""

    wait_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTurn:
    sampled: int
    """Tokens of the reply."""
    observed: int = 0
    """Tokens of what the tool answers."""
    tool_s: float = 0.0
    tool_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    task: str
    sample: int = 0
    step: int = 0
    prompt: int
    """Tokens of the first prompt."""
    init: Chore
    turns: tuple[SimTurn, ...]
    grade: Chore
    """In a sandbox of its own, whose start is part of it."""
    faults: Mapping[str, SimFault] | None = None
    """By number of the attempt and stage: {"1 init": "raise"}."""

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens before each turn's reply."""
        found, context = [], self.prompt
        for turn in self.turns:
            found.append(context)
            context += turn.sampled + turn.observed
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    engine: EngineSpec
    cores: float
    agents: int
    """How many agents' contexts the KV cache holds on average."""
    sandbox_cap: int
    """For every policy but `batch`."""
    slots: int
    """Of `bounded`, and workers in each stage of `pipeline`, before they are tuned."""
    deadlines: Deadlines = Deadlines(run_s=86_400.0, job_s=7 * 86_400.0, grade_s=86_400.0, init_s=86_400.0)
    retries: Retries = Retries()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    machine: Machine
    jobs: tuple[SimJob, ...]
    staleness: int | None = None
    """For jobs of several steps: those of a step are submitted when all are back of the step `staleness + 1` before
    it. None: all at once."""


_workload = TypeAdapter(Workload)


def read_workload(path: Path) -> Workload:
    try:
        return checked(_workload.validate_json(path.read_bytes()))
    except OSError as raised:
        raise ConfigError(f"cannot read the workload {path}: {raised.strerror}") from raised
    except ValidationError as raised:
        problem = raised.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"workload {path}, {place}: {problem['msg']}") from None


def workload_json(workload: Workload) -> str:
    return json.dumps(_workload.dump_python(workload, mode="json"))


def checked(workload: Workload) -> Workload:
    machine, name = workload.machine, workload.name
    if not workload.jobs:
        raise ConfigError(f"workload {name} has no jobs")
    if machine.sandbox_cap < 1 or machine.slots < 1 or machine.agents < 1 or machine.cores <= 0:
        raise ConfigError(f"workload {name}: sandbox_cap, slots, agents and cores must be above 0")
    for job in workload.jobs:
        if not job.turns:
            raise ConfigError(f"workload {name}: {job.task}/{job.sample} has no turns")
        largest = job.contexts[-1] + job.turns[-1].sampled
        if largest > machine.engine.kv_tokens:
            raise ConfigError(
                f"workload {name}: {job.task}/{job.sample} grows to {largest} tokens, and the cache holds "
                f"{machine.engine.kv_tokens}: it could never end"
            )
    return workload

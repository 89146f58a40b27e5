"""Workloads: what jobs do, and the machine they run on. `docs/dispatch.md` has the JSON format.

Input: JSON, or the numbers of a regime. Output: a checked Workload. Pure data: nothing runs here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from slipstream.dispatch.base import Deadlines, Retries
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.simulate.machine.engine import EngineSpec

TRAIN, HELD_OUT = "train", "held_out"
"""Phases of jobs."""
SimFault = Literal["raise", "hang", "lose"]
"""`raise` and `lose` (the sandbox is gone) happen half-way through a stage, `hang` never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """A stage's work: first a wait that uses no cores, such as a download; then work on the machine's cores."""

    wait_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTurn:
    sampled: int
    """Tokens of the reply."""
    observed: int = 0
    """Tokens of the tool's answer."""
    tool_s: float = 0.0
    tool_cpu_s: float = 0.0
    context: int | None = None
    """Tokens before the reply, if they do not continue the previous turn: the conversation was rewritten."""
    kept: int | None = None
    """How many of its first tokens were in the previous turn; None: all of them."""


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
    """In its own sandbox, whose start is included."""
    faults: Mapping[str, SimFault] | None = None
    """By attempt number and stage: {"1 init": "raise"}."""
    phase: str = TRAIN
    start: Chore = Chore()
    """The start of the run stage, before the first turn."""
    release_s: float = 0.0
    """To close its sandbox."""
    shared: int = 0
    """Tokens of the first prompt that other rollouts already put into the engine's cache."""
    weight: int = 1
    """Units of its sandbox; 0 if it has none."""
    grade_weight: int = 1
    verdict: bool = True
    """Whether it gets a verdict."""

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens before each turn's reply."""
        found, context = [], self.prompt
        for turn in self.turns:
            context = context if turn.context is None else turn.context
            found.append(context)
            context += turn.sampled + turn.observed
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMachine:
    engine: EngineSpec
    cores: float
    agents: int
    """The number of agents that the KV cache is sized for: more than fit with their final contexts, fewer than fit with
    their mean contexts. The sweep of the fixed policies is based on it."""
    sandbox_cap: int
    """For every policy but `batch`."""
    slots: int
    """Of `bounded`, and workers in each stage of `pipeline`, before they are tuned."""
    deadlines: Deadlines = Deadlines(run_s=86_400.0, job_s=7 * 86_400.0, grade_s=86_400.0, init_s=86_400.0)
    retries: Retries = Retries()
    others: float = 0.0
    """Cores that other programs use all the time."""
    front_s: float = 0.0
    """CPU time of the run's own process per model call, half of it after the tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    machine: SimMachine
    jobs: tuple[SimJob, ...]
    staleness: int | None = None
    """For jobs of several steps: a step's jobs are submitted when all jobs of the step `staleness + 1` earlier are
    done. None: all at once."""
    keep: int | None = None
    """The first `keep` rollouts with a verdict are enough for a group; the others are cancelled."""
    update_s: tuple[float, ...] = ()
    """The learner's time after each step, in order; then the next policy version is available."""
    engines: int = 1
    """Identical engines; a rollout stays with one of them."""


_workload = TypeAdapter(Workload)


def read_workload(path: Path) -> Workload:
    try:
        written = path.read_bytes()
        workload = _workload.validate_json(written)
    except OSError as raised:
        raise ConfigError(f"cannot read the workload {path}: {raised.strerror}") from raised
    except ValidationError as raised:
        problem = raised.errors()[0]
        place = "".join(f", {'.'.join(map(str, loc))}" for loc in [problem["loc"]] if loc)
        raise ConfigError(f"workload {path}{place}: {problem['msg']}") from None
    _refuse_unknown(json.loads(written), _workload.dump_python(workload, mode="json"), f"workload {path}")
    return checked(workload)


def _refuse_unknown(written: Any, known: Any, place: str) -> None:
    """Refuse unknown keys, which are typos. `Any`, since this is JSON."""
    if isinstance(written, dict):
        for name, value in written.items():
            if name not in known:
                raise ConfigError(f'{place}: there is no "{name}"{did_you_mean(name, known)}')
            _refuse_unknown(value, known[name], f"{place}, {name}")
    elif isinstance(written, list):
        for index, value in enumerate(written):
            _refuse_unknown(value, known[index], f"{place}, {index}")


def workload_json(workload: Workload) -> str:
    return json.dumps(_workload.dump_python(workload, mode="json"))


def checked(workload: Workload) -> Workload:
    machine, name = workload.machine, workload.name
    if not workload.jobs:
        raise ConfigError(f"workload {name} has no jobs")
    if machine.sandbox_cap < 1 or machine.slots < 1 or machine.agents < 1 or machine.cores <= 0:
        raise ConfigError(f"workload {name}: sandbox_cap, slots, agents and cores must be above 0")
    engine = machine.engine
    if min(engine.step_s, engine.prefill_tokens_s) <= 0 or min(engine.row_s, engine.token_s) < 0:
        raise ConfigError(
            f"workload {name}: the engine's step_s and prefill_tokens_s must be above 0, row_s and token_s not negative"
        )
    if engine.call_s < 0 or engine.cores < 0 or min(engine.slots or 1, engine.contexts or 1, workload.engines) < 1:
        raise ConfigError(
            f"workload {name}: the engine's call_s and cores must not be negative; its slots, contexts and engines "
            "must be 1 or more"
        )
    if machine.others < 0:
        raise ConfigError(f"workload {name}: others must not be negative")
    if min(workload.update_s, default=0.0) < 0 or (workload.keep or 1) < 1:
        raise ConfigError(f"workload {name}: update_s must not be negative, and keep must be 1 or more")
    if not 0 < engine.prefill_share < 1:
        raise ConfigError(f"workload {name}: the engine's prefill_share is {engine.prefill_share}, not between 0 and 1")
    for job in workload.jobs:
        if min(_amounts(job)) < 0:
            raise ConfigError(f"workload {name}: {job.task}/{job.sample} has a negative amount: {min(_amounts(job))}")
        if not job.turns:
            raise ConfigError(f"workload {name}: {job.task}/{job.sample} has no turns")
        largest = max(context + turn.sampled for context, turn in zip(job.contexts, job.turns, strict=True))
        if largest > machine.engine.kv_tokens:
            raise ConfigError(
                f"workload {name}: {job.task}/{job.sample} grows to {largest} tokens, but the cache holds only "
                f"{machine.engine.kv_tokens}: it could never finish"
            )
    return workload


def _amounts(job: SimJob) -> list[float]:
    found = [job.prompt, job.init.wait_s, job.init.cpu_s, job.grade.wait_s, job.grade.cpu_s]
    found += [job.start.wait_s, job.start.cpu_s, job.release_s, job.shared, job.weight, job.grade_weight]
    for turn in job.turns:
        found += [turn.sampled, turn.observed, turn.tool_s, turn.tool_cpu_s, turn.context or 0, turn.kept or 0]
    return found

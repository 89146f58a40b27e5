"""Families of workloads with wide priors: one half to tune the policies on, and the other to measure them.

Input: the name of a family and a seed. Output: a checked workload. The seed draws the machine too: the room in the
cache, the engine's speeds, the cap. Invariants: the same name and seed give the same workload; a simulation of one
takes about a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.dispatch.base import Deadlines
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.regimes import RolloutShape, final_context, lognormal, make_jobs
from slipstream.simulate.workload import Chore, SimJob, SimMachine, SimTurn, Workload, checked

Change = Callable[[random.Random, SimJob], SimJob]
"""Makes a job that a shape cannot describe."""
Range = tuple[float, float]
"""From which a number is drawn, evenly on a logarithmic scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    about: str
    shape: Mapping[str, float | Range] = field(default_factory=dict)
    """What differs from `_USUAL`; a range is drawn from."""
    agents: Range = (12, 28)
    """How many final contexts the cache holds."""
    cap: Range = (1.8, 3.5)
    """The cap on sandboxes, as a multiple of them."""
    jobs: Range = (5.0, 9.0)
    """The number of jobs, as a multiple of them; of each step, where there are several."""
    engine: Mapping[str, float | Range | bool] = field(default_factory=dict)
    """What differs from `_ENGINE`."""
    slots: float | None = None
    """The engine's slots, as a multiple of the agents."""
    contexts: float | None = None
    """The contexts its cache holds at most, as a multiple of the agents."""
    engines: int = 1
    cores: float = 256.0
    deadlines: Deadlines | None = None
    change: Change | None = None
    steps: int = 1
    staleness: int | None = None
    growth: float = 1.0
    """The factor by which rollouts have more turns at each step."""
    update_s: float = 0.0
    held_out: int = 0
    """Held-out jobs at every step but the first."""
    keep: float | None = None
    """The share of a group that is enough."""


_USUAL: Mapping[str, float | Range] = {
    "samples": 4,
    "prompt": (1_500, 6_000),
    "turns": (7, 14),
    "turns_spread": (0.2, 0.5),
    "max_turns": 40,
    "sampled": (150, 450),
    "observed": (150, 700),
    "tool_s": (0.5, 6),
    "init_s": (5, 90),
    "grade_s": (5, 90),
}
_ENGINE: Mapping[str, float | Range | bool] = {
    "step_s": (0.015, 0.035),
    "row_s": 0.000_05,
    "token_s": (2e-9, 2e-8),
    "prefill_tokens_s": (12_000, 100_000),
}


# ---------------------------------------------------------------- jobs that a shape cannot describe


def _compacted(limit: Range, left: float) -> Change:
    """Whenever a context would pass a limit of the job's own, it is rewritten to a share of that; its prompt stays."""

    def change(rng: random.Random, job: SimJob) -> SimJob:
        most = max(_drawn(rng, limit), 2.0 * job.prompt)
        turns, context = [], job.prompt
        for turn in job.turns:
            if context + turn.sampled > most:
                context = max(job.prompt, round(left * most))
                turn = replace(turn, context=context, kept=job.prompt)
            turns.append(turn)
            context += turn.sampled + turn.observed
        return replace(job, turns=tuple(turns))

    return change


def _windowed(rng: random.Random, job: SimJob) -> SimJob:
    """Of the tools' answers only the last three are kept, so nearly every turn rewrites what stood before."""
    turns, context, answers = [], job.prompt, list[int]()
    for turn in job.turns:
        if len(answers) > 3:
            gone = answers.pop(0)
            kept = max(job.prompt, context - sum(answers) - gone)
            context = max(job.prompt, context - gone)
            turn = replace(turn, context=context, kept=min(kept, context))
        turns.append(turn)
        context += turn.sampled + turn.observed
        answers.append(turn.observed)
    return replace(job, turns=tuple(turns))


def _some_large(share: float, factor: float) -> Change:
    """A share of the tasks has contexts many times as large."""

    def change(rng: random.Random, job: SimJob) -> SimJob:
        if random.Random(job.task).random() >= share:
            return job
        turns = tuple(replace(turn, observed=round(factor * turn.observed)) for turn in job.turns)
        return replace(job, prompt=round(factor * job.prompt), turns=turns)

    return change


def _some_slow(share: float, tool_s: Range, *, by_task: bool) -> Change:
    """A share of the tool calls takes long: of all, or those of certain tasks."""

    def change(rng: random.Random, job: SimJob) -> SimJob:
        if by_task and random.Random(job.task).random() >= share:
            return job
        slow = 1.0 if by_task else share
        return replace(
            job,
            turns=tuple(
                replace(turn, tool_s=_drawn(rng, tool_s)) if rng.random() < slow else turn for turn in job.turns
            ),
        )

    return change


def _heavy_tailed(rng: random.Random, job: SimJob) -> SimJob:
    turns = tuple(replace(turn, tool_s=lognormal(rng, max(turn.tool_s, 8.0), 2.0)) for turn in job.turns)
    return replace(job, turns=turns)


def _alike(rng: random.Random, job: SimJob) -> SimJob:
    turn = SimTurn(sampled=240, observed=360, tool_s=2.0)
    return replace(job, prompt=3_000, init=Chore(wait_s=30.0), grade=Chore(wait_s=30.0), turns=(turn,) * 10)


def _one_in_three_heavy(rng: random.Random, job: SimJob) -> SimJob:
    weight = 3 if random.Random(job.task).random() < 0.33 else 1
    return replace(job, weight=weight, grade_weight=weight)


def _without_sandbox(rng: random.Random, job: SimJob) -> SimJob:
    return replace(job, weight=0, grade_weight=0)


def _shares_prompt(rng: random.Random, job: SimJob) -> SimJob:
    return replace(job, shared=round(0.9 * job.prompt))


def _some_without_verdict(rng: random.Random, job: SimJob) -> SimJob:
    return replace(job, verdict=rng.random() >= 0.3)


def _stages_of_two_lengths(rng: random.Random, job: SimJob) -> SimJob:
    longer = 10.0 if random.Random(job.task).random() < 0.3 else 1.0
    return replace(
        job,
        init=replace(job.init, wait_s=longer * job.init.wait_s),
        grade=replace(job.grade, wait_s=longer * job.grade.wait_s),
    )


def _grows_faster(rng: random.Random, job: SimJob) -> SimJob:
    """The later the turn, the longer the tool's answer."""
    turns = (replace(turn, observed=round(turn.observed * place / 4)) for place, turn in enumerate(job.turns))
    return replace(job, turns=tuple(turns))


_CUT = Deadlines(init_s=300.0, run_s=1_200.0, grade_s=400.0, job_s=36_000.0)
_HURRY = Deadlines(init_s=600.0, run_s=300.0, grade_s=600.0, job_s=36_000.0)
_TEN_MINUTES: Mapping[str, float | Range] = {
    "prompt": (30_000, 45_000),
    "observed": (1_500, 3_000),
    "tool_s": (400, 800),
    "turns": (6, 12),
}

_EARLIER: Mapping[str, Family] = {
    "ordinary": Family(about="software engineering on a small scale"),
    "long_tools": Family(
        about="tools of ten minutes, contexts of 40,000 to 70,000 tokens",
        shape=_TEN_MINUTES,
        agents=(6, 14),
        cap=(6.0, 14.0),
        jobs=(8.0, 14.0),
        engine={"prefill_tokens_s": (8_000, 30_000)},
    ),
    "three_contexts": Family(
        about="a cache for three agents",
        agents=(3, 3.4),
        cap=(5.0, 12.0),
        jobs=(20.0, 30.0),
        shape={"tool_s": (3, 20), "turns": (6, 10)},
    ),
    "slots": Family(about="an engine that answers a fixed number at once", slots=0.5, jobs=(5.0, 8.0)),
    "few_slots": Family(
        about="an engine with slots for an eighth of what its cache holds", slots=0.125, agents=(24, 64)
    ),
    "context_slots": Family(
        about="a cache with a place for each context, however short", contexts=0.5, slots=0.5, agents=(24, 40)
    ),
    "compaction": Family(
        about="contexts that are rewritten when they pass a limit",
        shape={"turns": (14, 24), "observed": (600, 1_500)},
        change=_compacted((8_000, 14_000), 0.4),
    ),
    "window": Family(
        about="contexts that lose the tools' old answers at every turn",
        shape={"observed": (1_000, 3_000), "turns": (10, 18)},
        change=_windowed,
    ),
    "two_sizes": Family(about="a quarter of the tasks with contexts six times as large", change=_some_large(0.25, 6.0)),
    "few_giants": Family(about="a few tasks with contexts fifteen times as large", change=_some_large(0.08, 15.0)),
    "fleet": Family(about="four engines", engines=4, agents=(6, 14)),
    "pair_long_tools": Family(
        about="two engines, tools of ten minutes",
        engines=2,
        shape=_TEN_MINUTES,
        agents=(5, 9),
        cap=(8.0, 20.0),
        jobs=(14.0, 22.0),
        engine={"prefill_tokens_s": (8_000, 30_000)},
    ),
    "silent": Family(about="an engine that reports nothing", engine={"reports": False}),
    "silent_long_tools": Family(
        about="tools of ten minutes, an engine that reports nothing",
        shape=_TEN_MINUTES,
        agents=(6, 14),
        cap=(6.0, 14.0),
        jobs=(8.0, 14.0),
        engine={"reports": False, "prefill_tokens_s": (8_000, 30_000)},
    ),
    "flaky": Family(
        about="20 % of the stages raise, hang or lose their sandbox", shape={"fault_share": 0.2}, deadlines=_CUT
    ),
    "hung": Family(about="3 % of the stages fail", shape={"fault_share": 0.03}, deadlines=_CUT),
    "identical": Family(about="rollouts that are all the same", change=_alike),
    "growing": Family(
        about="rollouts that get longer at each step",
        steps=4,
        staleness=1,
        growth=1.5,
        jobs=(1.5, 3.0),
        shape={"turns": (4, 7)},
    ),
    "single_turn": Family(about="one turn each", shape={"turns": 1, "sampled": (400, 1_500)}, jobs=(8.0, 16.0)),
    "mixed_tools": Family(
        about="one tool call in ten takes minutes", change=_some_slow(0.1, (100, 400), by_task=False), cap=(2.0, 6.0)
    ),
    "slow_tasks": Family(
        about="a third of the tasks has slow tools", change=_some_slow(0.33, (60, 300), by_task=True), cap=(2.0, 6.0)
    ),
    "heavy_tail_tools": Family(about="tool waits with a heavy tail", change=_heavy_tailed, cap=(2.0, 6.0)),
    "minute_tools": Family(about="tools of about a minute", shape={"tool_s": (30, 100)}, cap=(2.5, 8.0)),
    "tail": Family(about="3 % of the rollouts ten times as long", shape={"long_share": 0.03}),
    "slow_init": Family(about="initialisation takes as long as the run", shape={"init_s": (200, 500)}),
    "slow_grade": Family(about="grading takes as long as the run", shape={"grade_s": (200, 500)}),
    "grading_cores": Family(
        about="few cores, gradings that need them", shape={"grade_cpu_s": (40, 120), "init_cpu_s": 5}, cores=12.0
    ),
    "tool_cores": Family(about="few cores, tools that need them", shape={"tool_cpu_s": (1, 4)}, cores=12.0),
    "tight_cap": Family(about="fewer sandboxes than the cache has room for", cap=(0.5, 1.0)),
    "wide_cap": Family(about="ten times as many sandboxes as agents", cap=(8.0, 12.0), jobs=(8.0, 12.0)),
    "stream": Family(
        about="batches one after the other, with updates", steps=4, staleness=1, jobs=(1.5, 3.0), update_s=30.0
    ),
    "held_out": Family(
        about="held-out jobs between steps", steps=3, staleness=1, jobs=(1.5, 2.5), held_out=12, update_s=20.0
    ),
    "enough": Family(about="three of four rollouts are enough", keep=0.75),
    "no_sandbox": Family(about="agents without sandboxes", change=_without_sandbox, shape={"init_s": 0.1}),
    "heavy": Family(about="sandboxes of one and three units", change=_one_in_three_heavy, cap=(2.5, 5.0)),
    "slow_prefill": Family(about="an expensive prefill", engine={"prefill_tokens_s": (2_000, 8_000)}),
    "fast_prefill": Family(
        about="a prefill that costs next to nothing", engine={"prefill_tokens_s": (300_000, 1_000_000)}, cap=(3.0, 6.0)
    ),
    "large_answers": Family(about="tools that answer with thousands of tokens", shape={"observed": (2_000, 6_000)}),
    "thinking": Family(
        about="few turns, replies of thousands of tokens", shape={"sampled": (1_500, 4_000), "turns": (3, 5)}
    ),
    "shared_prompts": Family(
        about="prompts that the engine mostly has", change=_shares_prompt, shape={"prompt": (5_000, 9_000)}
    ),
    "no_verdict": Family(about="three of ten rollouts are not graded", change=_some_without_verdict),
    "hurry": Family(about="runs that a deadline cuts", deadlines=_HURRY, cap=(1.5, 2.5)),
}
FAMILIES: Mapping[str, Family] = {
    **_EARLIER,
    "two_lengths": Family(
        about="a third of the tasks takes ten times as long to initialise and to grade", change=_stages_of_two_lengths
    ),
    "long_prompts": Family(
        about="prompts of 20,000 to 60,000 tokens, few turns, quick tools",
        shape={"prompt": (20_000, 60_000), "turns": (3, 6), "tool_s": (0.2, 2)},
    ),
    "chatty": Family(
        about="thirty to sixty short turns",
        shape={"turns": (30, 60), "max_turns": 90, "sampled": (30, 90), "observed": (30, 120), "tool_s": (0.1, 1)},
    ),
    "large_model": Family(
        about="a slow engine with room for many agents",
        agents=(30, 60),
        cap=(1.3, 2.5),
        jobs=(3.0, 5.0),
        engine={"step_s": (0.06, 0.12), "row_s": (0.000_1, 0.000_6), "prefill_tokens_s": (4_000, 15_000)},
    ),
    "pair_of_slots": Family(
        about="two engines that answer a fixed number at once", engines=2, slots=0.6, agents=(8, 16)
    ),
    "accelerating": Family(
        about="tool answers that get longer with every turn", change=_grows_faster, shape={"turns": (8, 16)}
    ),
    "single_samples": Family(
        about="one rollout of each task, and lengths that differ much",
        shape={"samples": 1, "turns_spread": (0.7, 1.0), "stage_spread": (0.5, 1.0)},
    ),
    "flaky_slow_init": Family(
        about="long initialisations, of which one in ten fails",
        shape={"init_s": (150, 400), "fault_share": 0.1},
        deadlines=Deadlines(init_s=1_200.0, run_s=1_200.0, grade_s=400.0, job_s=36_000.0),
    ),
}
TUNED_ON = tuple(_EARLIER)[::2]
"""The families to tune policies on; the others are to be measured only."""
UNSEEN = tuple(name for name in FAMILIES if name not in _EARLIER)
"""Those written down after the last change to the policies, and run for the first time after that."""


def make_family(name: str, seed: int) -> Workload:
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(
            f'there is no family "{name}"{did_you_mean(name, FAMILIES)}: use one of {", ".join(FAMILIES)}'
        )
    rng = random.Random(f"family {name} {seed}")
    agents = _drawn(rng, family.agents)
    values: dict[str, Any] = {key: _value(rng, value) for key, value in {**_USUAL, **family.shape}.items()}
    shape = RolloutShape(**values)
    num = agents * family.engines * _drawn(rng, family.jobs)
    shape = replace(shape, samples=round(shape.samples), tasks=max(2, round(num / shape.samples)))
    jobs = _all_jobs(family, shape, rng, seed)
    workload = Workload(
        name=name,
        machine=_machine(family, rng, jobs, agents),
        jobs=tuple(jobs),
        staleness=family.staleness,
        engines=family.engines,
        update_s=(family.update_s,) * family.steps if family.update_s else (),
        keep=None if family.keep is None else round(family.keep * shape.samples),
    )
    return checked(workload)


def _all_jobs(family: Family, shape: RolloutShape, rng: random.Random, seed: int) -> list[SimJob]:
    jobs: list[SimJob] = []
    for step in range(family.steps):
        longer = replace(shape, turns=shape.turns * family.growth**step)
        jobs += make_jobs(longer, seed, step=step)
        if step and family.held_out:
            few = replace(longer, tasks=family.held_out, samples=1)
            jobs += [replace(job, phase="held_out") for job in make_jobs(few, seed + 1, step=step)]
    return jobs if family.change is None else [family.change(rng, job) for job in jobs]


def _machine(family: Family, rng: random.Random, jobs: list[SimJob], agents: float) -> SimMachine:
    largest = max(context + turn.sampled for job in jobs for context, turn in zip(job.contexts, job.turns, strict=True))
    values: dict[str, Any] = {key: _value(rng, value) for key, value in {**_ENGINE, **family.engine}.items()}
    engine = EngineSpec(
        kv_tokens=max(largest, round(agents * 0.85 * final_context(jobs))),
        slots=None if family.slots is None else max(1, round(family.slots * agents)),
        contexts=None if family.contexts is None else max(1, round(family.contexts * agents)),
        **values,
    )
    slots = max(1, round(agents * family.engines))
    cap = max(3, round(agents * family.engines * _drawn(rng, family.cap)))
    machine = SimMachine(engine=engine, cores=family.cores, agents=slots, sandbox_cap=cap, slots=min(slots, cap))
    return machine if family.deadlines is None else replace(machine, deadlines=family.deadlines)


def _value(rng: random.Random, value: float | Range | bool) -> float | bool:
    return _drawn(rng, value) if isinstance(value, tuple) else value


def _drawn(rng: random.Random, between: Range) -> float:
    low, high = between
    return float(low * (high / low) ** rng.random())

"""Compares all scheduling policies on the same workload and machine, on virtual time.

Input: a regime and a seed, or a workload file. Output: for each policy its makespan and resource use, and a lower bound
of the makespan that no policy can beat. The same arguments print the same figures on any machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

from slipstream.bench.tuned import TUNED, Tuned
from slipstream.dispatch.base import DispatchLimits
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.simulate.bound import Bound, bound, uncapped_bound
from slipstream.simulate.regimes import make_workload
from slipstream.simulate.run import MakePolicy, SimOutcome, adaptive, open_gate, simulate
from slipstream.simulate.workload import Workload
from slipstream.types import Json

TUNE_SEEDS = (1_000, 1_001)
"""The seeds of the tuning runs, which are used for nothing else."""
PAPER_S = {"pipeline": 3_250.0, "bounded": 5_050.0}
SHARES = (0.75, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Slots or run workers to try, as shares of the agents that the cache holds."""
FURTHER = 1.5
"""The factor between further settings, from the last of these up to the cap."""
STAGE_SHARES = (0.5, 1.0)
"""The same for workers of the two other stages; and as many as the cap, where that is further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A policy with its settings, as plain data that can be sent to another process."""

    kind: str
    settings: tuple[int, ...] = ()
    """Slots for `bounded`; workers to initialise, run and grade for `pipeline`."""
    capped: bool = True

    def make(self) -> MakePolicy:
        match self.kind:
            case "batch":
                return open_gate(Batch())
            case "bounded":
                return open_gate(Bounded(slots=self.settings[0]))
            case "pipeline":
                init, run, grade = self.settings
                return open_gate(Pipeline(init=init, run=run, grade=grade))
            case _:
                return adaptive


Case = tuple[Workload, Contender]


def run_case(case: Case) -> SimOutcome:
    workload, contender = case
    limits = DispatchLimits(sandboxes=workload.machine.sandbox_cap if contender.capped else None)
    return simulate(workload, contender.make(), limits)


def run(workload: Workload, seed: int | None, tuned: Tuned | None, only: Sequence[str] = ()) -> dict[str, Json]:
    """The figures of all policies on one workload, or of some."""
    names = contenders(workload, tuned)
    for name in only:
        if name not in names:
            known = [name for name in names if name[0] != "_"]
            raise ConfigError(f'--only "{name}": there is no such policy{did_you_mean(name, known)}; use {known}')
    if only:
        names = {name: names[name] for name in only}
    outcomes = dict(zip(names, run_all([(workload, one) for one in names.values()]), strict=True))
    result = figures_of(workload, seed, names, outcomes)
    if workload.name == "paper" and not only:
        result["calibration"] = {
            name: {"makespan_s": round(outcomes[f"_{name}"].makespan_s, 1), "paper_s": paper_s}
            for name, paper_s in PAPER_S.items()
        }
    return result


def figures_of(
    workload: Workload, seed: int | None, names: Mapping[str, Contender], outcomes: Mapping[str, SimOutcome]
) -> dict[str, Json]:
    """The figures of these policies. Those whose name begins with a line are not shown."""
    found, uncapped = bound(workload), uncapped_bound(workload)
    shown = {name: outcome for name, outcome in outcomes.items() if name[0] != "_"}
    makespans = {name: outcome.makespan_s for name, outcome in shown.items()}
    figures: dict[str, Json] = {
        "regime": workload.name,
        "seed": seed,
        "jobs": len(workload.jobs),
        "sandbox_cap": workload.machine.sandbox_cap,
        "lower_bound_s": round(found.lower_bound_s, 1),
        "uncapped_bound_s": round(uncapped.lower_bound_s, 1),
        "bound": {name: round(value, 1) for name, value in asdict(found).items()},
        "policies": {
            name: _figures(outcome, names[name], found if names[name].capped else uncapped)
            for name, outcome in shown.items()
        },
    }
    if {"bounded", "pipeline", "adaptive"} <= makespans.keys():
        figures["ratios"] = _ratios(makespans, found.lower_bound_s)
    return figures


def run_regime(regime: str, seed: int, only: Sequence[str] = ()) -> dict[str, Json]:
    return run(make_workload(regime, seed), seed, TUNED.get(regime), only)


def contenders(workload: Workload, tuned: Tuned | None) -> dict[str, Contender]:
    slots = workload.machine.slots
    found = {
        "batch": Contender(kind="batch", capped=False),
        "bounded": Contender(kind="bounded", settings=(slots,)),
        "pipeline": Contender(kind="pipeline", settings=(slots,) * 3),
    }
    if tuned is not None:
        found["bounded_tuned"] = Contender(kind="bounded", settings=(tuned.bounded,))
        found["pipeline_tuned"] = Contender(kind="pipeline", settings=tuned.pipeline)
    found["adaptive"] = Contender(kind="adaptive")
    if workload.name == "paper":  # the paper's own settings: no cap on sandboxes
        found["_pipeline"] = Contender(kind="pipeline", settings=(96, 96, 96), capped=False)
        found["_bounded"] = Contender(kind="bounded", settings=(96,), capped=False)
    return found


def tune(workloads: Sequence[Workload]) -> Tuned:
    """Sweep the settings of the fixed policies on these workloads, up to the cap; returns the best."""
    choices = settings_to_try(workloads[0])
    outcomes = iter(run_all([(workload, choice) for choice in choices for workload in workloads]))
    means = {choice: statistics.fmean(next(outcomes).makespan_s for _ in workloads) for choice in choices}

    def best(kind: str) -> tuple[int, ...]:
        return min((choice for choice in choices if choice.kind == kind), key=lambda choice: means[choice]).settings

    init, number, grade = best("pipeline")
    return Tuned(bounded=best("bounded")[0], pipeline=(init, number, grade))


def settings_to_try(workload: Workload) -> list[Contender]:
    agents, cap = workload.machine.agents, workload.machine.sandbox_cap
    slots = {max(1, min(cap, round(agents * share))) for share in SHARES}
    further = agents * SHARES[-1]
    while further < cap:
        further = min(float(cap), further * FURTHER)
        slots.add(round(further))
    stages = {max(1, round(agents * share)) for share in STAGE_SHARES}
    if cap > agents * SHARES[-1]:
        stages.add(cap)
    found = [Contender(kind="bounded", settings=(number,)) for number in sorted(slots)]
    return found + [
        Contender(kind="pipeline", settings=(stage, number, stage))
        for number, stage in product(sorted(slots), sorted(stages))
    ]


def run_all(cases: Sequence[Case]) -> Iterable[SimOutcome]:
    """Run the cases in parallel; the outcomes are in their order."""
    context = get_context("spawn")
    with ProcessPoolExecutor(max_workers=min(len(cases), os.cpu_count() or 1), mp_context=context) as pool:
        return list(pool.map(run_case, cases))


def _figures(outcome: SimOutcome, contender: Contender, least: Bound) -> dict[str, Json]:
    figures: dict[str, Any] = {
        "makespan_s": round(outcome.makespan_s, 1),
        "over_bound": round(outcome.makespan_s / least.lower_bound_s, 3) if least.lower_bound_s else None,
        "rollouts_per_s": round(outcome.rollouts_per_s, 4),
        "peak_live": outcome.peak_live,
        "engine_use": round(outcome.engine_use, 3),
        "reprefill_tokens": outcome.reprefill_tokens,
        "with_verdict": outcome.num_trusted,
    }
    if contender.settings:
        figures["settings"] = list(contender.settings)
    return figures


def _ratios(makespans: Mapping[str, float], lower_bound_s: float) -> dict[str, Json]:
    own = makespans["adaptive"]
    capped = {name: value for name, value in makespans.items() if name not in ("adaptive", "batch")}
    found: dict[str, Json] = {
        f"{name}_over_adaptive": round(value / own, 3) for name, value in makespans.items() if name != "adaptive"
    }
    found["adaptive_over_best"] = round(own / min(capped.values()), 3)
    found["adaptive_over_plain"] = round(own / min(capped["bounded"], capped["pipeline"]), 3)
    found["adaptive_over_bound"] = round(own / lower_bound_s, 3) if lower_bound_s else None
    return found

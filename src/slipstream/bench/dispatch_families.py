"""`slipstream bench dispatch --families`: every policy on families of workloads, the fixed ones at the best of a sweep.

Input: names of families and a seed. Output: the figures of each, as of a regime, and a summary of how far `adaptive` is
from the best. The sweep goes up to the cap and is made on the very workload that is reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from slipstream.bench.dispatch import Contender, figures_of, run_all
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.simulate.families import FAMILIES, TUNED_ON, UNSEEN, make_family
from slipstream.simulate.workload import Workload
from slipstream.types import Json

NUM_SETTINGS = 5
"""Slots, or workers of a stage, that the sweep tries: from half the agents of the cache up to the cap."""
GOAL = 1.03
"""Of the makespan of the best fixed setting."""


def run_families(names: Sequence[str], seed: int) -> Iterator[dict[str, Json]]:
    """The figures of each family in turn."""
    for name in names:
        yield run_family(make_family(name, seed), seed)


def family_names(given: str) -> list[str]:
    """`all`, or names with commas between."""
    names = list(FAMILIES) if given == "all" else given.split(",")
    for name in names:
        if name not in FAMILIES:
            raise ConfigError(
                f'--families "{given}": there is no family "{name}"{did_you_mean(name, FAMILIES)}; use all, or some of '
                + ", ".join(FAMILIES)
            )
    return names


def run_family(workload: Workload, seed: int) -> dict[str, Json]:
    slots = workload.machine.slots
    plain = {
        "batch": Contender(kind="batch", capped=False),
        "bounded": Contender(kind="bounded", settings=(slots,)),
        "pipeline": Contender(kind="pipeline", settings=(slots,) * 3),
        "adaptive": Contender(kind="adaptive"),
    }
    tried = sweep(workload)
    cases = list(dict.fromkeys([*plain.values(), *tried]))
    outcomes = dict(zip(cases, run_all([(workload, contender) for contender in cases]), strict=True))

    def best(kind: str) -> Contender:
        return min((one for one in cases if one.kind == kind), key=lambda one: outcomes[one].makespan_s)

    named = {**plain, "bounded_tuned": best("bounded"), "pipeline_tuned": best("pipeline")}
    named["adaptive"] = named.pop("adaptive")
    return {
        **figures_of(workload, seed, named, {name: outcomes[one] for name, one in named.items()}),
        "tuned_on": workload.name in TUNED_ON,
        "unseen": workload.name in UNSEEN,
    }


def sweep(workload: Workload) -> list[Contender]:
    """The fixed policies at a few settings each, evenly on a logarithmic scale up to the cap."""
    cap = workload.machine.sandbox_cap
    low = max(1.0, min(workload.machine.slots, cap) / 2)
    numbers = sorted(
        {max(1, round(low * (cap / low) ** (place / (NUM_SETTINGS - 1)))) for place in range(NUM_SETTINGS)}
    )
    found = [Contender(kind="bounded", settings=(number,)) for number in numbers]
    found += [Contender(kind="pipeline", settings=(number,) * 3) for number in numbers]
    found += [Contender(kind="pipeline", settings=(cap, number, cap)) for number in numbers[1:-1]]
    return found


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Json]:
    """How far `adaptive` is from the best setting of each workload, and from the plain policies."""
    over_best = {one["regime"]: one["ratios"]["adaptive_over_best"] for one in found}
    over_plain = {one["regime"]: one["ratios"]["adaptive_over_plain"] for one in found}
    parts = {
        "tuned_on": [over_best[one["regime"]] for one in found if one["tuned_on"]],
        "others": [over_best[one["regime"]] for one in found if not one["tuned_on"] and not one["unseen"]],
        "unseen": [over_best[one["regime"]] for one in found if one["unseen"]],
    }
    return {
        "families": len(found),
        "adaptive_over_best": {
            name: round(statistics.geometric_mean(ratios), 3) for name, ratios in parts.items() if ratios
        },
        "beyond_goal": {name: ratio for name, ratio in over_best.items() if ratio > GOAL},
        "slower_than_plain": {name: ratio for name, ratio in over_plain.items() if ratio > GOAL},
        "worst": round(max(over_best.values(), default=math.nan), 3),
    }

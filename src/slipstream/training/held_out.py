"""Success on held-out tasks, of all of them and of each set of a mixture. Pure: rollouts and recorded figures in."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from slipstream.types import Rollout, set_of

HELD_OUT = "held_out"


def held_out_figures(rollouts: Sequence[Rollout], *, solved_at: float, sets: Sequence[str] = ()) -> dict[str, float]:
    """Of the rollouts with a verdict. `set/NAME/` begins the figures of a set; a set without a verdict has none."""
    found = _figures(rollouts, solved_at)
    for name in sets:
        own = [rollout for rollout in rollouts if set_of(rollout.job.key.task_id, sets) == name]
        found |= {f"set/{name}/{key}": value for key, value in _figures(own, solved_at).items()}
    return found


def _figures(rollouts: Iterable[Rollout], solved_at: float) -> dict[str, float]:
    rewards = [rollout.verdict.reward for rollout in rollouts if rollout.verdict is not None]
    if not rewards:
        return {}
    return {
        "success": statistics.fmean(float(reward >= solved_at) for reward in rewards),
        "reward": statistics.fmean(rewards),
        "rollouts": float(len(rewards)),
    }


def success_by_set(measured: Mapping[tuple[int, str], Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Success on the held-out tasks of each set of a mixture, by version."""
    found: dict[str, dict[int, float]] = {}
    for (version, kind), metrics in sorted(measured.items()):
        for key, value in metrics.items() if kind == HELD_OUT else ():
            if key.startswith("set/") and key.endswith("/success"):
                found.setdefault(key.removeprefix("set/").removesuffix("/success"), {})[version] = value
    return found

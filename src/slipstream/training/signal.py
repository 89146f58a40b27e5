"""Whether a step had anything to learn from, and what to try if none had. Pure: a step's metrics in, a sentence out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WARN_AFTER = 2
"""Steps in a row without a signal, before anything is problem: one alone may be chance."""
_MANY_WITHOUT_CALL = 0.5


def is_flat(metrics: Mapping[str, float]) -> bool:
    """Whether all advantages of a step are 0, so that its update changes nothing."""
    return metrics.get("advantage/abs_mean", 0.0) == 0.0


def num_flat_at_end(steps: Sequence[Mapping[str, float]]) -> int:
    """How many steps in a row, up to the last, had nothing to learn from."""
    return next((number for number, metrics in enumerate(reversed(steps)) if not is_flat(metrics)), len(steps))


def advice(metrics: Mapping[str, float], *, num_flat: int, samples: int) -> str:
    """What is wrong with the last steps, and what to try."""
    solved = metrics.get("reward/solved_share")
    problem = f"the last {num_flat} steps had nothing to learn from: "
    if solved is None:
        return f"{problem}no group has two rollouts with a verdict. `slipstream show RUN` shows the failures."
    if solved == 1.0:
        return f"{problem}every rollout solved its task. Give harder tasks, or stop here."
    if metrics.get("reward/min") == metrics.get("reward/max"):
        reward = metrics["reward/mean"]
        return (
            f"{problem}every rollout has the reward {reward:g}, so none is better than another. "
            f"{_without_calls(metrics)}Try, in this order: look at some rollouts with `slipstream show RUN`; easier "
            "tasks, or a reward for part of the work; a warm start on demonstrations (warm_start.source); a model that "
            "solves some of them, as "
            f"`slipstream eval` says; more samples of each task (samples={samples} now); model.temperature=1 if it is "
            "lower."
        )
    return (
        f"{problem}tasks differ in reward, but the {samples} rollouts of each task all have the same. Try more "
        "samples of each task, a higher model.temperature, or tasks that are solved sometimes (solve_rate.above=0 "
        "solve_rate.below=1, replace_flat=4)."
    )


def _without_calls(metrics: Mapping[str, float]) -> str:
    share = metrics.get("turns/without_call_share", 0.0)
    if share < _MANY_WITHOUT_CALL:
        return ""
    return (
        f"{share:.0%} of the replies have no tool call that could be read, so the model may not know the format: "
        "`slipstream doctor --model FOLDER` checks that. "
    )

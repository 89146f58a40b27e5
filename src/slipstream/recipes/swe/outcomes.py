"""Outcomes of rollouts on made tasks, by level: what is solved, how it ended, what was called, what could be learnt.

Input: rollouts of a run. Output: plain figures, and the paired difference of two runs on the same tasks. Invariants:
rollouts without a verdict are counted and never taken for 0; the difference is over the tasks that both runs have, and
its interval over packages.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import slipstream as ss

MADE = "made"
"""In place of a level: tasks as they were made."""
NUM_RESAMPLES = 2_000


def by_level(rollouts: Iterable[ss.Rollout]) -> dict[str, dict[str, ss.Json]]:
    """The figures of each level, and of all together."""
    found: dict[str, list[ss.Rollout]] = defaultdict(list)
    for rollout in rollouts:
        found[_level(rollout)].append(rollout)
        found["all"].append(rollout)
    return {level: _figures(found[level]) for level in sorted(found)}


def _level(rollout: ss.Rollout) -> str:
    return str(ss.made_tasks.level_of(rollout.job.key.task_id) or MADE)


def _figures(rollouts: Sequence[ss.Rollout]) -> dict[str, ss.Json]:
    rewards = _rewards(rollouts)
    calls, failed, contexts, sampled = Counter[str](), Counter[str](), list[int](), list[int]()
    no_call = 0
    for rollout in rollouts:
        contexts.append(max((turn.num_kept + len(turn.added) for turn in rollout.turns), default=0))
        sampled.append(sum(len(turn.sampled.ids) for turn in rollout.turns if turn.sampled is not None))
        for turn in rollout.turns:
            reply = turn.messages[-1]
            calls.update(call.name if call.problem is None else f"({call.problem.value})" for call in reply.calls)
            no_call += not reply.calls
            failed.update(one.name for one in turn.messages[:-1] if one.role is ss.Role.TOOL and one.is_error)
    num_turns = [len(rollout.turns) for rollout in rollouts]
    groups = [values for values in rewards.values() if len(values) > 1]
    return {
        "tasks": len({rollout.job.key.task_id for rollout in rollouts}),
        "rollouts": len(rollouts),
        "trusted": sum(map(len, rewards.values())),
        "solved": _rounded([statistics.fmean(values) for values in rewards.values()]),
        "pass_at_k": {str(k): _rounded(chances) for k in (1, 2, 4, 8) if (chances := _chances(rewards, k))},
        "mixed_groups": _rounded([float(len(set(values)) > 1) for values in groups]),
        "endings": dict(Counter(rollout.ending.reason.value for rollout in rollouts).most_common()),
        "turns": _rounded(num_turns),
        "no_call_turns": round(no_call / max(1, sum(num_turns)), 3),
        "calls": dict(calls.most_common(8)),
        "failed_calls": dict(failed.most_common(8)),
        "prompt_tokens": _rounded(contexts),
        "sampled_tokens": _rounded(sampled),
    }


def _rewards(rollouts: Iterable[ss.Rollout]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.verdict is not None:
            found[rollout.job.key.task_id].append(rollout.verdict.reward)
    return dict(found)


def _chances(rewards: Mapping[str, Sequence[float]], k: int) -> list[float]:
    return [
        ss.pass_at_k(len(values), sum(value >= 1 for value in values), k)
        for values in rewards.values()
        if len(values) >= k
    ]


def _rounded(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


def paired(before: Iterable[ss.Rollout], after: Iterable[ss.Rollout]) -> dict[str, dict[str, ss.Json]]:
    """By level: the mean reward of each run on the tasks that both have, and their difference."""
    one, other = _rewards(before), _rewards(after)
    shared = [(task, statistics.fmean(one[task]), statistics.fmean(other[task])) for task in one if task in other]
    levels: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in shared:
        levels[str(ss.made_tasks.level_of(row[0]) or MADE)].append(row)
        levels["all"].append(row)
    return {level: _compared(levels[level]) for level in sorted(levels)}


def _compared(rows: Sequence[tuple[str, float, float]]) -> dict[str, ss.Json]:
    packages: dict[str, list[float]] = defaultdict(list)
    for task, before, after in rows:
        packages[ss.made_tasks.made_id(task).rsplit("-", 2)[0]].append(after - before)
    low, high = package_interval(list(packages.values()))
    return {
        "tasks": len(rows),
        "packages": len(packages),
        "before": _rounded([before for _, before, _ in rows]),
        "after": _rounded([after for _, _, after in rows]),
        "more": _rounded([after - before for _, before, after in rows]),
        "interval": [round(low, 4), round(high, 4)],
        "better": sum(after > before for _, before, after in rows),
        "worse": sum(after < before for _, before, after in rows),
    }


def package_interval(packages: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % of the mean over tasks, by resampling packages, and tasks within each."""
    chance = random.Random(0)

    def resampled() -> float:
        drawn = chance.choices(packages, k=len(packages))
        return statistics.fmean(value for one in drawn for value in chance.choices(one, k=len(one)))

    means = sorted(resampled() for _ in range(NUM_RESAMPLES))
    return means[int(0.025 * NUM_RESAMPLES)], means[min(NUM_RESAMPLES - 1, int(0.975 * NUM_RESAMPLES))]

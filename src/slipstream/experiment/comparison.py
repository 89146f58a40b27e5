"""What reports of experiments show together: success with intervals, paired differences, costs.

Input: reports. Output: plain figures. Invariants: a rollout without a verdict is counted and never taken for 0; tasks
of one package are not independent, so every interval resamples packages, and tasks within each; a difference is over
the tasks that both sides have, and where an arm has several seeds, over the means of its seeds.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.evaluation import pass_at_k
from slipstream.experiment.rows import Row
from slipstream.recipes.swe.outcomes import package_interval

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One evaluation of one version of a policy."""

    trained_as: str
    seed: int
    part: str
    arm: str
    """That the agent was evaluated as."""
    version: int
    solved_at: float
    num_jobs: int
    rows: tuple[Row, ...]
    places: Mapping[str, tuple[str, str]]
    """The package and the level of each task."""

    def of_level(self, level: str) -> list[Row]:
        return [row for row in self.rows if level in (ALL, self.places[row.task][1])]

    @property
    def levels(self) -> list[str]:
        found = sorted({level for _, level in self.places.values()})
        return [*found, ALL] if len(found) > 1 else [ALL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One report."""

    label: str
    design: str
    arm: str
    seed: int
    steps: tuple[Mapping[str, Any], ...]
    sessions: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Measured, ...]

    def of(self, part: str, arm: str, version: int) -> Measured | None:
        found = [one for one in self.evaluations if (one.part, one.arm, one.version) == (part, arm, version)]
        return found[0] if found else None

    @property
    def parts(self) -> list[str]:
        return sorted({one.part for one in self.evaluations})

    @property
    def num_gpus(self) -> int:
        """At least one, so that a CPU's seconds are counted too."""
        return max([1, *(len(each["machine"].get("gpus", [])) for each in self.sessions if "machine" in each)])

    def gpu_seconds(self, version: int) -> float:
        """Of the start and of training up to a version; evaluations, loading and packing are not counted."""
        spent: float = 0.0
        spent += sum(each["end_s"] - each["start_s"] for each in self.sessions if each["stage"] == "start")
        spent += sum(step["seconds"] or 0.0 for step in self.steps if step["version"] <= version)
        return self.num_gpus * spent


def study_of(label: str, report: Mapping[str, Any]) -> Study:
    record = report["experiment"]
    return Study(
        label=label,
        design=record["design"],
        arm=record["arm"],
        seed=record["seed"],
        steps=tuple(report["steps"]),
        sessions=tuple(report["sessions"]),
        evaluations=tuple(_measured(each, record) for each in report["evaluations"]),
    )


def _measured(value: Mapping[str, Any], record: Mapping[str, Any]) -> Measured:
    names = [task for task, _, _ in value["tasks"]]
    return Measured(
        trained_as=record["arm"],
        seed=record["seed"],
        part=value["part"],
        arm=value["arm"],
        version=value["version"],
        solved_at=value["solved_at"],
        num_jobs=value["num_jobs"],
        rows=tuple(Row.from_json([names[row[0]], *row[1:]]) for row in value["rows"]),
        places={task: (package, level) for task, package, level in value["tasks"]},
    )


# ---------------------------------------------------------------- one evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    tasks: int
    packages: int
    rollouts: int
    with_verdict: int
    pass_1: float
    """The mean over tasks of the share of rollouts that solved it."""
    k: int
    """The samples that every task has."""
    pass_k: float
    never_solved: float
    """The share of tasks that no rollout solved."""
    mixed: float
    """The share of tasks that some rollouts solved and others did not: what there is to learn from."""
    turns: float
    """Of a rollout, mean."""
    tokens: float
    """Sampled by a rollout, mean."""
    turns_per_success: float | None
    """All turns, divided by the rollouts that solved their task; None if none did."""
    tokens_per_success: float | None
    endings: Mapping[str, int]
    calls: Mapping[str, float]
    """By tool, of a rollout, mean."""
    failed_calls: Mapping[str, float]
    """By tool, the share of its calls that were answered by an error."""


def success(measured: Measured, level: str = ALL) -> Success | None:
    """None without a verdict."""
    rows = measured.of_level(level)
    solved = _solved(rows, measured.solved_at)
    if not solved:
        return None
    k = min(map(len, solved.values()))
    num_solved = sum(map(sum, solved.values()))
    turns, tokens = sum(row.turns for row in rows), sum(row.sampled_tokens for row in rows)
    calls, failed = _counted(row.calls for row in rows), _counted(row.failed for row in rows)
    return Success(
        tasks=len(solved),
        packages=len({measured.places[task][0] for task in solved}),
        rollouts=len(rows),
        with_verdict=sum(map(len, solved.values())),
        pass_1=statistics.fmean(map(statistics.fmean, solved.values())),
        k=k,
        pass_k=statistics.fmean(pass_at_k(len(values), sum(values), k) for values in solved.values()),
        never_solved=statistics.fmean(not any(values) for values in solved.values()),
        mixed=statistics.fmean(0 < sum(values) < len(values) for values in solved.values()),
        turns=turns / len(rows),
        tokens=tokens / len(rows),
        turns_per_success=turns / num_solved if num_solved else None,
        tokens_per_success=tokens / num_solved if num_solved else None,
        endings=dict(Counter(row.ending for row in rows).most_common()),
        calls={name: number / len(rows) for name, number in calls.most_common()},
        failed_calls={name: failed[name] / number for name, number in calls.most_common() if number},
    )


def success_interval(measured: Measured, level: str = ALL) -> tuple[float, float]:
    """95 % of `pass_1`."""
    return _interval(_mean_rates([measured], level), measured.places)


def _solved(rows: Iterable[Row], solved_at: float) -> dict[str, list[bool]]:
    """By task, whether each rollout with a verdict solved it."""
    found: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row.reward is not None:
            found[row.task].append(row.reward >= solved_at)
    return dict(found)


def _counted(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return total


def _interval(values: Mapping[str, float], places: Mapping[str, tuple[str, str]]) -> tuple[float, float]:
    packages: dict[str, list[float]] = defaultdict(list)
    for task, value in values.items():
        packages[places[task][0]].append(value)
    return package_interval(list(packages.values()))


# ---------------------------------------------------------------- two of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    tasks: int
    packages: int
    before: float
    after: float
    more: float
    interval: tuple[float, float]
    better: int
    """Tasks with more success than before,"""
    worse: int
    """and with less."""


def difference(before: Sequence[Measured], after: Sequence[Measured], level: str = ALL) -> Difference | None:
    """Of the success on the tasks that both have. Several on one side are seeds: a task counts with their mean. None if
    they share no task."""
    one, other = _mean_rates(before, level), _mean_rates(after, level)
    shared = [task for task in one if task in other]
    if not shared:
        return None
    places = {task: place for each in (*before, *after) for task, place in each.places.items()}
    more = {task: other[task] - one[task] for task in shared}
    return Difference(
        tasks=len(shared),
        packages=len({places[task][0] for task in shared}),
        before=statistics.fmean(one[task] for task in shared),
        after=statistics.fmean(other[task] for task in shared),
        more=statistics.fmean(more.values()),
        interval=_interval(more, places),
        better=sum(value > 0 for value in more.values()),
        worse=sum(value < 0 for value in more.values()),
    )


def _mean_rates(evaluations: Sequence[Measured], level: str) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for each in evaluations:
        for task, values in _solved(each.of_level(level), each.solved_at).items():
            found[task].append(statistics.fmean(values))
    return {task: statistics.fmean(values) for task, values in found.items()}


def seconds_to(study: Study, part: str, wanted: float) -> float | None:
    """GPU-seconds until the first evaluated version whose pass@1 is `wanted` or more; None if none is."""
    for measured in sorted(study.evaluations, key=lambda each: each.version):
        if measured.part == part and measured.arm == study.arm:
            found = success(measured)
            if found is not None and found.pass_1 >= wanted:
                return study.gpu_seconds(measured.version)
    return None

"""The page of stored reports: tables in Markdown, and the pictures that belong to them.

Input: studies. Output: text, and SVGs by file name. Invariants: every figure comes from the reports alone, and whatever
has an interval shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slipstream.experiment.comparison import (
    ALL,
    Difference,
    Measured,
    Study,
    Success,
    difference,
    seconds_to,
    success,
    success_interval,
)
from slipstream.training.curve import Curve, draw_curves

Cells = Sequence[str]


def page(studies: Sequence[Study]) -> str:
    """All tables, one below the other."""
    sections = [
        ("What was run", _runs(studies)),
        ("Success", _successes(studies)),
        ("Paired differences to the start, on the same tasks and seeds", _gains(studies)),
        ("Paired differences between arms, on the same tasks and seeds", _arms(studies)),
        ("What a success costs", _costs(studies)),
        ("How rollouts ended, and what they called", _behaviour(studies)),
        ("Training", _steps(studies)),
        ("Where the time went", _times(studies)),
    ]
    return "\n\n".join(f"### {title}\n\n{body}" for title, body in sections if body) + "\n"


def pictures(studies: Sequence[Study]) -> dict[str, str]:
    """SVGs by file name."""
    found = {}
    rewards = {study.label: Curve(points=_rewards(study)) for study in studies if study.steps}
    if rewards:
        found["training.svg"] = draw_curves("reward of a step's rollouts", rewards, x_label="step")
    for part in sorted({part for study in studies for part in study.parts}):
        curves = {study.label: Curve(points=points) for study in studies if (points := _by_version(study, part))}
        if curves:
            found[f"{part}.svg"] = draw_curves(f"success on {part} (pass@1)", curves, x_label="version")
    levels = {
        f"{study.label}, {level}": Curve(points=points)
        for study in studies
        for level, points in _levels_by_step(study).items()
    }
    if levels:
        found["levels.svg"] = draw_curves("reward of a step's rollouts by level", levels, x_label="step")
    return found


# ---------------------------------------------------------------- tables


def _runs(studies: Sequence[Study]) -> str:
    rows = []
    for study in studies:
        machines = [each["machine"] for each in study.sessions if "machine" in each]
        on = sorted({gpu for machine in machines for gpu in machine.get("gpus", [])}) or ["no GPU"]
        steps = len(study.steps)
        rollouts = sum(int(level["rollouts"]) for step in study.steps for level in step["levels"].values())
        last = max((step["version"] for step in study.steps), default=0)
        rows.append(
            [study.label, study.design, study.arm, str(study.seed), str(steps), f"{rollouts:,}",
             f"{study.gpu_seconds(last):,.0f}", str(len(machines)), ", ".join(on)]
        )  # fmt: skip
    heads = ("report", "experiment", "arm", "seed", "steps", "rollouts", "GPU-seconds", "sessions", "on")
    return table(heads, rows)


def _successes(studies: Sequence[Study]) -> str:
    rows = []
    for study in studies:
        for measured in study.evaluations:
            for level in measured.levels:
                found = success(measured, level)
                if found is None:
                    continue
                rows.append(
                    [study.label, measured.part, measured.arm, str(measured.version), level,
                     f"{found.tasks} of {found.packages}", _of(found.with_verdict, _wanted(measured, level)),
                     _share(found.pass_1), _range(success_interval(measured, level)),
                     f"{_share(found.pass_k)} (k={found.k})",
                     _share(found.never_solved), _share(found.mixed)]
                )  # fmt: skip
    heads = (
        "report", "part", "as", "version", "level", "tasks of packages", "rollouts", "pass@1", "95 %", "pass@k",
        "never solved", "mixed",
    )  # fmt: skip
    return table(heads, rows)


def _wanted(measured: Measured, level: str) -> int:
    """The rollouts that were asked for; of one level, those there are."""
    return measured.num_jobs if level == ALL else len(measured.of_level(level))


def _gains(studies: Sequence[Study]) -> str:
    rows = []
    for study in studies:
        for after in study.evaluations:
            before = study.of(after.part, after.arm, 0)
            if before is not None and after.version:
                label = f"{study.label}, {after.part}, as {after.arm}, version {after.version}"
                rows += _difference_rows(label, [before], [after])
    for (part, arm), seeds in _last_by_arm(studies).items():
        pairs = [(before, after) for study, after in seeds if (before := study.of(part, arm, 0)) is not None]
        if len(pairs) > 1:
            befores, afters = [before for before, _ in pairs], [after for _, after in pairs]
            rows += _difference_rows(f"{arm}, {part}, mean of {len(pairs)} seeds", befores, afters)
    return table(_DIFFERENCE_HEADS, rows)


def _arms(studies: Sequence[Study]) -> str:
    """Each arm against the full one, and the trained agent with tools taken away against itself with all."""
    rows = []
    trained = _last_by_arm(studies)
    for (part, arm), seeds in trained.items():
        full = trained.get((part, "full"))
        if arm != "full" and full:
            label = f"trained and evaluated as {arm} ({len(seeds)}) against full ({len(full)}), {part}"
            rows += _difference_rows(label, [each for _, each in full], [each for _, each in seeds])
    for study in studies:
        for measured in study.evaluations:
            own = study.of(measured.part, study.arm, measured.version)
            if own is not None and measured.arm != study.arm:
                label = f"{study.label} evaluated as {measured.arm} against {study.arm}, version {measured.version}"
                rows += _difference_rows(f"{label}, {measured.part}", [own], [measured])
    return table(_DIFFERENCE_HEADS, rows)


def _last_by_arm(studies: Sequence[Study]) -> dict[tuple[str, str], list[tuple[Study, Measured]]]:
    """By part and arm, the last evaluated version of every seed of that arm, evaluated as it was trained."""
    found: dict[tuple[str, str], dict[int, tuple[Study, Measured]]] = defaultdict(dict)
    for study in studies:
        for measured in study.evaluations:
            if measured.arm == study.arm and measured.version:
                seeds = found[measured.part, study.arm]
                if study.seed not in seeds or measured.version > seeds[study.seed][1].version:
                    seeds[study.seed] = (study, measured)
    return {place: [seeds[seed] for seed in sorted(seeds)] for place, seeds in found.items()}


_DIFFERENCE_HEADS = ("what", "level", "tasks of packages", "before", "after", "difference", "95 %", "better", "worse")


def _difference_rows(label: str, before: Sequence[Measured], after: Sequence[Measured]) -> list[Cells]:
    rows = []
    for level in after[0].levels:
        found = difference(before, after, level)
        if found is not None:
            rows.append(_difference_row(label, level, found))
    return rows


def _difference_row(label: str, level: str, found: Difference) -> Cells:
    return [
        label,
        level,
        f"{found.tasks} of {found.packages}",
        _share(found.before),
        _share(found.after),
        f"{found.more:+.3f}",
        _range(found.interval),
        str(found.better),
        str(found.worse),
    ]


def _costs(studies: Sequence[Study]) -> str:
    rows = []
    for study in studies:
        for measured in study.evaluations:
            found = success(measured)
            if found is None:
                continue
            doubled = (
                None if (start := _start(study, measured)) is None else seconds_to(study, measured.part, 2 * start)
            )
            rows.append(
                [study.label, measured.part, measured.arm, str(measured.version), f"{found.turns:.2f}",
                 f"{found.tokens:,.0f}", _maybe(found.turns_per_success, ",.1f"),
                 _maybe(found.tokens_per_success, ",.0f"), f"{study.gpu_seconds(measured.version):,.0f}",
                 _maybe(doubled, ",.0f")]
            )  # fmt: skip
    heads = (
        "report", "part", "as", "version", "turns", "tokens", "turns per success", "tokens per success",
        "GPU-seconds so far", "until twice the start's success",
    )  # fmt: skip
    return table(heads, rows)


def _start(study: Study, measured: Measured) -> float | None:
    """The success of the start, if it had any."""
    before = study.of(measured.part, study.arm, 0)
    found = None if before is None else success(before)
    return found.pass_1 if found is not None and found.pass_1 > 0 else None


def _behaviour(studies: Sequence[Study]) -> str:
    rows = []
    for study in studies:
        for measured in study.evaluations:
            found = success(measured)
            if found is not None:
                rows.append(
                    [study.label, measured.part, measured.arm, str(measured.version), _endings(found), _calls(found)]
                )
    return table(("report", "part", "as", "version", "endings", "calls of a rollout (share that failed)"), rows)


def _endings(found: Success) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.endings.items())


def _calls(found: Success) -> str:
    return ", ".join(
        f"{name} {number:.2f} ({found.failed_calls.get(name, 0.0):.2f})" for name, number in found.calls.items()
    )


NUM_BINS = 8


def _steps(studies: Sequence[Study]) -> str:
    """Steps in bins, since one alone says little."""
    rows = []
    for study in studies:
        size = max(1, -(-len(study.steps) // NUM_BINS))
        for first in range(0, len(study.steps), size):
            steps = study.steps[first : first + size]
            rows.append(
                [study.label, f"{steps[0]['step'] + 1} to {steps[-1]['step'] + 1}",
                 *(_metric(steps, name, form) for name, form in _STEP_METRICS), _mixed(steps),
                 _maybe(_mean(step.get("seconds") for step in steps), ".1f"),
                 _maybe(_mean(step.get("gpu_percent") for step in steps), ".0f"),
                 _maybe(_mean(step.get("cores_percent") for step in steps), ".0f")]
            )  # fmt: skip
    heads = (
        "report", "steps", "reward", "entropy", "turns", "tokens of a rollout", "engine against learner", "lag",
        "mixed groups", "seconds", "GPU %", "cores %",
    )  # fmt: skip
    return table(heads, rows)


_STEP_METRICS = (
    ("reward/mean", ".3f"),
    ("learn/entropy", ".3f"),
    ("turns/mean", ".2f"),
    ("tokens/sampled_mean", ",.0f"),
    ("learn/engine_diff_mean", ".4f"),
    ("versions/lag_mean", ".2f"),
)


def _metric(steps: Sequence[Mapping[str, object]], name: str, form: str) -> str:
    return _maybe(_mean(_number(step, name) for step in steps), form)


def _number(step: Mapping[str, object], name: str) -> float | None:
    metrics = step["metrics"]
    value = metrics.get(name) if isinstance(metrics, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _mixed(steps: Iterable[Mapping[str, object]]) -> str:
    levels = [level for step in steps for level in _level_figures(step)]
    num = sum(level["groups"] for level in levels)
    return f"{sum(level['mixed'] for level in levels) / num:.2f}" if num else ""


def _level_figures(step: Mapping[str, object]) -> list[Mapping[str, float]]:
    levels = step["levels"]
    return list(levels.values()) if isinstance(levels, Mapping) else []


def _times(studies: Sequence[Study]) -> str:
    rows = []
    for study in studies:
        spent: dict[str, float] = defaultdict(float)
        for each in study.sessions:
            spent[each["stage"]] += each["end_s"] - each["start_s"]
        rows.append([study.label, *(f"{spent[stage]:,.0f}" for stage in _STAGES)])
    return table(("report", *(f"{stage}, s" for stage in _STAGES)), rows)


_STAGES = ("opening", "start", "before", "training", "after")


# ---------------------------------------------------------------- curves


def _rewards(study: Study) -> list[tuple[float, float]]:
    return [
        (step["version"], reward)
        for step in study.steps
        if (reward := step["metrics"].get("reward/mean")) is not None and step["version"] is not None
    ]


def _by_version(study: Study, part: str) -> list[tuple[float, float]]:
    found = []
    for measured in sorted(study.evaluations, key=lambda each: each.version):
        if measured.part == part and measured.arm == study.arm and (one := success(measured)) is not None:
            found.append((float(measured.version), one.pass_1))
    return found


def _levels_by_step(study: Study) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for step in study.steps:
        for level, figures in step["levels"].items():
            found[level].append((step["version"], figures["reward"]))
    return dict(found) if len(found) > 1 else {}


# ---------------------------------------------------------------- cells


def table(heads: Cells, rows: Sequence[Cells]) -> str:
    """In Markdown; empty without rows."""
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _share(value: float) -> str:
    return f"{value:.3f}"


def _range(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _of(number: int, wanted: int) -> str:
    return f"{number:,}" if number == wanted else f"{number:,} of {wanted:,}"


def _maybe(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _mean(values: Iterable[object]) -> float | None:
    found = [float(value) for value in values if isinstance(value, int | float)]
    return sum(found) / len(found) if found else None

"""What a finished evaluation looks like, and where a run's time and the machine's went: a table on a terminal, plain
lines elsewhere, or JSON."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from slipstream.batch.drift import drift_lines
from slipstream.cli.displays.tables import print_rows
from slipstream.evaluation import EvalReport, SetReport
from slipstream.telemetry.bottleneck import BOTTLENECK_SHARE, Bottleneck, Busy, CpuUse, MachineUse, Phases
from slipstream.telemetry.utilisation import INSIDE_RUN, STAGES, Resource, ResourceUse, Utilisation

_CALLED: Mapping[Resource, str] = {
    Resource.WAIT_INIT: "wait to start",
    Resource.INIT: "initialise",
    Resource.WAIT_RUN: "wait to run",
    Resource.RUN: "run",
    Resource.WAIT_TURN: "- wait for a turn",
    Resource.MODEL: "- model",
    Resource.TOOL: "- tools",
    Resource.OWN: "- harness",
    Resource.RELEASE: "release",
    Resource.WAIT_GRADE: "wait for grading",
    Resource.GRADE: "grade",
}


def as_json(report: EvalReport, folder: Path, seconds: float) -> str:
    fields = dataclasses.asdict(report)
    return json.dumps({"run": str(folder), "seconds": round(seconds, 3), **fields}, indent=2)


def print_report(console: Console, report: EvalReport, folder: Path, seconds: float) -> None:
    print_rows(console, _rows(report, folder, seconds))


def _rows(report: EvalReport, folder: Path, seconds: float) -> list[tuple[str, str]]:
    rows = [
        ("tasks", str(report.num_tasks)),
        ("rollouts", f"{report.num_rollouts}, of which {report.num_trusted} with a verdict"),
        ("mean reward", _reward(report)),
        *((f"pass@{k}", f"{chance:.3f}{_over_seeds(report, k)}") for k, chance in report.pass_at_k.items()),
        *((f"set {name}", _set(each)) for name, each in report.sets.items()),
        ("endings", _counts(report.endings)),
        ("turns", f"{report.num_turns:.1f} a rollout"),
        *([("tokens", _tokens(report))] if any(report.tokens.values()) else []),
        ("drift", "; ".join(drift_lines(report.drift))),
        ("mean times", _stages(report.stage_s)),
    ]
    for index, (kind, number) in enumerate(report.failures.items()):
        rows.append(("" if index else "failures", f"{number} x {kind}: {_shortened(report.failure_messages[kind])}"))
    rows.append(("time", f"{seconds:.1f} s"))
    rows.append(("run", str(folder)))
    if report.num_trusted < report.num_rollouts:
        rows.append(("try again", f"slipstream eval --resume {shlex.quote(str(folder))} --only untrusted"))
    return rows


def _reward(report: EvalReport) -> str:
    if report.mean_reward is None or report.reward_interval is None:
        return "none: no rollout has a verdict"
    low, high = report.reward_interval
    return f"{report.mean_reward:.3f} (95 % interval {low:.3f} to {high:.3f}, over tasks)"


def _set(report: SetReport) -> str:
    """`0.812 over 120 tasks, 478 of 480 rollouts with a verdict, 3.1 turns`."""
    reward = "no verdict" if report.mean_reward is None else f"{report.mean_reward:.3f}"
    return (
        f"{reward} over {report.num_tasks} tasks, {report.num_trusted} of {report.num_rollouts} rollouts with a "
        f"verdict, {report.num_turns:.1f} turns"
    )


def _over_seeds(report: EvalReport, k: int) -> str:
    if k != 1 or report.pass_1_interval is None:
        return ""
    low, high = report.pass_1_interval
    return f" (95 % interval {low:.3f} to {high:.3f}, over {len(report.pass_1_by_seed)} seeds)"


def _tokens(report: EvalReport) -> str:
    """`prompt 12,100 (9,000 cached), sampled 310 a rollout; cost 0.0412 each, 20.60 in all`."""
    prompt, cached, sampled = (report.tokens.get(kind, 0.0) for kind in ("prompt", "cached", "sampled"))
    text = f"prompt {prompt:,.0f} ({cached:,.0f} cached), sampled {sampled:,.0f} a rollout"
    return (
        text
        if report.cost is None
        else f"{text}; cost {report.cost:.4f} each, {report.cost * report.num_rollouts:.2f} in all"
    )


def _stages(stage_s: Mapping[str, float]) -> str:
    """`init 0.44 s (waited 1.86), run 0.86 s (waited 0.13)`."""
    waits = {name.removeprefix("wait_"): value for name, value in stage_s.items() if name.startswith("wait_")}
    return ", ".join(
        f"{name} {value:.2f} s" + (f" (waited {waits[name]:.2f})" if name in waits else "")
        for name, value in stage_s.items()
        if not name.startswith("wait_")
    )


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 200 else f"{line[:200]} ..."


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items())


# ---------------------------------------------------------------- where the time went


def usage_json(usage: Utilisation, folder: Path, machine: MachineUse) -> str:
    fields = dataclasses.asdict(usage)
    fields["uses"] = {resource.value: use for resource, use in fields["uses"].items()}
    fields["machine"] = {**dataclasses.asdict(machine), "binding": machine.bottleneck}
    return json.dumps({"run": str(folder), **fields}, indent=2)


def print_usage(console: Console, usage: Utilisation, folder: Path, machine: MachineUse) -> None:
    """What a rollout's seconds were spent on, then how busy what it used was, then the machine."""
    print_rows(console, [*_usage_rows(usage, folder), *_machine_rows(machine)])


def _usage_rows(usage: Utilisation, folder: Path) -> list[tuple[str, str]]:
    uses, num = usage.uses, max(1, usage.num_rollouts)
    life_s = sum(uses[stage].total for stage in STAGES)
    per_s = usage.num_rollouts / usage.seconds if usage.seconds else 0.0
    rows = [
        ("run", str(folder)),
        ("rollouts", f"{usage.num_rollouts} in {usage.seconds:.1f} s, {per_s:.2f} a second"),
        ("attempts", f"{usage.num_attempts}, with {usage.num_failed_stages} failed stages"),
        ("a rollout's time", f"{'seconds':>10}{'share':>8}{'at once':>10}{'peak':>7}{'busy':>8}"),
    ]
    for stage in STAGES:
        rows.append((_CALLED[stage], _time_row(uses[stage], num, life_s)))
        if stage is Resource.RUN:
            rows += [(_CALLED[inside], _time_row(uses[inside], num, life_s)) for inside in INSIDE_RUN]
    sandboxes, jobs = uses[Resource.SANDBOXES], uses[Resource.JOBS]
    rows += [
        ("jobs under way", f"{jobs.mean:.1f} on average, {jobs.peak:g} at most"),
        ("live sandboxes", f"{sandboxes.mean:.1f} on average, {sandboxes.peak:g} at most"),
        (
            "model calls",
            f"{usage.num_model_calls}, of {_mean_s(uses[Resource.MODEL], usage.num_model_calls)} s on average",
        ),
        ("prompt tokens", _prompt(usage)),
        ("sampled tokens", f"{usage.num_sampled_tokens:,}; {_rate(uses[Resource.SAMPLED_TOKENS])}"),
    ]
    return rows


def _time_row(use: ResourceUse, num: int, life_s: float) -> str:
    share = use.total / life_s if life_s else 0.0
    return f"{use.total / num:>10.2f}{share:>8.1%}{use.mean:>10.1f}{use.peak:>7.0f}{use.busy_share:>8.1%}"


def _prompt(usage: Utilisation) -> str:
    tokens = f"{usage.num_prompt_tokens:,}"
    if usage.num_cached_tokens is not None and usage.num_prompt_tokens:
        tokens += f", {usage.num_cached_tokens / usage.num_prompt_tokens:.1%} of them cached"
    return f"{tokens}; computed {_rate(usage.uses[Resource.PREFILL_TOKENS])}"


def _rate(use: ResourceUse) -> str:
    return f"{use.mean:,.0f} a second on average, {use.peak:,.0f} at most"


def _mean_s(use: ResourceUse, num: int) -> str:
    return f"{use.total / max(1, num):.2f}"


# ---------------------------------------------------------------- the machine


def _machine_rows(machine: MachineUse) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if machine.num_updates:
        rows.append(
            (
                "learner",
                f"at work for {machine.learner_share:.1%} of {machine.seconds:.1f} s; {machine.num_updates} updates of "
                f"{machine.update_s:.2f} s on average",
            )
        )
    for gpu in machine.gpus:
        rows.append((f"GPU {gpu.gpu}", f"{_phases(gpu.busy)}; {gpu.peak_memory_mb:,.0f} MB at most"))
    if machine.cpu is not None:
        rows.append((f"{machine.cpu.cores:g} cores", f"{_phases(machine.cpu.busy)}; {_own_cores(machine.cpu)}"))
    if machine.busiest is not None:
        rows.append(("binding", binding_sentence(machine)))
    return rows


def _own_cores(cpu: CpuUse) -> str:
    """What the run had of them, without its sandboxes."""
    if not cpu.helper_cores:
        return f"this process had {cpu.own_cores:.1f} of them on average"
    return f"the run had {cpu.run_cores:.1f} of them on average, {cpu.own_cores:.1f} in this process"


def binding_sentence(machine: MachineUse) -> str:
    """`gpu: busy for 91.0% of the time`."""
    if machine.bottleneck is Bottleneck.NEITHER:
        return (
            f"neither: nothing is busy for {BOTTLENECK_SHARE:.0%} of the time; {machine.busiest} comes closest, with "
            f"{machine.busiest_share:.1%}"
        )
    return f"{machine.bottleneck}: busy for {machine.busiest_share:.1%} of the time"


def _phases(phases: Phases) -> str:
    parts = [f"{name} {_mean(busy)}" for name, busy in (("rollouts", phases.rollouts), ("learner", phases.learner))]
    return f"busy {phases.whole.mean:.1%} ({', '.join(parts)}), in use {phases.whole.active_share:.1%} of the time"


def _mean(busy: Busy | None) -> str:
    return "-" if busy is None else f"{busy.mean:.1%}"

"""What a finished evaluation looks like: a table on a terminal, plain lines elsewhere, or JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from slipstream.batch.drift import drift_lines
from slipstream.cli.display import print_rows
from slipstream.evaluate import Report


def as_json(report: Report, folder: Path, seconds: float) -> str:
    fields = dataclasses.asdict(report)
    return json.dumps({"run": str(folder), "seconds": round(seconds, 3), **fields}, indent=2)


def print_report(console: Console, report: Report, folder: Path, seconds: float) -> None:
    print_rows(console, _rows(report, folder, seconds))


def _rows(report: Report, folder: Path, seconds: float) -> list[tuple[str, str]]:
    rows = [
        ("tasks", str(report.num_tasks)),
        ("rollouts", f"{report.num_rollouts}, of which {report.num_trusted} with a verdict"),
        ("mean reward", _reward(report)),
        *((f"pass@{k}", f"{chance:.3f}") for k, chance in report.pass_at_k.items()),
        ("endings", _counts(report.endings)),
        ("turns", f"{report.num_turns:.1f} a rollout"),
        ("drift", "; ".join(drift_lines(report.drift))),
        ("mean times", _stages(report.stage_s)),
    ]
    for index, (kind, number) in enumerate(report.failures.items()):
        rows.append(("" if index else "failures", f"{number} x {kind}: {_shortened(report.failure_messages[kind])}"))
    rows.append(("time", f"{seconds:.1f} s"))
    rows.append(("run", str(folder)))
    return rows


def _reward(report: Report) -> str:
    if report.mean_reward is None or report.reward_interval is None:
        return "none: no rollout has a verdict"
    low, high = report.reward_interval
    return f"{report.mean_reward:.3f} (95 % interval {low:.3f} to {high:.3f}, over tasks)"


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

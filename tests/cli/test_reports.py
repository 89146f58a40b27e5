"""What a finished evaluation looks like."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slipstream.batch.drift import Drift
from slipstream.cli.reports import as_json, print_report
from slipstream.evaluate import Report
from slipstream.types import ForkReason

REPORT = Report(
    num_tasks=2,
    num_rollouts=4,
    num_trusted=3,
    mean_reward=0.75,
    reward_interval=(0.5, 1.0),
    pass_at_k={1: 0.75, 2: 1.0},
    endings={"finished": 3, "infrastructure": 1},
    num_turns=3.25,
    stage_s={
        "wait_init": 0.5,
        "init": 1.0,
        "wait_run": 0.0,
        "run": 2.0,
        "release": 0.25,
        "wait_grade": 0,
        "grade": 3.0,
    },
    failures={"run: SandboxError": 3, "grade: GraderError": 1},
    failure_messages={"run: SandboxError": "it is\ngone", "grade: GraderError": "x" * 300},
    drift=Drift(
        num_rollouts=3,
        num_samples=4,
        num_forked=1,
        by_reason={ForkReason.CONTEXT_EDIT: 1},
        num_tokens_repeated=1200,
        num_rollouts_forked=1,
        num_without_tokens=0,
    ),
)


def printed(report: Report, *, terminal: bool, width: int = 120) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=width, color_system=None)
    print_report(console, report, Path("runs/[x]"), 12.34)
    return text.getvalue()


def test_elsewhere_than_on_a_terminal_it_is_a_row_a_line_however_long() -> None:
    assert printed(REPORT, terminal=False, width=30) == (
        "tasks        2\n"
        "rollouts     4, of which 3 with a verdict\n"
        "mean reward  0.750 (95 % interval 0.500 to 1.000, over tasks)\n"
        "pass@1       0.750\n"
        "pass@2       1.000\n"
        "endings      finished 3, infrastructure 1\n"
        "turns        3.2 a rollout\n"
        "drift        1 of 4 samples forked: 1 context edit; 1,200 tokens carried twice; 1 of 3 rollouts forked\n"
        "mean times   init 1.00 s (waited 0.50), run 2.00 s (waited 0.00), release 0.25 s, grade 3.00 s (waited 0.00)\n"
        "failures     3 x run: SandboxError: it is gone\n"
        f"             1 x grade: GraderError: {'x' * 200} ...\n"
        "time         12.3 s\n"
        "run          runs/[x]\n"
    )


def test_a_terminal_gets_a_table_with_every_row_on_one_line() -> None:
    lines = printed(REPORT, terminal=True, width=260).splitlines()
    assert len(lines) == 13 + 2
    assert lines[0][0] == "╭"
    assert lines[-2].startswith("│ run         │ runs/[x] ")


def test_without_a_verdict_there_is_no_mean_to_print() -> None:
    text = printed(replace(REPORT, mean_reward=None, reward_interval=None, pass_at_k={}, failures={}), terminal=False)
    assert "mean reward  none: no rollout has a verdict\n" in text
    assert "pass@" not in text
    assert "failures" not in text


def test_the_json_holds_every_figure() -> None:
    value = json.loads(as_json(REPORT, Path("runs/x"), 1.23456))
    assert value["run"] == "runs/x"
    assert value["seconds"] == 1.235
    assert value["drift"]["by_reason"] == {"context_edit": 1}
    assert value["pass_at_k"] == {"1": 0.75, "2": 1.0}
    assert value["reward_interval"] == [0.5, 1.0]
    assert (value["num_trusted"], value["failures"]) == (3, {"run: SandboxError": 3, "grade: GraderError": 1})

"""What a finished evaluation looks like."""

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slipstream.batch.drift import Drift
from slipstream.cli.displays.reports import as_json, print_report, print_usage, usage_json
from slipstream.evaluation import EvalReport
from slipstream.telemetry.bottleneck import Bottleneck, Busy, CpuUse, GpuUse, MachineUse, Phases
from slipstream.telemetry.utilisation import Utilisation, utilisation
from slipstream.types import Ending, EndReason, ForkReason, Job, JobKey, Rollout, Span, SpanKind, Verdict

REPORT = EvalReport(
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


def printed(report: EvalReport, *, terminal: bool, width: int = 120) -> str:
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
        "try again    slipstream eval --resume 'runs/[x]' --only untrusted\n"
    )


def test_a_terminal_gets_a_table_with_every_row_on_one_line() -> None:
    lines = printed(REPORT, terminal=True, width=260).splitlines()
    assert len(lines) == 14 + 2
    assert lines[0][0] == "╭"
    assert lines[-3].startswith("│ run         │ runs/[x] ")


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


# ---------------------------------------------------------------- where the time went


def used() -> Utilisation:
    spans = (
        Span(kind=SpanKind.WAIT_INIT, start_s=0, end_s=10),
        Span(kind=SpanKind.INIT, start_s=10, end_s=12),
        Span(kind=SpanKind.RUN, start_s=12, end_s=20),
        Span(kind=SpanKind.MODEL, start_s=12, end_s=16, counts={"new": 300, "kept": 700, "cached": 600, "sampled": 80}),
        Span(kind=SpanKind.TOOL, start_s=16, end_s=19, name="bash"),
    )
    rollout = Rollout(
        job=Job(key=JobKey(phase="eval", step=0, task_id="t", sample=0), seed=0),
        attempt=1,
        ending=Ending(reason=EndReason.FINISHED),
        verdict=Verdict(reward=1.0),
        spans=spans,
    )
    return utilisation([rollout])


UNSAMPLED = MachineUse(
    seconds=10.0, num_updates=0, update_s=0.0, learner_share=0.0, sandbox_limit=None, at_limit_share=0.0, gpus=(),
    cpu=None, busiest=None, busiest_share=0.0,
)  # fmt: skip
"""Of a run from before there were samples."""


def busy(mean: float, active_share: float = 1.0) -> Busy:
    return Busy(seconds=10.0, mean=mean, active_share=active_share)


SAMPLED = replace(
    UNSAMPLED,
    num_updates=4,
    update_s=1.25,
    learner_share=0.5,
    gpus=(
        GpuUse(
            gpu=0, busy=Phases(whole=busy(0.91, 0.97), rollouts=busy(0.85), learner=busy(0.99)), peak_memory_mb=12_345.6
        ),
    ),
    cpu=CpuUse(cores=16, busy=Phases(whole=busy(0.4), rollouts=busy(0.7), learner=None), own_cores=1.25),
    busiest=Bottleneck.GPU,
    busiest_share=0.91,
)


def machine_lines(machine: MachineUse) -> list[str]:
    text = io.StringIO()
    print_usage(Console(file=text, width=30), used(), Path("runs/x"), machine)
    return text.getvalue().splitlines()[20:]


def test_how_busy_the_machine_was_is_told_after_the_time() -> None:
    assert machine_lines(SAMPLED) == [
        "learner            at work for 50.0% of 10.0 s; 4 updates of 1.25 s on average",
        "GPU 0              busy 91.0% (rollouts 85.0%, learner 99.0%), in use 97.0% of the time; 12,346 MB at most",
        "16 cores           busy 40.0% (rollouts 70.0%, learner -), in use 100.0% of the time; "
        "this process had 1.2 of them on average",
        "binding            gpu: busy for 91.0% of the time",
    ]


def test_what_the_runs_helpers_had_of_the_cores_counts_as_the_runs() -> None:
    assert SAMPLED.cpu is not None
    with_helpers = replace(SAMPLED, cpu=replace(SAMPLED.cpu, helper_cores=2.5))
    assert machine_lines(with_helpers)[2].endswith("the run had 3.8 of them on average, 1.2 in this process")


def test_if_nothing_binds_the_busiest_is_named() -> None:
    assert machine_lines(replace(SAMPLED, busiest=Bottleneck.CPU, busiest_share=0.4))[-1] == (
        "binding            neither: nothing is busy for 80% of the time; cpu comes closest, with 40.0%"
    )


def test_the_machine_is_in_the_json() -> None:
    told = json.loads(usage_json(used(), Path("runs/x"), SAMPLED))["machine"]
    assert (told["binding"], told["busiest"], told["busiest_share"]) == ("gpu", "gpu", 0.91)
    assert told["gpus"][0]["busy"]["whole"] == {"seconds": 10.0, "mean": 0.91, "active_share": 0.97}
    assert (told["cpu"]["cores"], told["cpu"]["busy"]["learner"], told["learner_share"]) == (16, None, 0.5)


def test_where_the_time_went_is_told_stage_by_stage() -> None:
    text = io.StringIO()
    print_usage(Console(file=text, width=30), used(), Path("runs/x"), UNSAMPLED)
    assert text.getvalue() == (
        "run                runs/x\n"
        "rollouts           1 in 10.0 s, 0.10 a second\n"
        "attempts           1, with 0 failed stages\n"
        "a rollout's time      seconds   share   at once   peak    busy\n"
        "wait to start           10.00   50.0%       1.0      1  100.0%\n"
        "initialise               2.00   10.0%       0.2      1   20.0%\n"
        "wait to run              0.00    0.0%       0.0      0    0.0%\n"
        "run                      8.00   40.0%       0.8      1   80.0%\n"
        "- wait for a turn        0.00    0.0%       0.0      0    0.0%\n"
        "- model                  4.00   20.0%       0.4      1   40.0%\n"
        "- tools                  3.00   15.0%       0.3      1   30.0%\n"
        "- harness                1.00    5.0%       0.1      1   10.0%\n"
        "release                  0.00    0.0%       0.0      0    0.0%\n"
        "wait for grading         0.00    0.0%       0.0      0    0.0%\n"
        "grade                    0.00    0.0%       0.0      0    0.0%\n"
        "jobs under way     1.0 on average, 1 at most\n"
        "live sandboxes     1.0 on average, 1 at most\n"
        "model calls        1, of 4.00 s on average\n"
        "prompt tokens      1,000, 60.0% of them cached; computed 40 a second on average, 100 at most\n"
        "sampled tokens     80; 8 a second on average, 20 at most\n"
    )


def test_where_the_time_went_as_json_has_every_figure() -> None:
    told = json.loads(usage_json(used(), Path("runs/x"), UNSAMPLED))
    assert (told["run"], told["seconds"], told["num_cached_tokens"]) == ("runs/x", 10.0, 600)
    assert told["uses"]["model"] == {"mean": 0.4, "peak": 1.0, "busy_share": 0.4, "total": 4.0}

"""Standard output that cannot be written, and a command that is stopped before it began."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_stage import COMMAND, Ended, environment, slipstream

from slipstream.record import RunStore
from slipstream.seams import RolloutDone
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Span, SpanKind

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def unheard(*arguments: str, cwd: Path) -> Ended:
    """Run the command with a standard output that is open for reading alone."""
    (cwd / "out").touch()
    with (cwd / "out").open("rb") as out:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=cwd,
            env=environment(),
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    return Ended(code=done.returncode, out="", err=done.stderr)


def recorded(folder: Path, *, num: int) -> None:
    """A run of so many rollouts: many, and their list is longer than any buffer."""
    span = Span(kind=SpanKind.RUN, start_s=0, end_s=4)
    jobs = [Job(key=JobKey(phase="eval", step=0, task_id="t" * 200, sample=sample), seed=0) for sample in range(num)]

    async def write() -> None:
        async with RunStore.create(folder, config={}) as store:
            for job in jobs:
                ending = Ending(reason=EndReason.CANCELLED)
                store.append(RolloutDone(rollout=Rollout(job=job, attempt=1, ending=ending, spans=(span,))))

    asyncio.run(write())


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "few"],
        ["show", "many"],
        ["show", "few", "--usage"],
        ["show", "few", "--usage", "--json"],
        ["tools", "list"],
        ["models", "list", "--json"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    recorded(tmp_path / "runs" / "few", num=1)
    recorded(tmp_path / "runs" / "many", num=100)
    assert slipstream(*arguments, cwd=tmp_path).code == 0
    ended = unheard(*arguments, cwd=tmp_path)
    said = "slipstream: the output cannot be written ([Errno 9] Bad file descriptor): send it to another place\n"
    assert (ended.code, ended.err) == (1, said)


def test_a_bad_input_is_told_as_ever_where_output_cannot_be_written(tmp_path: Path) -> None:
    ended = unheard("show", "latest", cwd=tmp_path)
    assert ended.code == 2
    assert "there is no run" in ended.err and "cannot be written" not in ended.err


def test_what_another_file_refuses_is_not_taken_for_the_output(tmp_path: Path) -> None:
    code = """
from slipstream.cli import commands
@commands.app.command("fail")
def fail():
    print("some output")
    raise OSError(28, "No space left on device")
commands.run_command(["fail"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "some output\n")
    assert done.stderr.endswith("OSError: [Errno 28] No space left on device\n")
    assert "the output cannot be written" not in done.stderr


def test_an_evaluation_whose_report_cannot_be_written_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "a", "instruction": "One.", "tools": ["finish"], "sandbox": null,'
        ' "grading": {"kind": "exact", "expected": "1"}}'
    )
    (tmp_path / "script.py").write_text(
        "from slipstream.model.scripted import act, replies\ndef make(): return replies(act('finish', answer='1'))\n"
    )
    settings = ["react", "tasks.source=tasks.jsonl", "model.kind=scripted", "model.script=script.py:make"]
    ended = unheard("eval", *settings, cwd=tmp_path)
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert last.startswith("slipstream: the report cannot be written ([Errno 9] Bad file descriptor); resume with: ")
    again = slipstream(*last.rpartition("; resume with: slipstream ")[2].split(" "), "--json", cwd=tmp_path)
    assert (again.code, again.json["num_rollouts"]) == (0, 1)


def test_a_training_run_whose_report_cannot_be_written_says_how_to_go_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    few = ["steps=0", "tasks.num=16", "groups=16", "held_out.num=1", "warm_start.source="]
    ended = unheard("train", "quickstart", *few, "--json", cwd=tmp_path)
    assert ended.code == 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert ended.err.splitlines()[-1] == (
        "slipstream: the report cannot be written ([Errno 9] Bad file descriptor); "
        f"resume with: slipstream train --resume runs/{folder.name}"
    )


@pytest.mark.parametrize("start", [COMMAND, [sys.executable, "-m", "slipstream"]], ids=["script", "module"])
def test_a_command_stopped_while_it_loads_shows_no_traceback(tmp_path: Path, start: list[str]) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [*start, "tools", "list"],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job would ignore it
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "slipstream: stopped\n")


def test_little_is_loaded_before_a_stop_is_looked_after() -> None:
    code = "import sys; import slipstream.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "pydantic", "asyncio"} & set(done.stdout.split())

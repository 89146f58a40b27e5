"""`slipstream eval` and `slipstream show`, in real sandboxes: few and small."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cli_stage import COMMAND, Ended, environment, refused, slipstream

from slipstream.record import RunStore

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

DEMO = ("eval", "demo", "tasks.num=4", "samples=2", "model.script_args.quality=0.8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first(home: Path) -> Ended:
    """The run that the tests below look at."""
    return slipstream(*DEMO, "--json", cwd=home)


def without_time(ended: Ended) -> dict[str, object]:
    return {key: value for key, value in ended.json.items() if key != "seconds"}


def test_the_result_is_json_on_standard_output_and_the_rest_on_standard_error(first: Ended) -> None:
    assert first.code == 0
    result = first.json
    assert (result["num_tasks"], result["num_rollouts"], result["num_trusted"]) == (4, 8, 8)
    assert 0.0 <= result["mean_reward"] <= 1.0
    assert list(result["pass_at_k"]) == ["1", "2"]
    assert sum(result["endings"].values()) == 8
    assert set(result["stage_s"]) == {"wait_init", "init", "wait_run", "run", "release", "wait_grade", "grade"}
    assert result["stage_s"]["run"] > 0
    assert result["failures"] == {}
    lines = first.err.splitlines()
    assert lines[0] == f"run: {result['run']}"
    assert re.fullmatch(r"8/8 done, \d solved, 0 untrusted", lines[-1])
    assert "\x1b" not in first.err


def test_a_finished_run_runs_nothing_again_and_reports_the_same(home: Path, first: Ended) -> None:
    folder = home / first.json["run"]
    before = RunStore.read(folder).counts()
    for name in (first.json["run"], folder.name, "latest", str(folder / "run.db")):
        again = slipstream("eval", "--resume", name, "--json", cwd=home)
        assert again.err == ""
        assert {**without_time(again), "run": ""} == {**without_time(first), "run": ""}
    assert RunStore.read(folder).counts() == before


def test_a_run_may_be_resumed_with_its_own_settings_and_none_that_change_its_results(home: Path, first: Ended) -> None:
    assert slipstream(*DEMO, "--resume", "latest", "--json", cwd=home).code == 0
    message = refused(*DEMO, "samples=3", "seed=7", "--resume", "latest", cwd=home)
    assert first.json["run"] in message
    assert "samples was 2 and cannot become 3, which would change its results" in message
    assert "seed was 0 and cannot become 7, which would change its results" in message
    assert message.endswith("leave that out, or start a new run")
    assert "seed was 0 and cannot become 7" in refused("eval", "--resume", "latest", "seed=7", cwd=home)
    assert slipstream("eval", "--resume", "latest", "dispatch.slots=3", "--json", cwd=home).code == 0


def test_without_json_the_report_is_plain_lines(home: Path, first: Ended) -> None:
    ended = slipstream("eval", "--resume", "latest", cwd=home)
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in ended.out.splitlines())
    assert rows["tasks"] == "4"
    assert rows["rollouts"] == "8, of which 8 with a verdict"
    assert rows["mean reward"].startswith(f"{first.json['mean_reward']:.3f} (95 % interval ")
    assert rows["run"] == first.json["run"]
    assert "\x1b" not in ended.out


def test_the_same_run_gives_the_same_rollouts(home: Path, first: Ended, tmp_path: Path) -> None:
    other = slipstream(*DEMO, "--json", "--runs", str(tmp_path / "new" / "runs"), "dispatch.policy=batch", cwd=home)
    rewards = [
        {rollout.job.key: rollout.verdict for rollout in RunStore.read(home / ended.json["run"]).rollouts()}
        for ended in (first, other)
    ]
    assert rewards[0] == rewards[1]


def test_show_lists_the_rollouts_and_prints_one(home: Path, first: Ended) -> None:
    listed = slipstream("show", "latest", cwd=home)
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert len(lines) == 8
    assert Counter(line.split("  ")[1] for line in lines) == first.json["endings"]
    key = lines[0].split("  ")[0]
    printed = slipstream("show", "latest", key, cwd=home).out
    assert printed.startswith("--- turn 0, ")
    assert "Start in " in printed
    assert "[tool bash]\n" in printed
    assert re.search(r"^reward: [01]$", printed, re.MULTILINE)


def test_show_names_the_nearest_rollout(home: Path, first: Ended) -> None:
    key = slipstream("show", "latest", cwd=home).out.split("  ")[0]
    assert f'did you mean "{key}"?' in refused("show", "latest", f"{key}x", cwd=home)


def test_a_reader_that_leaves_early_is_no_error_to_shout_about(home: Path, first: Ended) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    for arguments in (("eval", "--resume", "latest"), ("show", "latest")):
        done = subprocess.run([*COMMAND, *arguments], cwd=home, stdout=write_end, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr) == (1, b"")
    os.close(write_end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_says_how_to_go_on_and_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ("eval", "demo", "tasks.num=32", "dispatch.slots=1")
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a shell's background job would ignore it
    ) as running:
        assert running.stderr is not None
        folder = tmp_path / running.stderr.readline().removeprefix("run: ").rstrip("\n")
        while not RunStore.read(folder).done_keys():
            assert running.poll() is None
        running.send_signal(number)
        said = running.stderr.read()
    assert running.returncode == 130
    assert "Traceback" not in said
    command = re.search(r"^stopped; resume with: slipstream (.+)$", said, re.MULTILINE)
    assert command is not None
    done = RunStore.read(folder).done_keys()
    assert 0 < len(done) < 32
    again = slipstream(*command[1].split(" "), "--json", cwd=tmp_path)
    assert (again.code, again.json["num_rollouts"], again.json["mean_reward"]) == (0, 32, 1.0)


def test_a_run_is_gone_on_with_by_one_process_at_a_time(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "eval", "demo", "dispatch.slots=1"],  # it has not ended when it is stopped
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stderr is not None
        running.stderr.readline()
        running.send_signal(signal.SIGSTOP)
        message = refused("eval", "--resume", "latest", cwd=tmp_path)
        running.terminate()
        running.send_signal(signal.SIGCONT)
        running.stderr.read()
    assert re.fullmatch(rf"run demo-\S+ is in use by process {running.pid}: wait until it ends, or stop it", message)
    assert running.returncode == 130


def test_a_full_disk_ends_the_run_with_what_was_kept_and_how_to_go_on(tmp_path: Path) -> None:
    arguments = ("eval", "demo", "tasks.num=8", "dispatch.slots=4")
    limited = [
        sys.executable,
        "-c",
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (180_000,) * 2)\n{COMMAND[2]}",
    ]
    ended = subprocess.run(
        [*limited, *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    last = ended.stderr.splitlines()[-1]
    assert "JournalError" in last and "see that its disk has room" in last
    command = last.rpartition("; resume with: slipstream ")[2]
    again = slipstream(*command.split(" "), "--json", cwd=tmp_path)
    assert (again.code, again.json["num_rollouts"]) == (0, 8)


def test_a_run_is_not_gone_on_with_when_its_tasks_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    line = {"id": "a", "instruction": "One.", "tools": ["finish"], "sandbox": None}
    path.write_text(json.dumps({**line, "grading": {"kind": "exact", "expected": "1"}}))
    (tmp_path / "script.py").write_text(
        "from slipstream.model.scripted import act, replies\ndef make(): return replies(act('finish', answer='1'))\n"
    )
    settings = ["react", "tasks.source=tasks.jsonl", "model.kind=scripted", "model.script=script.py:make"]
    assert slipstream("eval", *settings, cwd=tmp_path).code == 0
    assert slipstream("eval", "--resume", "latest", cwd=tmp_path).code == 0
    path.write_text(json.dumps({**line, "grading": {"kind": "exact", "expected": "2"}}))
    ended = slipstream("eval", "--resume", "latest", cwd=tmp_path)
    assert ended.code == 2
    assert "the tasks are not those that the run" in ended.err


def test_a_run_in_which_nothing_has_a_verdict_is_a_failure(tmp_path: Path) -> None:
    line = {"id": "a", "instruction": "One.", "tools": ["finish"], "sandbox": None}
    (tmp_path / "tasks.jsonl").write_text(json.dumps({**line, "grading": {"kind": "exact", "expected": "1"}}))
    (tmp_path / "script.py").write_text("def make(): return gone\ndef gone(scene): raise ConnectionError('gone')\n")
    settings = ["react", "tasks.source=tasks.jsonl", "model.kind=scripted", "model.script=script.py:make"]
    ended = slipstream("eval", *settings, "--json", cwd=tmp_path)
    assert ended.code == 1
    assert ended.json["failures"] == {"run: ModelError": 3}
    assert "ConnectionError: gone (script.py, line 2, in gone)" in ended.json["failure_messages"]["run: ModelError"]
    assert ended.err.rstrip().splitlines()[-1].startswith("slipstream: no rollout has a verdict")

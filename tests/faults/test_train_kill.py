"""A deterministic training run, killed twice, ends with the weights of one that was left alone."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from store_watch import wait_for_record

from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.types import JobKey, Turn

COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()", "train"]
COINS = f"{Path(__file__).with_name('coin_tasks.py')}:coin_tasks"
SMALL = (
    "quickstart", f"tasks.source={COINS}", f"held_out.source={COINS}", "deterministic=true", "steps=3", "groups=4",
    "samples=4", "tasks.num=12", "held_out.num=2", "eval_every=0", "warm_start.args.num=80",
    "warm_start.learning.num_epochs=2", "model.engine.num_slots=4", "checkpoint_every=2", "seed=5",
)  # fmt: skip


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "trained" / "model.safetensors").read_bytes()).hexdigest()


def turns_of(folder: Path) -> dict[JobKey, tuple[Turn, ...]]:
    return {rollout.job.key: rollout.turns for rollout in RunStore.read(folder).rollouts()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was left alone."""
    runs = str(tmp_path_factory.mktemp("unbroken"))
    done = subprocess.run([*COMMAND, *SMALL, "--json", "--runs", runs], capture_output=True, text=True, check=True)
    return Path(json.loads(done.stdout)["run"])


def num_committed(runs: Path) -> tuple[int, int]:
    """How many rollouts and batches are on record."""
    folders = [folder for folder in runs.glob("*") if (folder / "run.db").exists()]
    if not folders:
        return 0, 0
    try:
        reader = RunStore.read(folders[0])
        return reader.counts().rollouts, sum(step.taken is not None for step in reader.steps())
    except ConfigError:  # it is being made
        return 0, 0


def kill_when(runs: Path, command: list[str], reached: tuple[int, int]) -> dict[int, str]:
    """Kill it as soon as more is on record than `reached` says. Returns the processes that it had started."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        wait_for_record(process, runs, lambda: num_committed(runs) > reached)
        started = started_by(process.pid)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    return started


def started_by(pid: int) -> dict[int, str]:
    """The modules of the processes that a run has started, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except (OSError, IndexError):
            continue
        if parent == pid and "-m" in words:
            found[int(entry.name)] = words[words.index("-m") + 1]
    return found


def wait_until_gone(pids: Iterable[int]) -> None:
    end_s = time.monotonic() + 120.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end_s, f"of {pids} some are still there"
        time.sleep(0.02)


def test_a_killed_and_resumed_run_ends_with_the_same_weights(tmp_path: Path, unbroken: Path) -> None:
    runs = tmp_path / "killed"
    resume = [*COMMAND, "--resume", "latest", "--runs", str(runs)]
    kill_when(runs, [*COMMAND, *SMALL, "--runs", str(runs)], (10, 0))
    kill_when(runs, resume, (num_committed(runs)[0] + 2, 1))
    done = subprocess.run([*resume, "--json"], capture_output=True, text=True, check=True)
    killed = Path(json.loads(done.stdout)["run"])
    assert weights(killed) == weights(unbroken)
    learnt = [(step.metrics or {}).get("learn/grad_norm", 0.0) for step in RunStore.read(unbroken).steps()]
    assert len(learnt) == 3 and all(norm > 0 for norm in learnt), "nothing was learnt, so nothing was compared"
    steps = RunStore.read(killed).steps()
    assert [step.version for step in steps] == [1, 2, 3]
    killed_turns, turns = (
        {one.job.key: one.turns for one in RunStore.read(run).rollouts()} for run in (killed, unbroken)
    )
    assert killed_turns == turns


ENGINE, HELPER = "slipstream.model.process", "slipstream.placement.helper"


def test_with_the_engine_in_a_process_of_its_own_it_is_the_same_whichever_process_is_killed(
    tmp_path: Path, unbroken: Path
) -> None:
    runs = tmp_path / "killed"
    resume = [*COMMAND, "--resume", "latest", "--runs", str(runs)]
    apart = ("model.engine.process=own", "dispatch.processes=2")
    started = kill_when(runs, [*COMMAND, *SMALL, *apart, "--runs", str(runs)], (4, 0))
    assert sorted(started.values()) == [ENGINE, HELPER, HELPER]
    wait_until_gone(started)

    reached = num_committed(runs)
    with subprocess.Popen(resume, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_for_record(process, runs, lambda: num_committed(runs) > reached)
        started = started_by(process.pid)
        (engine,) = [pid for pid, module in started.items() if module == ENGINE]
        os.kill(engine, signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode > 0, "it ended by itself, and not well"
    assert "the engine's process ended (killed by signal 9" in said
    wait_until_gone(started)

    done = subprocess.run([*resume, "--json"], capture_output=True, text=True, check=True)
    killed = Path(json.loads(done.stdout)["run"])
    assert weights(killed) == weights(unbroken)
    assert turns_of(killed) == turns_of(unbroken)

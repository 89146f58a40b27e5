"""SIGKILL in the middle of a run, then a resume: every rollout once, and nothing of the dead left."""

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from store_watch import wait_for_record

from slipstream.errors import ConfigError
from slipstream.evaluation import plan_jobs
from slipstream.recipes import find_recipe
from slipstream.recipes.demo.tasks import demo_tasks
from slipstream.record import RunStore
from slipstream.settings import EvalConfig

NUM, SAMPLES = 12, 2
COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()", "eval"]


def num_done(folder: Path) -> int:
    """Rollouts in the store; -1 while it is being made."""
    try:
        return RunStore.read(folder).counts().rollouts
    except ConfigError:
        return -1


def kill_when(process: subprocess.Popen[bytes], runs: Path, at_least: int) -> None:
    """SIGKILL as soon as that many rollouts are in the store."""
    wait_for_record(process, runs, lambda: any(num_done(folder) >= at_least for folder in runs.glob("*")))
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_run_killed_again_and_again_has_every_rollout_exactly_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    settings = [f"tasks.num={NUM}", f"samples={SAMPLES}", "dispatch.slots=4"]
    start = [*COMMAND, "demo", *settings, "--runs", str(runs)]
    resume = [*COMMAND, "--resume", "latest", "--runs", str(runs)]
    reached = 0
    for at_least in (0, 4, 14):
        process = subprocess.Popen(
            resume if runs.is_dir() else start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        kill_when(process, runs, at_least)
        assert process.returncode == -signal.SIGKILL
        done = num_done(next(runs.iterdir()))
        assert done >= reached
        reached = done
    result = subprocess.run([*resume, "--json"], capture_output=True, text=True, check=True)
    report = json.loads(result.stdout)
    assert report["num_rollouts"] == NUM * SAMPLES
    assert report["mean_reward"] == 1.0
    recipe = find_recipe("demo")
    assert isinstance(recipe, EvalConfig)
    config = replace(recipe, samples=SAMPLES)
    expected = [job.key for job in plan_jobs(config, demo_tasks(num=NUM))]
    found = [rollout.job.key for rollout in RunStore.read(next(runs.iterdir())).rollouts(with_turns=False)]
    assert Counter(found) == Counter(expected)

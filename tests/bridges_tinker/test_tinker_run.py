"""`slipstream train quickstart bridge=tinker` against a real server, which is killed on the way and started again."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

from bridges_tinker.tinker_server import Server
from slipstream.errors import ConfigError
from slipstream.record import RunStore, StepRecord
from slipstream.types import EndReason

COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()", "train"]
COINS = f"{Path(__file__).with_name('coin_demo.py')}:coin_demo"
SMALL = (
    "quickstart", "bridge=tinker", f"tasks.source={COINS}", "tasks.args={}", "tasks.num=8", "held_out.source=",
    "warm_start.source=", "steps=3", "groups=2", "samples=3", "model.max_tokens=8", "learner.lora.rank=8",
    "learner.num_epochs=1", "learner.num_minibatches=1",
)  # fmt: skip
LIMIT_S = 1_500


def steps_of(runs: Path) -> tuple[StepRecord, ...]:
    folders = [folder for folder in runs.glob("*") if (folder / "run.db").exists()]
    try:
        return RunStore.read(folders[0]).steps() if folders else ()
    except ConfigError:  # it is being made
        return ()


def test_a_run_outlives_its_server(server: Server, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        running = subprocess.Popen(
            [*COMMAND, *SMALL, f"base_url={server.url}", "--runs", str(tmp_path / "runs")], stderr=stderr
        )
        until_s = time.monotonic() + LIMIT_S
        while not any(step.version is not None for step in steps_of(tmp_path / "runs")):
            assert running.poll() is None and time.monotonic() < until_s, errors.read_text()
            time.sleep(0.1)
        server.kill()
        assert running.wait(timeout=LIMIT_S) != 0
    said = " ".join(errors.read_text().split())
    assert "BridgeError" in said and ("is gone" in said or "has lost the adapter" in said), said
    before = [step.version for step in steps_of(tmp_path / "runs")]
    assert 3 not in before, "it was killed too late to say anything"
    server.start()
    resumed = subprocess.run(
        [*COMMAND, "--resume", "latest", "--json", "--runs", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    folder = Path(json.loads(resumed.stdout)["run"])
    steps = RunStore.read(folder).steps()
    assert [step.version for step in steps] == [1, 2, 3]
    for step in steps:
        assert step.taken is not None and set(step.taken) == set(step.planned)
        figures = step.metrics or {}
        assert all(math.isfinite(figures[name]) for name in ("learn/loss", "learn/grad_norm", "reward/mean"))
        assert figures["learn/grad_norm"] > 0, "there was something to learn"
        assert figures["learn/engine_diff_mean"] < 1e-3, "what was sampled is what was scored"
    endings = {rollout.ending.reason for rollout in RunStore.read(folder).rollouts()}
    assert EndReason.INFRASTRUCTURE not in endings, "no rollout was lost with the server"
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["version-000000", "version-000002", "version-000003"], "whole checkpoints alone"
    trained = json.loads((folder / "trained" / "tinker.json").read_text())
    assert trained["adapter"].startswith("tinker://")

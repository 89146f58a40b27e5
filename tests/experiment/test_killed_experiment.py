"""An experiment that is killed in every stage and moved to another machine is made of the same parts as any other."""

import json
import subprocess
import sys
from pathlib import Path

from slipstream.experiment.evaluations import evaluations
from slipstream.experiment.steps import read_steps
from slipstream.record import RunStore

DRIVER = Path(__file__).with_name("killed_session.py")
KILLS = ("warm start: step 1", "evaluation held_out-full-v000000: mean", "step 1/2 in", "stage after")


def stages(out: Path) -> list[str]:
    lines = (out / "sessions.jsonl").read_text(encoding="utf-8").splitlines()
    return [stage for line in lines if (stage := json.loads(line)["stage"]) != "opening"]


def test_killed_in_every_stage_and_moved_it_ends_as_planned(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    command = [sys.executable, str(DRIVER), str(out), str(elsewhere), *KILLS]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 0, said.stderr[-2_000:]
    ends = [line for line in said.stdout.splitlines() if line == "killed" or line.startswith("ended")]
    assert ends == ["killed"] * len(KILLS) + ["ended 0"] * 3, said.stdout

    assert {str(each.name): len(each.rows()) for each in evaluations(out)} == {
        "held_out-full-v000000": 10,
        "held_out-full-v000002": 10,
    }
    first = next(line for line in said.stdout.splitlines() if line.startswith("evaluation held_out-full-v000000: mean"))
    assert said.stdout.count(first) == 1, "what was evaluated is not evaluated again"
    assert [step["version"] for step in read_steps(out)] == [1, 2]
    assert not list(out.glob(".start*"))

    pieces = sorted(path.name for path in (tmp_path / "pieces").iterdir())
    assert len(pieces) > 1 and "moments as float32" in said.stdout
    assert [step["version"] for step in read_steps(elsewhere)] == [1, 2, 3]
    assert read_steps(elsewhere)[:2] == read_steps(out)
    assert {str(each.name) for each in evaluations(elsewhere)} == {
        *(str(each.name) for each in evaluations(out)),
        "held_out-full-v000003",
    }
    kept = list(RunStore.read(elsewhere / "training").steps())
    assert [step.planned for step in kept[:2]] == [step.planned for step in RunStore.read(out / "training").steps()]
    assert stages(elsewhere)[len(stages(out)) :] == ["training", "after"]

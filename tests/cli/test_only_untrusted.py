"""`slipstream eval --resume RUN --only untrusted`: after an outage, a new run with the good part of the old one."""

import json
from pathlib import Path

import pytest
from cli_stage import Ended, refused, slipstream

from slipstream.record import RunStore

MINE = """
from pathlib import Path
from slipstream.model.scripted import act
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig
from slipstream.types import Brief, Grading, Task

class Service:
    needs_sandbox = False
    def check(self, spec): pass
    def grade(self, grading, artifact, context):
        if spec_of(grading) % 2 and Path("outage").exists():
            raise ConnectionError("the grading service is down")
        return 1.0

def spec_of(grading):
    return grading.spec["number"]

def tasks():
    for number in range(4):
        grading = Grading(kind="mine.py:Service", spec={"number": number})
        yield Task(id=f"t{number}", brief=Brief(instruction="Say x.", tools=("finish",)), grading=grading)

def script():
    return lambda scene: act("finish", answer="x")

def recipe():
    model = ModelConfig(kind="scripted", script="mine.py:script")
    return EvalConfig(name="mine", tasks=TasksConfig(source="mine.py:tasks"), samples=2, model=model)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "outage").touch()
    return tmp_path


def evaluated(place: Path, *arguments: str) -> Ended:
    return slipstream("eval", *arguments, "--json", cwd=place)


def test_only_what_has_no_verdict_runs_again_and_the_report_is_of_all(place: Path) -> None:
    first = evaluated(place, "mine.py:recipe", "dispatch.retries.grades=1").json
    assert (first["num_rollouts"], first["num_trusted"]) == (8, 4)
    old = RunStore.read(place / first["run"])
    told = slipstream("eval", "--resume", "latest", cwd=place).out.splitlines()[-1]
    assert told == f"try again    slipstream eval --resume {first['run']} --only untrusted"
    (place / "outage").unlink()
    again = evaluated(place, "--resume", "latest", "--only", "untrusted")
    assert (again.json["num_rollouts"], again.json["num_trusted"], again.json["mean_reward"]) == (8, 8, 1.0)
    assert f"its first 4 rollouts are those of {old.folder.resolve()}" in again.err.splitlines()
    new = RunStore.read(Path(again.json["run"]))
    assert new.folder != old.folder and new.counts().rollouts == old.counts().rollouts == 8
    good = {each.job.key: each for each in old.rollouts() if each.verdict is not None}
    assert {each.job.key: each for each in new.rollouts() if each.job.key in good} == good
    listed = json.loads(slipstream("runs", "--json", cwd=place).out)
    assert [(run["state"], run["reward"]) for run in listed] == [("finished", 1.0), ("finished", 1.0)]
    assert "every rollout of" in refused("eval", "--resume", "latest", "--only", "untrusted", cwd=place)


def test_settings_that_would_change_results_are_refused_and_no_run_is_left(place: Path) -> None:
    evaluated(place, "mine.py:recipe", "dispatch.retries.grades=1")
    resume = ("eval", "--resume", "latest", "--only", "untrusted")
    assert "seed was 0 and cannot become 3" in refused(*resume, "seed=3", cwd=place)
    assert "write --resume RUN --only untrusted" in refused("eval", "mine.py:recipe", "--only", "untrusted", cwd=place)
    assert "write --resume RUN --only untrusted" in refused("eval", "--resume", "latest", "--only", "bad", cwd=place)
    (place / "mine.py").write_text(MINE.replace("range(4)", "range(5)"))
    refusal = slipstream(*resume, cwd=place)
    assert refusal.code == 2 and "the tasks are not those that the run" in refusal.err
    assert len(list((place / "runs").iterdir())) == 1

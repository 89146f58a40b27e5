"""Mistakes in a user's own files, as the user meets them on the command line."""

from pathlib import Path

import pytest
from cli_stage import slipstream

from slipstream.record import RunStore

MINE = """
from slipstream.model.scripted import act
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig
from slipstream.types import Brief, Grading, Task

class Half:
    needs_sandbox = False
    def check(self, spec): pass
    def grade(self, grading, artifact, context):
        return {"style": 0.25, "tests": 0.25}

class Broken(Half):
    async def grade(self, grading, artifact, context):
        return {}["x"]

class NoCheck(Half):
    def check(self, spec):
        return spec["nope"]

def tasks(*, grader: str = "Half"):
    for number in range(12):
        brief = Brief(instruction="Say x.", tools=("finish",))
        yield Task(id=f"t{number}", brief=brief, grading=Grading(kind=f"mine.py:{grader}", spec={}))

def script():
    return lambda scene: act("finish", answer="x")

def recipe():
    model = ModelConfig(kind="scripted", script="mine.py:script")
    return EvalConfig(name="mine", tasks="mine.py:tasks", samples="2", model=model)

def no_tasks():
    return EvalConfig(name="mine", tasks=TasksConfig(source="mine.py:stopping"))

def stopping():
    yield Task(id="a", brief=Brief(instruction="x", tools=("finish",)), grading=Grading(kind="mine.py:Half", spec={}))
    raise RuntimeError("no more")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_a_mistake_ends_the_run_with_its_traceback_once_and_the_mended_run_is_resumed(place: Path) -> None:
    ended = slipstream("eval", "mine.py:recipe", "tasks.args.grader=Broken", "dispatch.slots=2", cwd=place)
    assert ended.code == 1
    assert ended.err.count("Traceback") == 1
    assert 'return {}["x"]' in ended.err and "line 14, in grade" in ended.err
    last = ended.err.splitlines()[-1]
    assert last.startswith("slipstream: UserCodeError: every attempt so far failed in the same way in the grade stage")
    (run,) = (place / "runs").iterdir()
    assert last.endswith(f"resume with: slipstream eval --resume runs/{run.name}")
    assert not RunStore.read(run).done_keys()
    (place / "mine.py").write_text(MINE.replace('return {}["x"]', "return 1"))
    resumed = slipstream("eval", "--resume", "latest", "--json", cwd=place).json
    assert (resumed["num_rollouts"], resumed["num_trusted"], resumed["mean_reward"]) == (24, 24, 1.0)


def test_settings_of_a_recipe_are_read_as_those_of_the_command_line_and_a_dict_is_a_reward(place: Path) -> None:
    report = slipstream("eval", "mine.py:recipe", "tasks.num=2", "--json", cwd=place).json
    assert (report["num_rollouts"], report["mean_reward"]) == (4, 0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["mine.py:recipe", "tasks.args.grader=NoCheck"],
            "grader mine.py:NoCheck: its check of task t0 failed: KeyError: 'nope' (mine.py, line 18, in check)",
        ),
        (
            ["mine.py:no_tasks"],
            "tasks.source mine.py:stopping failed: RuntimeError: no more (mine.py, line 37, in stopping)",
        ),
    ],
)
def test_what_is_wrong_before_the_run_starts_is_one_sentence_with_file_and_line(
    place: Path, arguments: list[str], said: str
) -> None:
    ended = slipstream("eval", *arguments, cwd=place)
    assert (ended.code, ended.out, ended.err) == (2, "", f"slipstream: {said}\n")
    assert not (place / "runs").exists()

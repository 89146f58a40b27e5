"""Loading the tasks of a task source by its name."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.tasks.source import digest_of, load_tasks
from slipstream.types import Brief, Grading, Json, Task

MODULE = """
from itertools import count
from slipstream.errors import ConfigError
from slipstream.types import Brief, Grading, Task

def make(name, kind="exact"):
    return Task(id=name, brief=Brief(instruction="x"), grading=Grading(kind=kind, spec={"expected": "1"}))

def three(*, prefix="t"):
    return [make(f"{prefix}{index}") for index in range(3)]

def endless():
    for index in count():
        assert index < 100, "more was taken than asked for"
        yield make(str(index))

def counted(*, num=5):
    return [make(f"{num}-{index}") for index in range(num)]

def twice(): return [make("a"), make("a")]
def none(): return []
def number(): return 7
def numbers(): return [7]
def boom(): raise RuntimeError("no luck")
def strict(): raise ConfigError("not like this")
def ungraded(): return [make("a", kind="exakt")]
value = 3
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return str(path)


def load(source: str, num: int | None = None, args: Mapping[str, Json] | None = None) -> list[str]:
    return [task.id for task in load_tasks(source, num=num, args=args or {})]


def refusal(source: str, num: int | None = None, args: Mapping[str, Json] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load_tasks(source, num=num, args=args or {})
    return str(raised.value)


def test_a_function_gives_tasks_and_takes_args(module: str) -> None:
    assert load(f"{module}:three") == ["t0", "t1", "t2"]
    assert load(f"{module}:three", args={"prefix": "x"}) == ["x0", "x1", "x2"]


def test_the_first_num_are_taken_also_of_an_endless_source(module: str) -> None:
    assert load(f"{module}:three", num=2) == ["t0", "t1"]
    assert load(f"{module}:endless", num=3) == ["0", "1", "2"]


def test_a_function_that_takes_num_is_given_it(module: str) -> None:
    assert load(f"{module}:counted", num=2) == ["2-0", "2-1"]
    assert load(f"{module}:counted") == [f"5-{index}" for index in range(5)]


def test_a_file_gives_its_first_tasks_even_with_a_colon_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "v1:tasks.jsonl"
    line = {"instruction": "x", "grading": {"kind": "exact", "expected": "1"}}
    path.write_text("".join(json.dumps({"id": name, **line}) + "\n" for name in "abc"))
    assert load(str(path), num=2) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("twice", 'returned the id "a" twice'),
        ("none", "returned no tasks"),
        ("number", "returned a int"),
        ("numbers", "returned a int among its tasks"),
        ("boom", "failed: RuntimeError: no luck"),
        ("strict", "not like this"),
        ("ungraded", 'there is no grader "exakt" (did you mean "exact"?)'),
        ("value", "is a int: name a function"),
        ("tree", 'has no "tree" (did you mean "three"?)'),
    ],
)
def test_a_function_that_gives_no_tasks_is_refused(module: str, name: str, said: str) -> None:
    assert said in refusal(f"{module}:{name}")


def test_wrong_args_are_named(module: str) -> None:
    assert 'no setting "tasks.args.prefxi" (did you mean "prefix"?)' in refusal(f"{module}:three", args={"prefxi": "x"})


def test_too_few_tasks_are_refused(module: str) -> None:
    assert refusal(f"{module}:three", num=4) == f"tasks.num=4, but {module}:three has only 3 tasks: lower tasks.num"


@pytest.mark.parametrize("num", [0, -1])
def test_no_tasks_cannot_be_asked_for(module: str, num: int) -> None:
    assert refusal(f"{module}:three", num=num).startswith(f"tasks.num={num}:")


def test_no_source_is_refused() -> None:
    assert "set tasks.source" in refusal("")


def test_args_make_no_sense_for_a_file(tmp_path: Path) -> None:
    assert "remove tasks.args" in refusal(str(tmp_path / "tasks.jsonl"), args={"seed": 1})


def test_a_task_is_given_as_it_was_made(module: str) -> None:
    assert load_tasks(f"{module}:three", num=1, args={}) == (
        Task(id="t0", brief=Brief(instruction="x"), grading=Grading(kind="exact", spec={"expected": "1"})),
    )


def test_a_folder_that_holds_a_task_file_is_a_task_set(tmp_path: Path) -> None:
    line = '{"id": "a", "instruction": "Do it.", "tools": ["finish"], "grading": {"kind": "exact", "expected": "x"}}'
    (tmp_path / "tasks.jsonl").write_text(line)
    assert [task.id for task in load_tasks(str(tmp_path), num=None, args={})] == ["a"]


def test_the_digest_of_a_task_counts_its_resources() -> None:
    def digest(**resources: Json) -> str:
        brief = Brief(instruction="x", resources=resources)
        return digest_of([Task(id="t", brief=brief, grading=Grading(kind="exact", spec={"expected": "1"}))])

    assert len({digest(), digest(pages=["one"]), digest(pages=["two"])}) == 3

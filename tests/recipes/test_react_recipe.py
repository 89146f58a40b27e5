"""The general tasks: files of public sets, the shipped sample played in full, and what each tool is worth."""

import base64
import json
import pickle
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

import slipstream as ss
from slipstream.cli.sessions import find_session
from slipstream.errors import ConfigError
from slipstream.recipes.react import recipe, sample
from slipstream.recipes.react.mathematics import expected, read_math
from slipstream.recipes.react.programs import read_programs
from slipstream.recipes.react.questions import answers, read_questions
from slipstream.settings import EvalConfig, ModelConfig
from slipstream.types import Json


def written(folder: Path, *rows: Mapping[str, Json]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def row(**fields: Json) -> ss.Row:
    return ss.Row(where="here", fields=fields)


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"question": "?", "answer": "2 * 3 = <<2*3=6>>6\n#### 1,006"}, "1,006"),
        ({"problem": "?", "solution": r"First \boxed{1}, then \boxed{\frac{1}{2}}."}, r"\boxed{\frac{1}{2}}."),
        ({"problem": "?", "solution": "none", "answer": r"\frac{1}{2}"}, r"\frac{1}{2}"),
        ({"Question": "?", "Answer": 204}, "204"),
    ],
)
def test_answers_of_mathematics(fields: dict[str, Json], answer: str) -> None:
    assert expected(row(**fields)) == answer


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"answer": ["A", "B", "A"]}, ["A", "B"]),
        ({"answer": {"value": "A", "aliases": ["A", "a"]}}, ["A", "a"]),
        ({"possible_answers": '["A", "B"]'}, ["A", "B"]),
        ({"answer": "A", "answer_aliases": ["B"]}, ["A", "B"]),
        ({"Answer": "A"}, ["A"]),
        ({"golden_answers": ["A"], "answer": "never"}, ["A"]),
    ],
)
def test_answers_of_questions(fields: dict[str, Json], found: list[str]) -> None:
    assert answers(row(**fields)) == found


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_hidden_tests_of_livecodebench_are_read_and_no_code_is_unpickled(tmp_path: Path) -> None:
    case = {"input": "1\n", "output": "2\n", "testtype": "stdin"}
    fields: dict[str, Json] = {"question_content": "Add 1.", "public_test_cases": json.dumps([case])}
    (task,) = read_programs(path=written(tmp_path, {**fields, "private_test_cases": packed(json.dumps([case] * 2))}))
    assert len(task.grading.spec["cases"]) == 3  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"row 1: private_test_cases cannot be read: it names .*system"):
        read_programs(path=written(tmp_path, {**fields, "private_test_cases": packed(_Hostile())}))


class _Hostile:
    def __reduce__(self) -> object:
        import os

        return os.system, ("true",)


@pytest.mark.parametrize(
    ("read", "fields", "message"),
    [
        (read_math, {"problem": "?", "solution": "no box"}, r"row 1: the solution has no \\boxed"),
        (read_math, {"prompt": "?"}, 'row 1: the field "problem" is missing'),
        (read_programs, {"question": "?"}, "row 1: there is none of the fields entry_point"),
        (
            read_programs,
            {"text": "?", "code": "def f(): pass", "test_list": ["assert g()"]},
            "no assertion of test_list",
        ),
        (
            read_programs,
            {"question": "?", "input_output": '{"inputs": ["1"], "outputs": []}'},
            "1 inputs and 0 outputs",
        ),
        (read_questions, {"question": "?", "answer": []}, "row 1: it has no answer"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(
    tmp_path: Path, read: object, fields: dict[str, Json], message: str
) -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(ConfigError, match=message):
        read(path=written(tmp_path, fields))  # type: ignore[operator]


def test_a_tool_that_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match='without="bash": name one of python, finish'):
        read_math(without="bash")


def test_a_file_of_questions_without_an_index_is_closed_book(tmp_path: Path) -> None:
    (task,) = read_questions(path=written(tmp_path, {"question": "who?", "answer": ["A"]}))
    assert task.brief.tools == ("finish",) and not task.brief.resources
    (task,) = read_questions(path=written(tmp_path, {"question": "who?", "answer": ["A"]}), index="wiki", grader="f1")
    assert [name.rpartition(":")[2] for name in task.brief.tools] == ["search_documents", "get_document", "finish"]
    assert (task.brief.resources, task.grading.kind) == ({"search": {"index": "wiki", "limit": 3}}, "f1")


def test_what_is_hidden_is_in_no_brief_and_no_sandbox() -> None:
    for task in (*read_programs(path="functions"), *read_programs(path="programs")):
        seen = f"{task.brief!r} {task.sandbox!r}"
        spec = task.grading.spec
        hidden = str(spec.get("reference", "")).splitlines()[-1:]
        hidden += [line for line in str(spec.get("tests", "")).splitlines() if "assert" in line][1:]
        for case in spec.get("cases") or []:  # type: ignore[union-attr]
            assert isinstance(case, dict)
            hidden += [str(case["input"])] if case is not spec["cases"][0] else []  # type: ignore[index]
        assert not [each for each in hidden if each.strip() and each.strip() in seen], task.id


# ---------------------------------------------------------------- which settings


def settings_of(*overrides: str) -> EvalConfig:
    return find_session(EvalConfig, "react", list(overrides), resume=None, runs=Path("runs")).config


def test_without_tasks_the_sample_runs_and_with_tasks_the_recipe_is_the_plain_loop() -> None:
    assert settings_of() == sample()
    assert settings_of("samples=4").samples == 4 and settings_of("samples=4").model.kind == "scripted"
    plain = settings_of("tasks=mine.jsonl")
    assert (plain.model, plain.tasks.source, plain.tasks.sets) == (ModelConfig(kind="chat"), "mine.jsonl", {})
    assert settings_of("tasks.sets.math.num=2").tasks.sets["math"].num == 2
    assert len(settings_of("tasks.sets.math.num=2").tasks.sets) == 4
    served = settings_of("model.base_url=http://localhost:1/v1")
    assert served.model == ModelConfig(kind="chat", base_url="http://localhost:1/v1")
    assert served.tasks == sample().tasks
    assert recipe().tasks.source == "" and not recipe().tasks.sets


# ---------------------------------------------------------------- the sample, played

needs_all = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def played(folder: Path, sets: Mapping[str, ss.TaskSetConfig]) -> ss.EvalResult:
    for module in ("math_verify", "bm25s", "threadpoolctl"):
        pytest.importorskip(module)
    config = sample()
    config = EvalConfig(name="react", tasks=ss.TasksConfig(sets=sets), model=config.model)
    return ss.evaluate({name: each.source for name, each in sets.items()}, config=config, runs=folder, quiet=True)


@needs_all
def test_the_scripted_agent_solves_the_sample_from_what_it_observes(tmp_path: Path) -> None:
    result = played(tmp_path, sample().tasks.sets)
    assert result.num_rollouts >= 16
    assert {name: each.mean_reward for name, each in result.report.sets.items()} == {
        "math": 1.0,
        "functions": 1.0,
        "programs": 1.0,
        "questions": 1.0,
    }


@needs_all
def test_without_a_tool_it_solves_nothing(tmp_path: Path) -> None:
    module = "slipstream.recipes.react"
    left_out = {
        "math": ("mathematics:read_math", {"without": "python"}),
        "functions": ("programs:read_programs", {"path": "functions", "without": "python", "num": 2}),
        "programs": ("programs:read_programs", {"path": "programs", "without": "write_file", "num": 2}),
        "questions": ("questions:read_questions", {"without": "search"}),
    }
    sets = {name: ss.TaskSetConfig(source=f"{module}.{source}", args=args) for name, (source, args) in left_out.items()}
    result = played(tmp_path, sets)
    assert {name: each.mean_reward for name, each in result.report.sets.items()} == dict.fromkeys(left_out, 0.0)
    assert result.report.num_trusted == result.num_rollouts > 15

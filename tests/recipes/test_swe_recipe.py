"""The oracle's demonstrations: said by a model that only knows what it has seen, and learnable."""

import json
import sys
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import mkdtemp

import pytest

import slipstream as ss
from slipstream.errors import ConfigError
from slipstream.patches.apply import Entry, make_patch
from slipstream.recipes.quickstart.model import make_model
from slipstream.recipes.swe import small
from slipstream.recipes.swe.demonstrations import demonstrations
from slipstream.recipes.swe.oracle import demonstration
from slipstream.render.load import open_renderer
from slipstream.tasks.factory.building import TINY_TOOLS
from slipstream.tasks.source import load_tasks

pytest.importorskip("tokenizers")
pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

BROKEN = """def largest(values):
    return max(values)


def total(values):
    return sum(values[1:])
"""
FIXED = BROKEN.replace("values[1:]", "values")
INSTRUCTION = """/work holds calc. A user reports:

When I run this

    import calc
    assert calc.total([1, 2]) == 3

it fails. `calc.total([1, 2])` should give `3`, but gives `2`.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A made task set of a few tasks."""
    before, after = ({"calc.py": Entry(data=text.encode())} for text in (BROKEN, FIXED))
    grading = {"kind": "tests", "command": ["python3"], "fail_to_pass": ["test_calc.py::test_total"]}
    line = {
        "instruction": INSTRUCTION,
        "tools": list(TINY_TOOLS),
        "sandbox": {"files": {"calc.py": BROKEN}},
        "patch_of": "/work",
        "grading": {**grading, "oracle": make_patch(before, after).decode()},
    }
    lines = [{**line, "id": f"{name}-1-{number:04d}-tiny"} for name in ("calc", "sums") for number in range(12)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return tmp_path


@cache
def model() -> Path:
    return make_model(Path(mkdtemp()) / "model", seed=0)


def test_a_demonstration_looks_where_its_search_has_found_the_function(folder: Path) -> None:
    task = ss.load_tasks(folder)[0]
    search, view, edit, run, finish = (line.calls[0] for line in demonstration(task, with_search=True))
    assert "(def|class) total" in str(search.arguments["command"])
    assert view.arguments == {"command": "sed -n 5,45p calc.py"}
    assert edit.arguments == {
        "path": "calc.py",
        "old": "    return sum(values[1:])",
        "new": "    return sum(values)",
    }
    assert "assert calc.total([1, 2]) == 3" in str(run.arguments["command"])
    assert finish.name == "finish"


def test_demonstrations_are_of_the_part_that_is_learnt_from_and_the_mask_is_on_what_the_oracle_says(
    folder: Path,
) -> None:
    held_out = {
        task.id
        for task in load_tasks(
            str(small().held_out.source), num=None, args={"path": str(folder), "part": "held_out", "held_out": ["sums"]}
        )
    }
    made = demonstrations(model(), seed=0, path=str(folder), tier="tiny", num=30, held_out=["sums"])
    assert {one.task_id for one in made} == {f"calc-1-{number:04d}-tiny" for number in range(12)}
    assert held_out == {f"sums-1-{number:04d}-tiny" for number in range(12)}
    decode = open_renderer(model()).decode
    runs = groupby(zip(made[0].ids, made[0].mask, strict=True), key=lambda pair: pair[1])
    said = [decode([token for token, _ in run]) for masked, run in runs if masked]
    assert len(said) == 5 and all("<tool_call>" in one for one in said)
    assert "calc.py:5:def total(values):" in decode(made[0].ids)
    assert "Traceback" not in decode(made[0].ids)


def test_demonstrations_without_tasks_or_room_say_so(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"set warm_start\.args\.path"):
        demonstrations(model(), seed=0)
    with pytest.raises(ConfigError, match="fits 100 tokens"):
        demonstrations(model(), seed=0, path=str(folder), num=1, max_tokens=100)

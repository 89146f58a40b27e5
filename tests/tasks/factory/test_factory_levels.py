"""Levels of a made task: what they tell of the place, and that they tell nothing of the fix."""

import json
from pathlib import Path

from slipstream.patches.apply import Entry, make_patch
from slipstream.tasks.factory.levels import Level, at_level, faulty_functions, level_of, made_id
from slipstream.tasks.jsonl import read_tasks
from slipstream.types import Task

FIXED = """LIMIT = 3


class Basket:
    def total(self, prices):
        rounded = [round(price) for price in prices]
        return sum(rounded)

    def count(self, prices):
        return len(prices)
"""
BROKEN = FIXED.replace("sum(rounded)", "sum(rounded[1:])")


def made(folder: Path, broken: str, fixed: str = FIXED) -> Task:
    before, after = ({"shop/basket.py": Entry(data=text.encode())} for text in (broken, fixed))
    grading = {"kind": "tests", "command": ["python3"], "fail_to_pass": ["test_a.py::test_b"]}
    line = {
        "id": "shop-1.0-0001-easy",
        "instruction": "A total is wrong.",
        "sandbox": {"files": {"shop/basket.py": broken}},
        "patch_of": "/work",
        "grading": {**grading, "oracle": make_patch(before, after).decode()},
    }
    (folder / "tasks.jsonl").write_text(json.dumps(line) + "\n")
    return read_tasks(folder / "tasks.jsonl")[0]


def told(task: Task, level: Level) -> str:
    derived = at_level(task, level)
    assert derived is not None
    assert derived.id == f"shop-1.0-0001-easy@{level}"
    assert level_of(derived.id) is level and made_id(derived.id) == task.id
    assert (derived.grading, derived.sandbox) == (task.grading, task.sandbox)
    said, _, opening = derived.brief.instruction.partition("\n\nBegin with a call like this:\n")
    assert f'"name": "{"replace" if level is Level.SHOWN else "bash"}"' in opening
    return said


def test_each_level_tells_less_than_the_one_before(tmp_path: Path) -> None:
    task = made(tmp_path, BROKEN)
    assert told(task, Level.SEARCH) == "A total is wrong."
    assert told(task, Level.NAMED) == ("A total is wrong.\n\nThe cause is in `Basket.total` in `shop/basket.py`.")
    assert told(task, Level.SHOWN) == (
        "A total is wrong.\n\nThe cause is in `Basket.total` in `shop/basket.py`, from line 5:\n\n```python\n"
        "    def total(self, prices):\n        rounded = [round(price) for price in prices]\n"
        "        return sum(rounded[1:])\n```"
    )
    assert level_of(task.id) is None


def test_what_is_shown_is_the_faulty_tree_and_never_the_fix(tmp_path: Path) -> None:
    deleted = FIXED.replace("        rounded = [round(price) for price in prices]\n", "")
    task = made(tmp_path, deleted)
    said = told(task, Level.SHOWN)
    assert "rounded = " not in said and "return sum(rounded)" in said and "def count" not in said


def test_a_place_outside_of_functions_or_in_a_long_one_has_fewer_levels(tmp_path: Path) -> None:
    outside = made(tmp_path, FIXED.replace("LIMIT = 3", "LIMIT = 4"))
    assert faulty_functions(outside) == []
    assert [level for level in Level if at_level(outside, level)] == [Level.SEARCH]
    filler = "".join(f"        x{number} = {number}\n" for number in range(80))
    long = FIXED.replace("        return len(prices)\n", filler + "        return len(prices)\n")
    task = made(tmp_path, long.replace("len(prices)", "len(prices) + 1"), long)
    assert [level for level in Level if at_level(task, level)] == [Level.NAMED, Level.SEARCH]


def test_two_places_are_both_told(tmp_path: Path) -> None:
    broken = BROKEN.replace("len(prices)", "len(prices) - 1")
    said = told(made(tmp_path, broken), Level.NAMED)
    assert said.endswith("The cause is in `Basket.total` in `shop/basket.py` and `Basket.count` in `shop/basket.py`.")

import ast

import pytest

from slipstream.tasks.rewrites import honest_rewrites

SOLVED = '''"""A module."""
import re


def plain(values, start=0):
    """Add them up."""
    total = start
    for value in values:
        total += value
    start = total
    return start if start else 0


class Pile:
    def __init__(self):
        self.items = []

    def grow(self, item):
        for _ in range(2):
            self.items.append(item)
        return len(self.items)


def counted(num):
    place = 0
    while place < num:
        yield place
        place += 1


def inner(number):
    def add(place):
        return place + number
    found = [add(number) for number in range(3)]
    return found


class Child(Pile):
    def grow(self, item):
        size = super().grow(item)
        return size + 1
'''
BROKEN = SOLVED.replace("total += value", "total -= value")


def results(text: str) -> list[object]:
    space: dict[str, object] = {}
    exec(compile(text, "module", "exec"), space)
    calls = (
        "plain([1, 2], start=3)",
        "plain([])",
        "(lambda pile: [pile.grow(1), pile.grow(2), pile.items])(Pile())",
        "list(counted(3))",
        "inner(5)",
        "Child().grow(1)",
    )
    return [eval(call, space) for call in calls]


@pytest.mark.parametrize(
    "broken",
    [
        BROKEN,
        SOLVED.replace("range(2)", "range(1)"),
        SOLVED.replace("place += 1", "place += 2"),
        SOLVED.replace("range(3)", "range(4)"),
        SOLVED.replace("size + 1", "size"),
        SOLVED.replace("total += value", "total -= value").replace("size + 1", "size"),
    ],
)
def test_rewrites_differ_in_their_text_and_not_in_what_they_do(broken: str) -> None:
    made = [files["a.py"] for files in honest_rewrites({"a.py": broken}, {"a.py": SOLVED}).values()]
    assert len({*made, SOLVED, broken}) == 5
    for text in made:
        assert results(text) == results(SOLVED) != results(broken)


def test_only_what_was_changed_is_rewritten() -> None:
    for files in honest_rewrites({"a.py": BROKEN}, {"a.py": SOLVED}).values():
        assert SOLVED.partition("class Pile")[2] in files["a.py"]


def test_a_plain_function_is_rewritten_in_three_ways() -> None:
    made = honest_rewrites({"a.py": BROKEN}, {"a.py": SOLVED})
    dumps = {ast.dump(ast.parse(files["a.py"])) for files in made.values()}
    assert len(dumps | {ast.dump(ast.parse(SOLVED))}) == 4


def test_a_change_outside_of_functions_is_rewritten_with_a_comment() -> None:
    made = honest_rewrites({"a.py": "limit = 1\n"}, {"a.py": "limit = 2\n"})
    assert len({files["a.py"] for files in made.values()}) == 3
    assert all(files["a.py"].startswith("limit = 2\n") for files in made.values())

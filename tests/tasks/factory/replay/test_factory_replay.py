"""Calls recorded from a package's tests, in real sandboxes, and the replays made from them."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tiny_package import fetch_tiny, write_source

from slipstream.graders.replay.grading import SessionSpec
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.tasks.factory.package.runner import open_workers
from slipstream.tasks.factory.package.sources import Requirement
from slipstream.tasks.factory.replay.fresh import varied, varied_session
from slipstream.tasks.factory.replay.make import Replay, open_replays
from slipstream.tasks.factory.replay.shorten import shortened

MODULE = """
import time


def pairs(items, key=lambda one: one):
    for one in items:
        yield key(one), one


def add_all(target, items):
    target.extend(items)


def now():
    return int(time.time())


def unlike():
    return list({"a", "b", "c", "d", "e", "f"})


class Stack:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __eq__(self, other):
        return self.items == other.items

    def __getitem__(self, place):
        return self.items[place]

    def push(self, one):
        self.items.append(one)
        return self

    @classmethod
    def of(cls, text):
        return cls(*text)
"""
TESTS = """import unittest

import pytest

from tinypack.more import Stack, add_all, now, pairs, unlike

BASE = Stack(1, 2)


def half(number):
    return number / two


two = 2


def helper(stack):
    return stack.push(5)


class Wrapped:
    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


@pytest.fixture
def full():
    return Stack(7, 8)


def test_generators():
    assert list(pairs([1, 2])) == [(1, 1), (2, 2)]
    assert [first for first, _ in pairs("ab", key=str.upper)] == ["A", "B"]
    assert dict(pairs((one for one in (2, 4)), key=half)) == {1.0: 2, 2.0: 4}
    factor = 3
    assert next(pairs([5], key=lambda one: one * factor)) == (15, 5)


def test_in_place():
    target = [1]
    add_all(target, [2])
    assert target == [1, 2]


def test_objects(full):
    stack = Stack.of("ab")
    assert helper(stack) is stack
    assert stack[-1] == 5 and len(stack) == 3 and stack.items == ["a", "b", 5]
    assert full == Stack(7, 8) and BASE[Wrapped(1)] == 2


class TestErrors(unittest.TestCase):
    def test_raises(self):
        self.assertRaises(IndexError, BASE.__getitem__, 9)
        with self.assertRaises(TypeError):
            Stack.of(3)


def test_unsteady():
    assert now() > 0
    assert sorted(unlike()) == ["a", "b", "c", "d", "e", "f"]
    assert len(unlike()) == 6
"""
NAMES = ("generators", "in_place", "objects", "unsteady")
BUG = {
    "tinypack/more.py": MODULE.replace("self.items[place]", "self.items[place - 1]").replace(
        "key(one), one", "key(one), 0"
    )
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mapping[str, SessionSpec], Replay | None]]:
    folder = tmp_path_factory.mktemp("recorded")
    source = write_source(folder / "tinypack-1.2")
    (source / "tinypack/more.py").write_text(MODULE)
    (source / "tests/test_more.py").write_text(TESTS)
    tests = [*(f"tests/test_more.py::test_{name}" for name in NAMES), "tests/test_more.py::TestErrors::test_raises"]

    async def main() -> tuple[Mapping[str, SessionSpec], Replay | None]:
        provider = LocalProvider()
        try:
            wanted = Requirement(name="tinypack", version="1.2", path=source)
            package = await fetch_tiny(wanted, folder / "trees", folder, provider=provider)
            async with (
                open_workers(provider, package.spec, num_at_once=1) as workers,
                open_replays(package, tests, workers, provider, timeout_s=60.0) as replays,
            ):
                sessions = {test.rpartition("test_")[2]: session for test, session in replays.sessions.items()}
                return sessions, await replays.make(BUG, tests, (), seed="1")
        finally:
            await provider.aclose()

    yield asyncio.run(main())


def results(session: SessionSpec) -> list[Any]:
    return [one.get("r", one.get("x")) for one in session.expect if one is not None]


def test_generators_are_recorded_as_what_the_test_took(made: tuple[Mapping[str, SessionSpec], Replay | None]) -> None:
    found = results(made[0]["generators"])
    assert ["l", [["t", [1, 1]], ["t", [2, 2]]]] in found
    assert ["t", ["A", "a"]] in found and ["t", ["B", "b"]] in found and "StopIteration" in found
    assert ["d", [[["f", "1.0"], 2], [["f", "2.0"], 4]]] in found, "a generator expression and a function of the test"
    assert ["t", [15, 5]] in found, "a lambda with a variable of the test"


def test_changed_arguments_are_recorded(made: tuple[Mapping[str, SessionSpec], Replay | None]) -> None:
    (answer,) = [one for one in made[0]["in_place"].expect if one is not None]
    assert answer == {"r": None, "m": {"0": ["l", [1, 2]]}}


def test_objects_are_followed_through_fixtures_helpers_and_modules(
    made: tuple[Mapping[str, SessionSpec], Replay | None],
) -> None:
    found = results(made[0]["objects"])
    assert [one for one in found if not isinstance(one, list) or one[0] != "o"] == [5, 3, ["l", ["a", "b", 5]], True, 2]


def test_exceptions_are_recorded_by_their_type(made: tuple[Mapping[str, SessionSpec], Replay | None]) -> None:
    assert results(made[0]["raises"])[-2:] == ["IndexError", "TypeError"]


def test_what_depends_on_clock_or_hashes_is_left_out(made: tuple[Mapping[str, SessionSpec], Replay | None]) -> None:
    assert set(made[0]) == {"generators", "in_place", "objects", "raises"}


def test_a_replay_tells_the_bug_and_has_fresh_arguments(made: tuple[Mapping[str, SessionSpec], Replay | None]) -> None:
    replay = made[1]
    assert replay is not None and replay.is_telling and replay.num_fresh_telling > 2
    assert replay.num_telling == 2, "generators and objects"
    known = {str(session.ops) for session in made[0].values()}
    assert not known & {str(session.ops) for session in replay.spec.fresh}
    assert {"tests", "conftest.py", ".deps/pytest", ".deps/_pytest"} <= set(replay.spec.hide)
    assert len(str(replay.as_json())) < 40_000


def op(function: str, *args: object) -> dict[str, Any]:
    return {"f": ["ref", function], "a": list(args), "k": {}}


def test_a_shortened_session_keeps_what_touches_the_same_objects() -> None:
    ops = [op("p:A"), op("p:B"), op("p:use", ["h", 0, []]), op("p:use", ["h", 1, []]), op("p:last", ["h", 1, [0]])]
    session = SessionSpec(ops=ops, expect=[{"r": number} for number in range(5)])
    short = shortened(session, {4})
    assert short.ops == [op("p:B"), op("p:use", ["h", 0, []]), op("p:last", ["h", 0, [0]])]
    assert short.expect == [None, None, {"r": 4}]


@pytest.mark.parametrize(
    "value",
    [3, True, "a", "", "12-b", ["f", "1.5"], ["b", "6162"], ["l", [1, 2]], ["t", ["x"]], ["d", [["a", 1]]], ["s", [1]]],
)  # fmt: skip
def test_fresh_arguments_are_other_values_of_the_same_kind(value: Any) -> None:
    found: list[Any] = [varied(value, random.Random(number)) for number in range(30)]
    assert any(one != value for one in found)
    for one in found:
        assert type(one) is type(value) and (not isinstance(value, list) or one[0] == value[0])


def test_fresh_arguments_keep_what_held_of_the_recorded_ones() -> None:
    for number in range(200):
        chance = random.Random(number)
        changed = varied_session([op("p:clamp", 5, 0, 10)], chance)
        assert changed is not None
        arguments: Any = changed[0]["a"]
        value, low, high = arguments
        assert 0 <= low <= value <= high, "signs and order"
        items: Any = varied(["l", [1, 3, 8]], chance)
        assert items[1] == sorted(set(items[1])), "sorted, without repeats"
        words: Any = varied(["t", ["b", "a", "b"]], chance)
        assert words[0] == "t" and all(isinstance(one, str) for one in words[1])
        part: Any = varied(["f", "-1.5"], chance)
        assert float(part[1]) < 0


def test_what_is_not_plain_is_left_as_it_is() -> None:
    chance = random.Random(1)
    ops = [op("p:f", ["ref", "operator:add"], ["h", 0, []], ["src", "lambda: 1", "", {}], None, ["l", []])]
    assert varied_session(ops, chance) is None
    changed = varied_session([op("p:f", 1)], chance)
    assert changed is not None and changed[0]["a"] != [1]

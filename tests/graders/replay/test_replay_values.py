"""Values in a replay: encoded, rebuilt in another process, and compared."""

import collections
import datetime
import decimal
import fractions
import json
import math
import operator
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.graders.replay.compare import same, same_answer
from slipstream.graders.replay.worker import CannotEncode, decode, encode, run_session

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=9)
)
KEYS = st.text(max_size=5) | st.integers() | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    SCALARS | st.complex_numbers(allow_nan=False) | st.sets(KEYS, max_size=4) | st.frozensets(KEYS, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
Point = collections.namedtuple("Point", ["x", "y"])


def through_json(value: object) -> Any:
    return json.loads(json.dumps(encode(value)))


@given(VALUES)
def test_plain_values_survive_the_way_to_another_process(value: object) -> None:
    again = decode(through_json(value), [])
    assert again == value and type(again) is type(value) and through_json(again) == through_json(value)
    assert same(through_json(value), through_json(again))


@pytest.mark.parametrize(
    "value",
    [
        math.inf, -0.0, 1 << 80, range(1, 9, 2), slice(None, 3), ..., NotImplemented, bytearray(b"ab"), [],
        datetime.timedelta(days=1, seconds=3), datetime.date(2020, 1, 2), decimal.Decimal("1.10"),
        datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), fractions.Fraction(1, 3), pathlib.PurePosixPath("a/b"),
        collections.OrderedDict(a=1), collections.Counter("aab"), Point(1, [2]),
        operator.add, len, str.upper, dict, json, ["h", 0, []], ["l", ["ref", "x"]],
    ],
    ids=repr,
)  # fmt: skip
def test_other_values_survive_too(value: object) -> None:
    again = decode(through_json(value), [])
    assert again == value and type(again) is type(value)


def test_nan_is_nan() -> None:
    assert math.isnan(decode(through_json(math.nan), []))
    assert same(through_json([math.nan]), through_json([math.nan])) and not same(encode(math.nan), encode(0.0))


def test_what_has_no_form_is_refused_and_an_answer_can_tell_its_type() -> None:
    class Thing:
        def __repr__(self) -> str:
            return "Thing(1)"

    nested: list[object] = []
    nested.append(nested)
    for value in (Thing(), iter(()), nested, "x" * 10_000, [0] * 1_000, 1 << 100_000):
        with pytest.raises(CannotEncode):
            encode(value)
    assert encode([Thing()], opaque=True)[1][0][0] == "o"
    assert encode(Thing(), opaque=True)[2] == "Thing(1)"
    assert encode(object(), opaque=True) == ["o", "object", None], "a repr with an address says nothing"
    assert encode(iter([1]), opaque=True) == encode(iter(()), opaque=True)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, 2), (1, "1"), (1.0, 1.1), ([1, 2], (1, 2)), ([1, 2], [2, 1]), ([1], [1, 1]), ({1: 2}, {1: 3}),
        ({1: 2}, {2: 2}), ({1: 2}, {1: 2, 3: 4}), ({1}, frozenset({1})), ("a", "b"), ("a", b"a"), (None, False),
        (None, 0), ([], None), ([[]], [()]), (Point(1, 2), (1, 2)), (range(3), range(4)), (math.nan, None),
        (1 << 80, (1 << 80) + 1), (decimal.Decimal(1), decimal.Decimal(2)),
    ],
)  # fmt: skip
def test_different_values_are_not_the_same(expected: object, got: object) -> None:
    assert not same(encode(expected), encode(got)) and not same(encode(got), encode(expected))


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, 1.0), (True, 1), (0.1 + 0.2, 0.3), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: "x"}, {1.0: "x"}),
        ({"a": 1}, collections.OrderedDict(a=1)), (2 + 0j, 2), ({3, 1, 2}, {1, 2, 3}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
    ],
)  # fmt: skip
def test_values_that_tests_take_for_equal_are_the_same(expected: object, got: object) -> None:
    if isinstance(got, collections.OrderedDict) or not isinstance(expected, collections.defaultdict):
        assert expected == got or isinstance(got, float)
    assert same(encode(expected), encode(got)) and same(encode(got), encode(expected))


@pytest.mark.parametrize(
    "junk",
    [None, 3, "x", [], {}, {"r": 7}, {"x": "ValueError"}, {"r": 6, "m": {"0": 1}}, {"m": 3, "r": 6}, {"r": [[]]}],
)
def test_an_answer_that_is_none_matches_nothing(junk: Any) -> None:
    assert same_answer({"r": 6}, {"r": 6}) and not same_answer({"r": 6}, junk)
    assert not same_answer({"x": "KeyError"}, junk)


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = ["l", [value]]
    return value


def test_deeply_nested_answers_end_the_comparison() -> None:
    assert not same(deep(5_000), deep(5_000)) and same(deep(10), deep(10))


def call(function: object, *args: object, **kwargs: object) -> dict[str, Any]:
    return {"f": function, "a": list(args), "k": kwargs}


def test_a_session_keeps_objects_for_later_calls() -> None:
    ops = [
        call(["ref", "collections:deque"], ["l", [1, 2]]),
        call(["attr", ["h", 0, []], "append"], 3),
        call(["ref", "builtins:list"], ["h", 0, []]),
        call(["ref", "builtins:sorted"], ["h", 2, []], key=["src", "lambda x: -x * n", "", {"n": 2}]),
        call(["ref", "_operator:getitem"], ["h", 3, []], 9),
        call(["attr", ["l", [1]], "nonsense"]),
    ]
    answers = run_session(json.loads(json.dumps(ops)), False)
    assert answers[1:] == [
        {"r": None},
        {"r": ["l", [1, 2, 3]]},
        {"r": ["l", [3, 2, 1]]},
        {"x": "IndexError"},
        {"x": "AttributeError"},
    ]


def test_arguments_that_a_call_changed_are_told() -> None:
    (answer,) = run_session([call(["ref", "_heapq:heappush"], ["l", [3, 4]], 1)], False)
    assert answer == {"r": None, "m": {"0": ["l", [1, 4, 3]]}}


def test_what_a_call_prints_counts_where_the_reference_prints() -> None:
    (answer,) = run_session([call(["ref", "builtins:print"], "a", 1)], False)
    assert answer == {"r": None, "p": "a 1\n"}
    assert same_answer(answer, dict(answer)) and not same_answer(answer, {"r": None, "p": "a 2\n"})
    assert not same_answer(answer, {"r": None}) and same_answer({"r": None}, answer)


def test_a_call_that_looks_at_the_clock_is_marked() -> None:
    ops = [call(["ref", "time:time"]), call(["ref", "builtins:abs"], -1)]
    assert [answer["c"] for answer in run_session(ops, True)] == [True, False]


def test_functions_and_classes_are_made_from_their_source() -> None:
    source = "class Pair:\n    def __init__(self, a):\n        self.a = helper(a)\n"
    pair = ["src", source, "Pair", {"helper": ["ref", "builtins:abs"]}]
    answers = run_session([call(pair, -3), call(["ref", "builtins:getattr"], ["h", 0, []], "a")], False)
    assert answers == [{"r": ["o", "Pair", None]}, {"r": 3}]

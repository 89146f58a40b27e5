"""Conversion of what graders return: numbers and dicts of numbers are accepted, anything else is a GraderError."""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from slipstream.errors import ContextOverflow, GraderError, SandboxBroken, SandboxError, SandboxFileError
from slipstream.graders.base import GradeContext, as_verdict, grade_work
from slipstream.sandbox.fake import FakeProvider
from slipstream.types import Artifact, Grading, Json, SandboxSpec, Verdict

GRADING = Grading(kind="mine.py:Mine", spec={})


class Returns:
    """A grader that returns, or raises, what it is made with."""

    needs_sandbox = False

    def __init__(self, result: object) -> None:
        self._result = result

    def check(self, spec: Mapping[str, Json]) -> None: ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class ReturnsAtOnce(Returns):
    def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Awaitable[Any]:  # type: ignore[override]
        return self._result  # type: ignore[return-value]


def graded(grader: Returns) -> Verdict:
    context = GradeContext(provider=FakeProvider(), sandbox=SandboxSpec())
    return asyncio.run(grade_work(grader, GRADING, Artifact(), context))


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        (1.0, 1.0),
        (1, 1.0),
        (0, 0.0),
        (-2.5, -2.5),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (Fraction(1, 4), 0.25),
    ],
)
def test_a_number_is_the_reward(returned: object, reward: float) -> None:
    for grader in (Returns(returned), ReturnsAtOnce(returned)):
        verdict = graded(grader)
        assert verdict == Verdict(reward=reward)
        assert type(verdict.reward) is float


def test_a_dict_names_components_whose_sum_is_the_reward() -> None:
    verdict = graded(Returns({"style": np.float32(0.25), "tests": 1, "short": True}))
    assert verdict == Verdict(reward=2.25, components={"style": 0.25, "tests": 1.0, "short": 1.0})
    assert {type(value) for value in verdict.components.values()} == {float}


def test_the_component_named_reward_is_the_reward() -> None:
    assert graded(Returns({"reward": 0.5, "tests": 3})) == Verdict(reward=0.5, components={"reward": 0.5, "tests": 3.0})


def test_a_verdict_made_of_numpy_is_made_plain() -> None:
    verdict = graded(Returns(Verdict(reward=np.float64(0.5), components={"a": np.float64(2)}, detail="half")))
    assert verdict == Verdict(reward=0.5, components={"a": 2.0}, detail="half")
    assert (type(verdict.reward), type(verdict.components["a"])) == (float, float)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned None"),
        ("1.0", "returned a str ('1.0')"),
        (object, "returned a type"),
        ([1.0], "returned a list ([1.0])"),
        (float("nan"), "returned nan, which is not finite"),
        (np.float32("inf"), "returned inf, which is not finite"),
        (10**400, "which is not finite"),
        (np.array([1.0, 0.0]), "returned a ndarray"),
        (Decimal("0.5"), "returned a Decimal"),
        ({}, "returned an empty dict"),
        ({"tests": None}, "returned, for 'tests', None"),
        ({"tests": float("nan")}, "returned, for 'tests', nan"),
        (Verdict(reward=1.0, components=[1]), "returned components of type list"),  # type: ignore[arg-type]
    ],
)
def test_anything_else_is_an_error_of_that_rollout_that_names_grader_and_value(returned: object, told: str) -> None:
    with pytest.raises(GraderError, match=re.escape(told)) as raised:
        graded(Returns(returned))
    assert str(raised.value).startswith("grader mine.py:Mine returned")
    assert str(raised.value).endswith(": return a finite number, a dict of numbers, or a Verdict")
    assert raised.value.origin is not None and raised.value.origin.place == "grader mine.py:Mine"


def test_what_a_grader_raises_names_the_line() -> None:
    said = r"^grader mine\.py:Mine: KeyError: 'x' \(.*test_grade_work\.py, line \d+, in grade\)$"
    with pytest.raises(GraderError, match=said):
        graded(Returns(KeyError("x")))
    with pytest.raises(SandboxError, match=r"^no room$"):
        graded(Returns(SandboxError("no room")))


@pytest.mark.parametrize("raised", [SandboxFileError("no such file"), SandboxBroken("gone"), ContextOverflow("full")])
def test_in_a_grader_nothing_is_the_agents_doing(raised: Exception) -> None:
    with pytest.raises(GraderError, match=f"^grader mine.py:Mine: {type(raised).__name__}: {raised}$"):
        graded(Returns(raised))


def test_a_huge_value_is_told_in_short() -> None:
    with pytest.raises(GraderError) as raised:
        as_verdict("x" * 100_000, "grader g")
    assert len(str(raised.value)) < 300

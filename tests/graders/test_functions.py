"""Rubrics of several graders."""

import pytest

import slipstream as ss
from slipstream.graders.base import needs_sandbox
from slipstream.graders.registry import find_grader
from slipstream.types import Grading


@pytest.mark.parametrize(
    ("grading", "expected"),
    [
        (ss.rubric(right=ss.exact("3"), close=ss.f1("three")), False),
        (ss.rubric(right=ss.exact("3"), tests=ss.command("true")), True),
        (ss.rubric(all=ss.rubric(tests=ss.command("true"))), True),
        (ss.rubric(all=ss.rubric(right=(2, ss.exact("3")))), False),
    ],
)
def test_a_rubric_needs_a_sandbox_only_if_a_part_does(grading: Grading, expected: bool) -> None:
    assert needs_sandbox(find_grader(grading.kind), grading.spec) is expected

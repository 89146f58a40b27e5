"""Resolves the name in a task's grading to a grader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from slipstream.errors import ConfigError
from slipstream.graders.base import Grader
from slipstream.graders.command import CommandGrader
from slipstream.graders.functions import FunctionGrader, Rubric
from slipstream.graders.judge.grader import JudgeGrader
from slipstream.graders.math import MathGrader
from slipstream.graders.programs.grader import ProgramsGrader
from slipstream.graders.tests import TestsGrader
from slipstream.graders.text import ExactMatch, TokenF1
from slipstream.names import did_you_mean, load_object, user_code

GRADERS: Mapping[str, Grader] = {
    "exact": ExactMatch(),
    "f1": TokenF1(),
    "command": CommandGrader(),
    "tests": TestsGrader(),
    "function": FunctionGrader(),
    "judge": JudgeGrader(),
    "math": MathGrader(),
    "programs": ProgramsGrader(),
    "rubric": Rubric(lambda kind: find_grader(kind)),
}


def find_grader(kind: str) -> Grader:
    """A built-in grader, or a user's at `package.module:attribute`."""
    if kind in GRADERS:
        return GRADERS[kind]
    if ":" not in kind:
        raise ConfigError(
            f'there is no grader "{kind}"{did_you_mean(kind, GRADERS)}: '
            f"use one of {', '.join(GRADERS)}, or package.module:attribute"
        )
    found = load_object(kind, "grader")
    if isinstance(found, type):
        with user_code(f'making the grader "{kind}"'):
            found = found()
    with user_code(f'looking at the grader "{kind}"'):
        is_grader = all(hasattr(found, name) for name in ("grade", "check", "needs_sandbox"))
    if not is_grader:
        raise ConfigError(f'grader "{kind}" is a {type(found).__name__} without grade, check and needs_sandbox')
    return cast("Grader", found)

"""From the name in a task's grading to a grader."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import ConfigError
from slipstream.graders.base import Grader
from slipstream.graders.command import CommandGrader
from slipstream.graders.tests import TestsGrader
from slipstream.graders.text import ExactMatch, TokenF1
from slipstream.names import did_you_mean, load_object

GRADERS: Mapping[str, Grader] = {
    "exact": ExactMatch(),
    "f1": TokenF1(),
    "command": CommandGrader(),
    "tests": TestsGrader(),
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
        try:
            found = found()
        except Exception as raised:  # a user's class may raise anything
            raise ConfigError(f'grader "{kind}" cannot be made: {type(raised).__name__}: {raised}') from raised
    if not (hasattr(found, "grade") and hasattr(found, "check") and hasattr(found, "needs_sandbox")):
        raise ConfigError(f'grader "{kind}" is a {type(found).__name__} without grade, check and needs_sandbox')
    return found

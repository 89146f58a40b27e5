"""Resolving the name in a task's grading to a grader."""

from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.graders.registry import GRADERS, find_grader

MODULE = """
class Mine:
    needs_sandbox = False
    def check(self, spec): pass
    async def grade(self, grading, artifact, context): pass

class Picky(Mine):
    def __init__(self): raise RuntimeError("no luck")

ready = Mine()
number = 3
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return str(path)


@pytest.mark.parametrize("kind", ["exact", "f1", "command"])
def test_the_built_in_ones_are_found(kind: str) -> None:
    assert find_grader(kind) is GRADERS[kind]


def test_a_class_or_an_object_of_the_users_is_found(module: str) -> None:
    assert type(find_grader(f"{module}:Mine")).__name__ == "Mine"
    assert find_grader(f"{module}:ready") is find_grader(f"{module}:ready")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "is a int without grade, check and needs_sandbox"),
        ("Picky", 'mine.py:Picky" failed: RuntimeError: no luck'),
        ("mine", 'did you mean "Mine"?'),
    ],
)
def test_what_is_no_grader_is_refused(module: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_grader(f"{module}:{name}")
    assert said in str(raised.value)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(
        ConfigError, match=r'no grader "comand" \(did you mean "command"\?\): use one of exact, f1, com'
    ):
        find_grader("comand")

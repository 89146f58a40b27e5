"""What a linter would find in a text."""

import pytest

from slipstream.tasks.factory.lint import findings, undefined_names
from slipstream.tasks.factory.snippet import with_imports
from slipstream.tasks.factory.statement import DIFFERS, chosen

CLEAN = '''"""A module."""
import os
from typing import *  # noqa

LIMIT = 3


class Counter:
    step = 1

    def add(self, number, *rest, **named):
        global total
        total = number + self.step
        _ = rest
        return [one for one in named if one], (lambda other: other + number), os.sep, __file__

    def close(self):
        def inner():
            return kept

        kept = total
        try:
            return inner()
        except ValueError as raised:
            print(raised)
        ...
'''


def test_clean_code_has_no_findings() -> None:
    text = CLEAN.replace("from typing import *  # noqa\n", "").replace("        _ = rest\n", "        print(rest)\n")
    assert not findings(text), findings(text)


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        ("return missing", "undefined name missing"),
        ("x = a", "x is set and never used"),
        ("a == 1", "a result that nothing uses"),
        ("a = a", "something is set to itself"),
        ("return a <= a", "something is compared with itself"),
        ("return a is 1", '"is" with'),
        ("return (", "it does not compile"),
    ],
)
def test_what_a_linter_finds_is_found(lines: str, finding: str) -> None:
    found = findings(f"def f(a):\n    {lines}\n")
    assert [one for one in found if one.startswith(finding)], found


def test_a_star_import_may_define_anything() -> None:
    assert "undefined name missing" not in findings("from os import *\n\n\ndef f():\n    return missing\n")


def test_lines_of_a_test_come_with_their_imports_or_not_at_all() -> None:
    text = "import json as j\nfrom pack.core import clamp, mean\nfrom tests.tools import made\n"
    assert undefined_names("assert clamp(j, x) == len([])") == ["clamp", "j", "x"]
    assert with_imports("assert clamp(x) == j.loads('1')", text, known={"x": "1"}) == (
        "from pack.core import clamp\nimport json as j\n\nassert clamp(x) == j.loads('1')"
    )
    assert with_imports("assert clamp(y)", text, known={}) is None
    assert with_imports("assert made()", text, known={}) is None
    assert with_imports("assert len([])", text, known={}) == "assert len([])"


def test_wordings_vary_by_bug_and_stay_the_same_for_one() -> None:
    assert {chosen(DIFFERS, str(number)) for number in range(60)} == set(DIFFERS)
    assert chosen(DIFFERS, "a") == chosen(DIFFERS, "a")

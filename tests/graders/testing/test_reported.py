"""Messages of the process that runs the tests: only values of the right types are accepted."""

import ast
import json
from typing import Any

import pytest

from slipstream.graders.testing.reported import _parse_report, _Plain, program
from slipstream.graders.testing.reporter import MAX_TEXT, add_message

KEY = "k"
REPORT = {
    "tests": [["t.py::test", "PASSED", ""]], "errors": ["e"], "strange": 0, "ended": True, "shadowed": [],
    "replaced": ["r"], "changed": ["c"], "missing": "", "seconds": 0.5,
}  # fmt: skip


def taken(**said: Any) -> dict[str, Any]:
    report: dict[str, Any] = {"tests": [], "errors": [], "strange": 0, "ended": False}
    add_message(json.dumps(said).encode(), KEY, report)
    return report


def test_what_the_session_says_is_taken() -> None:
    assert taken(key=KEY, test="t", status="PASSED", text="")["tests"] == [["t", "PASSED", ""]]
    assert taken(key=KEY, error="e")["errors"] == ["e"]
    assert taken(key=KEY, ended=0, replaced=["r"])["replaced"] == ["r"]


@pytest.mark.parametrize(
    "bad",
    [["x"], {"x": 1}, None, 1, True, "\ud800", "x" * (MAX_TEXT + 1)],
    ids=["list", "object", "null", "number", "true", "surrogate", "long"],
)
@pytest.mark.parametrize(
    "said",
    [
        {"test": "BAD", "status": "PASSED", "text": ""},
        {"test": "t", "status": "BAD", "text": ""},
        {"test": "t", "status": "PASSED", "text": "BAD"},
        {"error": "BAD"},
        {"missing": "BAD"},
        {"ended": 0, "replaced": ["BAD"]},
    ],
    ids=lambda said: " ".join(said),
)
def test_a_value_of_another_type_is_strange_and_nothing_else(said: dict[str, Any], bad: Any) -> None:
    forged = {name: bad if value == "BAD" else [bad] if value == ["BAD"] else value for name, value in said.items()}
    assert taken(key=KEY, **forged) == {"tests": [], "errors": [], "strange": 1, "ended": False}


def test_a_whole_report_is_read() -> None:
    told = _parse_report(json.dumps(REPORT).encode())
    assert told is not None
    assert told.tests == [("t.py::test", "PASSED", "")]


@pytest.mark.parametrize(
    "forged",
    [
        {"tests": [[["x"], "PASSED", ""]]}, {"tests": [["t", None, ""]]}, {"tests": [["t", "PASSED", {}]]},
        {"tests": "abc"}, {"errors": [["x"]]}, {"strange": "0"}, {"strange": False}, {"ended": 1}, {"seconds": "1"},
        {"shadowed": [1]}, {"replaced": [None]}, {"changed": [["x"]]}, {"missing": ["x"]}, {"missing": "\ud800"},
    ],
    ids=repr,
)  # fmt: skip
def test_a_report_with_a_value_of_another_type_is_none(forged: dict[str, Any]) -> None:
    assert _parse_report(json.dumps({**REPORT, **forged}).encode()) is None


@pytest.mark.parametrize("name", ["reporter.py", "session.py"])
def test_the_programs_run_on_the_oldest_python_of_the_public_images(name: str) -> None:
    text = program(name)
    ast.parse(text, feature_version=(3, 6))
    assert "__future__" not in text and "Any" not in text.replace("import Any", "")
    newer = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.JoinedStr)]
    assert not newer, "Python 3.12 and newer write them with quotes that older ones cannot read"


@pytest.mark.parametrize("text", ["f\"{a['k']!r:>{w}} {{{w:03d}}} {a}\"", "f'{w}%'", "f'{{}}'", "f'{w!s}{w + 1:.1f}'"])
def test_an_f_string_becomes_a_format_that_writes_the_same(text: str) -> None:
    found = ast.unparse(ast.fix_missing_locations(_Plain().visit(ast.parse(text, mode="eval"))))
    names = {"a": {"k": "v"}, "w": 7}
    assert ".format(" in found and eval(found, names) == eval(text, names)

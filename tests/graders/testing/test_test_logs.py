"""Logs of test runs, parsed as by the data sets: compared with what the `swebench` package made of the same logs,
and against the package itself where it is installed. The logs are of tiny repositories, run with each runner."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.graders.testing.logs import PARSERS, between_markers, ran_to_its_end, spelled
from slipstream.graders.testing.rules import Expected, Rules, SuiteResult, compare

LOGS = Path(__file__).with_name("logs")
RECORDED: dict[str, dict[str, dict[str, str]]] = json.loads((LOGS / "expected.json").read_text())
THEIR_NAMES = {
    "pytest": "parse_log_pytest",
    "pytest_short_options": "parse_log_pytest_options",
    "pytest_any_order": "parse_log_pytest_v2",
    "pytest_mouse_buttons": "parse_log_matplotlib",
    "seaborn": "parse_log_seaborn",
    "django": "parse_log_django",
    "sympy": "parse_log_sympy",
}


def log_of(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


@pytest.mark.parametrize("parser", THEIR_NAMES)
@pytest.mark.parametrize("name", RECORDED)
def test_a_log_is_read_as_swebench_reads_it(name: str, parser: str) -> None:
    assert PARSERS[parser](log_of(name)) == RECORDED[name][parser]


def harness() -> Any:
    return pytest.importorskip("swebench.harness.log_parsers", reason="needs the swebench package")


@pytest.mark.parametrize("parser", THEIR_NAMES)
def test_any_log_is_read_as_the_installed_swebench_reads_it(parser: str) -> None:
    theirs = harness().PARSER_REGISTRY[THEIR_NAMES[parser]]
    words = st.sampled_from(
        ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "ok", "OK", "FAIL:", "ERROR:", "[1]", "[100%]", " - ",
         " ... ", "test_a", "a.py::test_b[/x/y]", "t[//x]", "t[/a/*]", "skipped 'x'", "MouseButton.LEFT", "\x1b[32m",
         "[31m", "E", "F", "__ a.py:test_c __", "Internal Server Error: /x/", "..."]
    )  # fmt: skip
    lines = st.lists(st.lists(words, max_size=4).map(lambda parts: " ".join(parts)), max_size=6)

    @given(lines.map("\n".join))
    def check(log: str) -> None:
        found = PARSERS[parser](log)
        try:
            wanted = theirs(log, None)
        except IndexError:  # a line of one word, which ours passes over
            return
        assert found == wanted

    check()


def test_every_verdict_is_that_of_the_installed_swebench() -> None:
    grading = pytest.importorskip("swebench.harness.grading", reason="needs the swebench package")
    tests = ["t.py::a", "t.py::b", "t.py::c[x]", "t.py::c[y z]", "t.py::c["]
    statuses = st.dictionaries(
        st.sampled_from(tests), st.sampled_from(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"])
    )
    some = st.lists(st.sampled_from(tests), unique=True)

    @given(statuses, some, some)
    def check(found: dict[str, str], fail_to_pass: list[str], pass_to_pass: list[str]) -> None:
        report = grading.get_eval_tests_report(found, {"FAIL_TO_PASS": fail_to_pass, "PASS_TO_PASS": pass_to_pass})
        expected = Expected(fail_to_pass=tuple(fail_to_pass), pass_to_pass=tuple(pass_to_pass))
        ours = compare(Rules.SWEBENCH, expected, SuiteResult(statuses=found))
        assert ours.solved == (grading.get_resolution_status(report) == "RESOLVED_FULL")

    check()


# ---------------------------------------------------------------- the data sets that swebench does not read


def test_smith_reads_names_before_statuses() -> None:
    found = PARSERS["smith_pytest"](log_of("pytest_smith"))
    assert found["test_kinds.py::test_passes"] == "PASSED"
    assert found["test_kinds.py::test_fails"] == "FAILED"
    assert found["test_kinds.py::test_errs"] == "ERROR"
    assert found["test_kinds.py::test_skips"] == "SKIPPED"
    assert found["test_kinds.py::test_fails_as_marked"] == "XFAIL"
    assert "test_kinds.py::test_values[two" not in found  # a name with a space is not one word


def test_smith_reads_the_workers_of_xdist() -> None:
    found = PARSERS["smith_xdist"](log_of("pytest_xdist"))
    assert found["test_kinds.py::test_passes"] == "PASSED"
    assert found["test_kinds.py::test_fails"] == "FAILED"


def test_smith_reads_the_summary() -> None:
    found = PARSERS["smith_summary"](log_of("pytest_summary"))
    assert found["test_kinds.py::test_passes"] == "PASSED"
    assert found["test_kinds.py::test_fails"] == "FAILED"


def test_smith_reads_unittest() -> None:
    assert PARSERS["smith_tornado"](log_of("unittest")) == {
        "A line about it.": "PASSED",
        "test_three (test_kinds.TestOld.test_three)": "SKIPPED",
        "test_four (test_kinds.TestOld.test_four)": "FAILED",
        "test_two (test_kinds.TestOld.test_two)": "FAILED",
    }
    assert PARSERS["smith_unittest"](log_of("unittest"))["test_four (test_kinds.TestOld.test_four)"] == "ERROR"


def test_r2e_names_tests_without_their_file() -> None:
    log = log_of("pytest_summary")
    found = PARSERS["r2e"](log)
    assert found["test_passes"] == "PASSED"
    assert found["test_fails"] == "FAILED"
    assert found["TestOld.test_one"] == "PASSED"
    assert PARSERS["r2e"](log_of("pytest_colour"))["test_passes"] == "PASSED"
    assert PARSERS["r2e"]("no summary") == {}


@pytest.mark.parametrize(("name", "ended"), [("pytest_smith", True), ("unittest", True), ("pytest_colour", True)])
def test_it_is_seen_whether_a_runner_came_to_its_end(name: str, ended: bool) -> None:
    log = log_of(name)
    assert ran_to_its_end(log) is ended
    assert not ran_to_its_end("\n".join(log.split("\n")[:5]))


def test_results_stand_between_markers() -> None:
    assert between_markers("a\nSTART\nb\nEND\nc", "START", "END") == "\nb\n"
    assert between_markers("a\nSTART\nb", "START", "END") == "a\nSTART\nb"


# ---------------------------------------------------------------- rules


TWO = Expected(fail_to_pass=("a",), pass_to_pass=("b",))


@pytest.mark.parametrize(
    ("rules", "statuses", "solved"),
    [
        (Rules.STRICT, {"a": "PASSED", "b": "PASSED"}, True),
        (Rules.STRICT, {"a": "PASSED", "b": "SKIPPED"}, False),
        (Rules.STRICT, {"a": "XFAIL", "b": "PASSED"}, False),
        (Rules.STRICT, {"a": "PASSED"}, False),
        (Rules.SWEBENCH, {"a": "PASSED", "b": "SKIPPED"}, True),
        (Rules.SWEBENCH, {"a": "SKIPPED", "b": "PASSED"}, False),
        (Rules.SWEBENCH, {"a": "PASSED"}, False),
        (Rules.SWESMITH, {"a": "PASSED"}, True),
        (Rules.SWESMITH, {"b": "PASSED"}, False),
        (Rules.SWESMITH, {"a": "PASSED", "b": "FAILED"}, False),
    ],
)
def test_a_rule_says_what_solves_a_task(rules: Rules, statuses: dict[str, str], solved: bool) -> None:
    assert compare(rules, TWO, SuiteResult(statuses=statuses)).solved is solved


def test_a_log_without_an_end_counts_for_nothing_where_silence_would_be_success() -> None:
    assert not compare(
        Rules.SWESMITH, TWO, SuiteResult(statuses={"a": "PASSED", "b": "PASSED"}, to_its_end=False)
    ).solved


def test_a_command_that_fails_without_a_failing_test_is_not_believed() -> None:
    passed = {"a": "PASSED", "b": "PASSED"}
    assert not compare(Rules.SWEBENCH, TWO, SuiteResult(statuses=passed, exit_code=1)).solved
    assert compare(Rules.SWEBENCH, TWO, SuiteResult(statuses=passed | {"c": "FAILED"}, exit_code=1)).solved


@pytest.mark.parametrize(
    ("found", "solved"),
    [
        ({"a": "PASSED", "b": "FAILED"}, True),
        ({"a": "PASSED", "b": "PASSED"}, False),
        ({"a": "PASSED"}, False),
        ({"a": "PASSED", "b": "FAILED", "c": "PASSED"}, False),
        ({"a": "PASSED", "b - some words": "FAILED"}, True),
    ],
)
def test_r2e_wants_all_statuses_as_they_were(found: dict[str, str], solved: bool) -> None:
    expected = Expected(statuses={"a": "PASSED", "b - other words": "FAILED"})
    assert compare(Rules.R2EGYM, expected, SuiteResult(statuses=found)).solved is solved


@pytest.mark.parametrize(
    ("parser", "statuses", "expected"),
    [
        ("pytest", {"a.py::t[x y]": "PASSED", "a.py::t[x z]": "FAILED"}, {"a.py::t[x": "FAILED"}),
        ("pytest", {"a.py::t": "SKIPPED", "a.py::u": "XFAIL", "a.py::v": "XPASS"}, {"a.py::u": "XFAIL"}),
        ("pytest", {"a.py::t\nPASSED a.py::u": "FAILED"}, {}),
        ("pytest_any_order", {"a.py::t[x y]": "PASSED"}, {"a.py::t[x y]": "PASSED"}),
        ("pytest_short_options", {"a.py::t[/tmp/x/y]": "PASSED"}, {"a.py::t[/y]": "PASSED"}),
        ("r2e", {"r2e_tests/test_1.py::A::t": "PASSED"}, {"A.t": "PASSED"}),
        ("smith_pytest", {"a.py::t": "SKIPPED", "a.py::u[x y]": "PASSED"}, {"a.py::t": "SKIPPED"}),
    ],
)
def test_results_of_a_report_are_named_as_the_data_set_names_them(
    parser: str, statuses: dict[str, str], expected: dict[str, str]
) -> None:
    assert spelled(parser, statuses) == expected

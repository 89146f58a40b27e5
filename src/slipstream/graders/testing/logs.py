"""Parses the log of a test run into the status of each test.

Input: what the test command printed. Output: for each test PASSED, FAILED, ERROR, SKIPPED or XFAIL, with test names
spelled as in the parser's data set, oddities included: verdicts agree with the data set's only if names do.
`tests/graders/testing/test_test_logs.py` compares the parsers with the `swebench` package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)

Statuses = dict[str, str]
Parser = Callable[[str], Statuses]

_COUNT = re.compile(r"\[\d+\]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\r")
_CONTROL = dict.fromkeys(range(1, 32))


# ---------------------------------------------------------------- pytest -rA: the status, then the name


def _summary_words(line: str) -> list[str]:
    """The words of a line of pytest's summary, the status first; empty for any other line."""
    if not line.startswith(STATUSES):
        return []
    words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
    if len(words) < 2 or (words[0] == SKIPPED and _COUNT.fullmatch(words[1])):
        return []
    return words


def pytest_summary(log: str) -> Statuses:
    rows = (_summary_words(line) for line in log.split("\n"))
    return {words[1]: words[0] for words in rows if words}


def pytest_short_options(log: str) -> Statuses:
    """Like `pytest_summary`, but keeps only the last part of a parameter that is a path."""
    return {_with_short_option(name): status for name, status in pytest_summary(log).items()}


def _with_short_option(name: str) -> str:
    found = re.match(r"(.*?)\[(.*)\]", name)
    if found is None:
        return name
    test, option = found.groups()
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rpartition("/")[2]
    return f"{test}[{option}]"


def pytest_mouse_buttons(log: str) -> Statuses:
    """Like `pytest_summary`, with matplotlib's mouse buttons as their former numbers."""
    return pytest_summary(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def pytest_any_order(log: str) -> Statuses:
    """The status first or last; names may have spaces; colours are removed."""
    found: Statuses = {}
    for line in log.split("\n"):
        line = re.sub(r"\[\d+m", "", line).translate(_CONTROL)
        if line.startswith(STATUSES):
            words = (line.partition(" - ")[0] if line.startswith(FAILED) else line).split()
            if len(words) >= 2 and not (words[0] == SKIPPED and _COUNT.fullmatch(words[1])):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(STATUSES):
            words = line.split()
            if len(words) >= 2:
                found[" ".join(words[:-1])] = words[-1]
    return found


def pytest_pydantic(log: str) -> Statuses:
    """The status first or last; the progress in brackets after FAILED is removed."""
    found: Statuses = {}
    for line in log.split("\n"):
        line = re.sub(r"\[\d+m", "", line).translate(_CONTROL)
        line = re.sub(r"FAILED\s*\[.*?\]", FAILED, line)
        words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
        if len(words) < 2:
            continue
        if line.startswith(STATUSES):
            found[words[1]] = words[0]
        elif line.endswith(STATUSES):
            found[words[0]] = words[1]
    return found


def seaborn(log: str) -> Statuses:
    found: Statuses = {}
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(FAILED):
            found[words[1]] = FAILED
        elif f" {PASSED} " in line:
            if words[1] == PASSED:
                found[words[0]] = PASSED
        elif line.startswith(PASSED):
            found[words[1]] = PASSED
    return found


# ---------------------------------------------------------------- runners of their own


_DJANGO_SPLIT = (
    re.compile(r"^(.*?)\s\.\.\.\sTesting against Django installed in (?s:.*?) silenced\)\.\nok$", re.MULTILINE),
    re.compile(r"^(.*?)\s\.\.\.\sInternal Server Error: /.*/\nok$", re.MULTILINE),
    re.compile(r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$", re.MULTILINE),
)
"""Lines where something else was printed between a test's name and its `ok`."""
_DJANGO_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
_DJANGO_VERSION = "--version is equivalent to version"


def django(log: str) -> Statuses:
    """Django's runner, which is unittest's with `--verbosity 2`: `test_name (place) ... ok`."""
    found: Statuses = {}
    last_named: str | None = None
    for line in log.split("\n"):
        line = line.strip()
        if _DJANGO_VERSION in line:
            found[_DJANGO_VERSION] = PASSED
        if " ... " in line:
            last_named = line.split(" ... ")[0]
        ok = next((ending for ending in (" ... ok", " ... OK", " ...  OK") if line.endswith(ending)), None)
        if ok is not None:
            if line.startswith(_DJANGO_MIGRATION):
                line = line.split("...", 1)[1].strip()
            found[line.rpartition(ok)[0]] = PASSED
        if " ... skipped" in line:
            found[line.partition(" ... skipped")[0]] = SKIPPED
        for word, status in (("FAIL", FAILED), ("ERROR", ERROR)):
            if line.endswith(f" ... {word}"):
                found[line.partition(f" ... {word}")[0]] = status
            if line.startswith(f"{word}:") and " " in line:
                found[line.split()[1]] = status
        if line.startswith("ok") and last_named is not None:
            found[last_named] = PASSED
    for pattern in _DJANGO_SPLIT:
        found.update({match[1]: PASSED for match in pattern.finditer(log)})
    return found


def sympy(log: str) -> Statuses:
    """SymPy's `bin/test --verbose`: `test_name ok`, and failures again under headings."""
    found = {f"{place}.py:{test}": FAILED for _, place, test, _ in re.findall(r"(_*) (.*)\.py:(.*) (_*)", log)}
    endings = {" E": ERROR, " F": FAILED, " ok": PASSED}
    for line in map(str.strip, log.split("\n")):
        if line.startswith("test_"):
            found.update({line.split()[0]: status for ending, status in endings.items() if line.endswith(ending)})
    return found


def r2e(log: str) -> Statuses:
    """R2E-Gym: the summary of `pytest -rA`, with tests named `Class.test`, without their file."""
    _, heading, summary = _COLOUR.sub("", log).partition("short test summary info")
    found: Statuses = {}
    if not heading:
        return found
    for line in summary.partition("short test summary info")[0].strip().split("\n"):
        status = next((status for status in (PASSED, FAILED, ERROR) if status in line), None)
        if status is not None:
            name = ".".join(line.split("::")[1:])
            found[name if status == PASSED else name.split(" - ")[0]] = status
    return found


# ---------------------------------------------------------------- SWE-smith's


def _by_line(pattern: str) -> Parser:
    """A parser of one test per line by a pattern, in which `STATUS` is any status and `TEST` the test's name."""
    compiled = re.compile(
        pattern.replace("STATUS", f"(?P<status>{'|'.join(STATUSES)})").replace("TEST", r"(?P<test>\S+)")
    )

    def parse(log: str) -> Statuses:
        rows = (compiled.match(line) for line in log.split("\n"))
        return {row["test"]: row["status"] for row in rows if row is not None}

    return parse


def smith_mypy(log: str) -> Statuses:
    found: Statuses = {}
    for line in log.split("\n"):
        status = next((status for status in (PASSED, FAILED) if status in line), None)
        if status is not None:
            found[line.split()[-1]] = status
    return found


def smith_tornado(log: str) -> Statuses:
    found: Statuses = {}
    for line in log.split("\n"):
        if line.endswith("... ok"):
            found[line.split(" ... ")[0]] = PASSED
        elif " ... skipped " in line:
            found[line.split(" ... ")[0]] = SKIPPED
        elif line.startswith(("ERROR:", "FAIL:")):
            found[" ".join(line.split()[1:3])] = FAILED
    return found


def smith_unittest(log: str) -> Statuses:
    """`python test.py --verbose` of unittest."""
    pattern = re.compile(r"([a-zA-Z0-9_\-,.\s()']+)\s\.{3}\s(ok|FAIL|ERROR)$")
    words = {"ok": PASSED, "FAIL": FAILED, "ERROR": ERROR}
    rows = (pattern.match(line) for line in log.split("\n"))
    return {row[1]: words[row[2]] for row in rows if row is not None}


PARSERS: Mapping[str, Parser] = {
    "pytest": pytest_summary,
    "pytest_short_options": pytest_short_options,
    "pytest_mouse_buttons": pytest_mouse_buttons,
    "pytest_any_order": pytest_any_order,
    "pytest_pydantic": pytest_pydantic,
    "seaborn": seaborn,
    "django": django,
    "sympy": sympy,
    "r2e": r2e,
    "smith_pytest": _by_line(r"TEST\s+STATUS"),
    "smith_summary": _by_line(r"STATUS\sTEST"),
    "smith_xdist": _by_line(r"\[gw\d\]\sSTATUS\sTEST"),
    "smith_mypy": smith_mypy,
    "smith_tornado": smith_tornado,
    "smith_unittest": smith_unittest,
}

_SUMMARY_LINE = "{status} {test}"
_LINES: Mapping[str, str] = {
    "r2e": "short test summary info\n{status} {test}",
    "smith_pytest": "{test} {status}",
    "smith_xdist": "[gw0] {status} {test}",
}
"""How pytest prints a result for a parser; for all others as in its summary."""


def spelled(parser: str, statuses: Mapping[str, str]) -> Statuses:
    """The statuses of pytest ids, with tests named as a log parser names them: cut at a space, without their file.
    Results that the parser would not see are left out; of several tests with one name, the worst counts."""
    line = _LINES.get(parser, _SUMMARY_LINE)
    found: Statuses = {}
    for test, status in statuses.items():
        if "\n" in test or "\r" in test or (status == SKIPPED and line is _SUMMARY_LINE):
            continue  # the summary names the places of skipped tests, not their ids
        for name, read in PARSERS[parser](line.format(status=status, test=test)).items():
            if found.get(name) not in (FAILED, ERROR):
                found[name] = read
    return found


_ENDED = re.compile(
    r"^=+ .*\b\d+ (?:passed|failed|errors?|skipped|xfailed|deselected)\b.* in [\d.]+s.*=+$|^Ran \d+ tests? in [\d.]+s$",
    re.MULTILINE,
)


def ran_to_its_end(log: str) -> bool:
    """Whether pytest or unittest printed its final line."""
    return _ENDED.search(_COLOUR.sub("", log)) is not None


def between_markers(log: str, start: str, end: str) -> str:
    """What was printed between two markers; everything if they are missing."""
    _, found, rest = log.partition(start)
    if not found or end not in rest:
        return log
    return rest.partition(end)[0]

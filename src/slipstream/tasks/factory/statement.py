"""What the agent is told of a bug: the symptom, as a user would report it, and never the place.

Input: a Bug and what its failing tests told. Output: a Statement; None where the failures say too little.
Invariants: neither the file nor the faulty lines nor a hidden test's name is in it; a program that is shown fails
with the bug and runs through without it, which was tried in a sandbox.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import hashlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.runner import Answer, Workers
from slipstream.tasks.factory.plant import Bug
from slipstream.tasks.factory.snippet import lines_of, snippet_of, with_imports

MAX_TRIES = 4
"""Failing tests of a bug that are tried as a program."""
SNIPPET_TIMEOUT_S = 30.0
MAX_VALUE = 300
DIFFERS = (
    "`{name}` should give `{wanted}`, but gives `{came}`.",
    "I expected `{wanted}` from `{name}` and got `{came}`.",
    "`{name}` gives `{came}` where `{wanted}` is right.",
    "The result of `{name}` is `{came}`; it should be `{wanted}`.",
)
RAISES_NOTHING = (
    "It should raise {kind}, but nothing is raised.",
    "There should be an exception, {kind}, and there is none.",
    "I expected {kind} to be raised, but it goes through.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    symptom: str
    snippet: str = ""
    """A program that fails; empty where none could be made."""
    test: str = ""
    """The failing test that it was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    bug: int
    test: str
    text: str


async def state(package: Package, bugs: Sequence[Bug], workers: Workers) -> list[Statement | None]:
    """A statement for each bug."""
    drafts = [draft for number, bug in enumerate(bugs) for draft in _drafts(package, number, bug)]
    clean, broken = [], []
    for number, draft in enumerate(drafts):
        job = {"id": number, "text": draft.text, "timeout_s": SNIPPET_TIMEOUT_S, "cpu_s": 3}
        clean.append(job)
        broken.append({**job, "number": number, "files": bugs[draft.bug].mutant.files(package)})
    limit_s = 20 * SNIPPET_TIMEOUT_S
    fine = [one async for one in workers.run_all("snippets", clean, at_a_time=20, timeout_s=limit_s)]
    bad = [one async for one in workers.run_all("snippets", broken, at_a_time=20, timeout_s=limit_s)]
    chosen: dict[int, Statement] = {}
    for draft, one, other in zip(drafts, fine, bad, strict=True):
        if draft.bug in chosen or one.get("exception", "") is not None or not other.get("exception"):
            continue
        failure = bugs[draft.bug].failures[draft.test]
        symptom = _symptom(failure, other)
        told = symptom + draft.text
        if symptom and _name_of(draft.test) not in told and not _tells_place(told, package, bugs[draft.bug]):
            chosen[draft.bug] = Statement(symptom=symptom, snippet=draft.text, test=draft.test)
    return [chosen.get(number) or _without_snippet(package, bug) for number, bug in enumerate(bugs)]


def _drafts(package: Package, number: int, bug: Bug) -> list[_Draft]:
    """Programs to try, the shortest first, each with public imports before those of the test."""
    found: list[tuple[int, str, int, str]] = []
    top = package.layout.modules[0]
    for test, failure in islice(bug.failures.items(), 20):
        path = test.partition("::")[0]
        if "line" not in failure or failure.get("function") != _name_of(test):
            continue
        texts = [
            snippet_of(
                package.text(path),
                path,
                function=failure["function"],
                line=failure["line"],
                params=failure["params"],
                root=package.layout.root,
                public=public,
            )
            for public in (top, "")
        ]
        for rank, text in enumerate(dict.fromkeys(texts)):
            if text:
                found.append((len(texts[-1] or text), test, rank, text))
    found.sort()
    return [_Draft(bug=number, test=test, text=text) for _, test, _, text in found[: 2 * MAX_TRIES]]


def chosen(options: Sequence[str], about: str) -> str:
    """One of several wordings, always the same one for the same bug."""
    digest = hashlib.blake2b(about.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return options[int.from_bytes(digest, "big") % len(options)]


def _name_of(test: str) -> str:
    return test.rpartition("::")[2].partition("[")[0]


# ---------------------------------------------------------------- words


def _symptom(failure: Answer, ran: Answer) -> str:
    """What came, and what was expected."""
    kind, message = str(ran.get("exception") or failure["exception"]), str(failure["message"])
    values = failure.get("values")
    if message.startswith("DID NOT RAISE") or ran.get("message", "").startswith("DID NOT RAISE"):
        wanted = re.search(r"'(?:\w+\.)*(\w+)'", message)
        kind = wanted[1] if wanted else "an error"
        return chosen(RAISES_NOTHING, message).format(kind=kind)
    if kind != "AssertionError":
        said = str(ran.get("message") or "").split("\n")[0][:MAX_VALUE]
        return f"It should run without an error, but raises `{kind}{': ' + said if said else ''}`."
    if isinstance(values, Mapping):
        return _compared(values)
    return "The check at the end should hold, but fails."


def _compared(values: Mapping[str, str]) -> str:
    if values["operator"] == "true":
        return f"`{_cut(values['left'])}` should be true, but is `{_cut(values['left_value'])}`."
    got, expected = ("left", "right")
    if values["operator"] == "==" and not _calls(values["left"]) and _calls(values["right"]):
        got, expected = expected, got
    name, came, wanted = values[got], values[f"{got}_value"], values[f"{expected}_value"]
    if values["operator"] == "==" and came != wanted:
        words = {"name": _cut(name), "wanted": _cut(wanted), "came": _cut(came)}
        return chosen(DIFFERS, name + wanted).format(**words)
    left, right = _cut(values["left_value"]), _cut(values["right_value"])
    return (
        f"`{_cut(values['left'])} {values['operator']} {_cut(values['right'])}` should hold, "
        f"but the left side is `{left}` and the right side is `{right}`."
    )


def _calls(text: str) -> bool:
    try:
        return any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):
        return False


def _cut(text: str) -> str:
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def _without_snippet(package: Package, bug: Bug) -> Statement | None:
    """The failing call and its values alone."""
    for test, failure in bug.failures.items():
        if "line" not in failure:
            continue
        values, exception = failure.get("values"), str(failure["exception"])
        text = package.text(test.partition("::")[0])
        lines = lines_of(text, function=str(failure.get("function")), line=failure["line"])
        lines = lines and with_imports(lines, text, known=failure["params"])
        if not lines:
            continue
        if exception != "AssertionError" and not failure["raised_in_test"]:
            said = str(failure["message"]).split("\n")[0][:MAX_VALUE]
            symptom = (
                f"The last step should run without an error, but raises `{exception}{': ' + said if said else ''}`."
            )
        elif isinstance(values, Mapping) and "self" not in values["left"]:
            symptom = _compared(values)
        else:
            continue
        made = f"{symptom} These lines show it:\n\n{textwrap.indent(lines, '    ')}"
        if failure["params"]:
            made += "\n\nwith " + ", ".join(f"`{name} = {_cut(value)}`" for name, value in failure["params"].items())
        if not _tells_place(made, package, bug) and _name_of(test) not in made:
            return Statement(symptom=made, test=test)
    return None


def _tells_place(text: str, package: Package, bug: Bug) -> bool:
    """Whether it names the file of a faulty function, where the tree lies, or the day on which it was made."""
    paths = {function.path for function in bug.mutant.functions}
    today = datetime.datetime.now(tz=datetime.UTC).date()
    days = [text for day in _around(today) for text in (f"{day:%Y-%m-%d}", f"{day.year}, {day.month}, {day.day}")]
    return "/work/" in text or any(part in text for part in (*paths, *days))


def _around(day: datetime.date) -> list[datetime.date]:
    return [day + datetime.timedelta(days=number) for number in (-1, 0, 1)]


_CALLED = re.compile(r"`(\w+)\(|\b(\w+)\(")


def names_in(instruction: str) -> list[str]:
    """What is called in a statement, in the order of first use, without what every Python has."""
    said = (first or second for first, second in _CALLED.findall(instruction))
    return [name for name in dict.fromkeys(said) if not hasattr(builtins, name) and not name.startswith("assert")]

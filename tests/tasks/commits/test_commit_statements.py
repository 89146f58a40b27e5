"""What the agent is told of a commit."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.patches.apply import Entry
from slipstream.tasks.commits.checkout import Checkout
from slipstream.tasks.commits.repository import Change, Commit
from slipstream.tasks.commits.selection import Candidate, candidate_of
from slipstream.tasks.commits.statement import instruction_of, issue_of, may_state, read_statement
from slipstream.tasks.commits.trial import is_unstable
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.layout import Layout
from slipstream.tasks.factory.package.sources import Skipped

OLD = "def cut(text):\n    return text[:10]\n"
NEW = """def cut(text, max_length=10):
    if max_length < 0:
        raise ValueError("the length must not be negative")
    return text[:max_length]
"""
TEST = "from pack import cut\n\n\ndef test_cut_to_a_length():\n    assert cut('abc', max_length=1) == 'a'\n"
FAILING = ("tests/test_cut.py::test_cut_to_a_length",)


def commit_of(message: str, paths: tuple[str, ...] = ("pack.py", "tests/test_cut.py")) -> Commit:
    changes = tuple(Change(path=path, old=None, new=None) for path in paths)
    return Commit(id="0123456789abcdef", parent="f" * 16, when="2025-01-01T00:00:00Z", message=message, changes=changes)


def checkout_of(folder: Path, message: str, test: str = TEST) -> Checkout:
    (folder / "tests").mkdir(parents=True)
    (folder / "pack.py").write_text(NEW)
    (folder / "tests/test_cut.py").write_text(test)
    layout = Layout(
        name="pack", version="1", root=".", modules=("pack",), sources=("pack.py",), tests=("tests/test_cut.py",),
        requires=(), test_requires=(),
    )  # fmt: skip
    return Checkout(
        candidate=Candidate(commit=commit_of(message), tests=(), sources=()),
        reference=Package(layout=layout, tree=folder),
        missing=(),
        tests={"tests/test_cut.py": Entry(data=test.encode())},
        old_tests={"tests/test_cut.py": None},
        fix={"pack.py": Entry(data=NEW.encode())},
        old_source={"pack.py": Entry(data=OLD.encode())},
    )


def test_a_message_is_told_without_what_shows_the_fix(tmp_path: Path) -> None:
    message = """Texts can be cut to another length (#31)

Ten was too short for some.
Fixes #30, see https://example.org/30

The change is in pack.py.

Instead of text[:10] it is now: return text[:max_length]

* Texts can be cut to another length.

- add tests
  of all kinds
- negative lengths are refused,
  since they mean something else

test_cut_to_a_length shows it.

Signed-off-by: Somebody <somebody@example.org>
"""
    statement = read_statement(checkout_of(tmp_path / "tree", message), FAILING, {})
    assert statement.text == (
        "Texts can be cut to another length\n\nTen was too short for some.\n\n- negative lengths are refused,\n"
        "  since they mean something else"
    )
    told = instruction_of(statement, name="pack", version="1", workdir="/work")
    assert "Names that its callers use: `max_length`." in told and "This change is wanted:" in told


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("Let cut in pack.py have another length", "its subject tells a file"),
        ("Make test_cut_to_a_length pass for everybody", "its subject tells the name of a hidden test"),
        ("Write return text[:max_length] for every length", "its subject tells a line of the fix"),
        ("Cut texts", "the message says too little"),
    ],
)
def test_a_message_that_shows_the_fix_gives_no_task(message: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=why):
        read_statement(checkout_of(tmp_path / "tree", message), FAILING, {})


def test_the_text_of_an_issue_may_name_files_and_never_the_fix(tmp_path: Path) -> None:
    issue = """cut of pack.py always gives ten characters, which is too few for me.

```diff
+    return text[:max_length]
```

I would write `return text[:max_length]` there."""
    statement = read_statement(checkout_of(tmp_path / "tree", "Fix #7"), FAILING, {"7": issue})
    assert statement.text == "cut of pack.py always gives ten characters, which is too few for me."
    assert statement.source == "issue"


def test_an_issue_is_found_by_the_commit_or_by_a_number_in_its_message() -> None:
    commit = commit_of("Something (#4)\n\nhttps://example.org/x/y/issues/9")
    assert issue_of(commit, {"0123456": "by commit", "4": "by number"}) == "by commit"
    assert issue_of(commit, {"9": "by address"}) == "by address"
    assert issue_of(commit, {"0": "short", "94": "another"}) == ""


def test_the_words_of_a_message_that_a_test_looks_for_are_told(tmp_path: Path) -> None:
    test = TEST + "\n    with raises(match='must not be negative'):\n        cut('a', max_length=-1)\n"
    statement = read_statement(checkout_of(tmp_path / "tree", "Texts can be cut to another length", test), FAILING, {})
    assert statement.messages == ("must not be negative",)
    many = TEST + "".join(f"\n    assert 'the length must not be negative, {number}'" for number in range(6))
    wordy = NEW + "".join(f"\nx = 'the length must not be negative, {number}'" for number in range(6))
    checkout = checkout_of(tmp_path / "other", "Texts can be cut to another length", many)
    with pytest.raises(Skipped, match="exact words of"):
        read_statement(replace(checkout, fix={"pack.py": Entry(data=wordy.encode())}), FAILING, {})


@pytest.mark.parametrize("message", ["Bump pytest from 7 to 8 in the tests", "Add tests for the cut of texts", "Oops"])
def test_chores_are_not_tried(message: str) -> None:
    assert not may_state(commit_of(message), {})


@pytest.mark.parametrize(
    ("paths", "is_candidate"),
    [
        (("src/pack/core.py", "tests/test_core.py"), True),
        (("pack/core.py", "pack/tests/test_core.py"), True),
        (("pack/core.py",), False),
        (("pack/core.py", "tests/conftest.py"), False),
        (("docs/conf.py", "tests/test_core.py"), False),
        (("setup.py", "tests/test_core.py"), False),
    ],
)
def test_a_candidate_changes_source_and_tests(paths: tuple[str, ...], is_candidate: bool) -> None:
    commit = commit_of("Some change", paths)
    changes = tuple(replace(change, new=object()) for change in commit.changes)  # type: ignore[arg-type]
    assert (candidate_of(replace(commit, changes=changes)) is not None) is is_candidate


@pytest.mark.parametrize(
    ("id", "differs"),
    [
        ("t.py::test_a[<object at 0x7f3a5c2b10>]", True),
        ("t.py::test_a[2026-11-19]", True),
        ("t.py::test_a[1763577600]", True),
        ("t.py::test_a[/tmp/x]", True),
        ("t.py::test_a[12:30:01]", True),
        ("t.py::test_a[20-x/y]", False),
        ("tests/tmp/test_work.py::test_a[0xff]", False),
    ],
)
def test_ids_that_hold_a_time_or_a_place_are_unstable(id: str, differs: bool) -> None:
    assert is_unstable(id) is differs

"""What the agent is told of a commit: its message, or the text of an issue, without what would tell the fix. Pure.

Input: a commit, texts of issues, and what must not be told. Output: the text, or the reason why there is none.
Invariants: no line of the fix and no name of a hidden test is in it, and in the text of a message no file of the fix
either (an issue may name files, as its author saw them). What the hidden tests need and nobody could guess, new names
and the words of new messages, is told; a commit whose tests need many such words gives no task.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipstream.tasks.commits.checkout import Checkout
from slipstream.tasks.commits.repository import Commit
from slipstream.tasks.factory.package.sources import Skipped

MIN_WORDS = 5
MAX_CHARS = 6_000
MIN_LINE = 12
"""Shorter lines of a patch are seldom distinctive."""
MAX_MESSAGES, MAX_MESSAGE = 4, 120
MIN_MESSAGE = 12
"""Shorter texts that a fix adds are seldom the message that a test looks for."""
_CHORE = re.compile(
    r"^\W*(?:bump|merge|release|version|typos?\b|lint|format|reformat|pre-?commit|revert|ruff|black|isort|mypy|wip\b|"
    r"(?:add|update|improve|extend|fix|remove|more|new|clean up|refactor|rework|simplify)?\s*(?:the\s+)?"
    r"(?:unit |regression )?(?:tests?|coverage|changelog|changes|docs?|documentation|docstrings?|news|type hints|"
    r"typing)\b)",
    re.IGNORECASE,
)
_TRAILER = re.compile(r"^(?:[A-Z][A-Za-z]+(?:-[A-Za-z]+)+: |\(cherry picked|Co-authored|Signed-off)", re.IGNORECASE)
_REFERENCE = re.compile(
    r"\s*\(?(?:\b(?:fix(?:es|ed)?|clos(?:es|ed?)|resolv(?:es|ed?)|refs?|see|issue|pr|pull request)\b[:\s]*)?"
    r"(?:[\w.-]+/[\w.-]+)?(?:#|gh-)\d+\)?",
    re.IGNORECASE,
)
_ISSUE = re.compile(r"(?:#|\bgh-|/issues/|/pull/)(\d+)\b", re.IGNORECASE)
_URL = re.compile(r"<?https?://\S+>?")
_DANGLING = re.compile(r"(?:[\s,:(\[-]|\b(?:see|and|also|cf\.?|in|at|per)\b)+$", re.IGNORECASE)
"""What is left at the end of a line of which a reference was taken."""
_FILE = re.compile(r"[\w./-]+\.(?:pyi?|pyx|rst|md|toml|cfg|ini|txt|ya?ml)\b")
_TEST = re.compile(r"\btest_\w+|\bTest[A-Z]\w+|\w+\.py::")
_DIFF = re.compile(r"^(?:diff --git|@@ -|\+\+\+ |--- [ab]/|```diff)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStatement:
    text: str
    source: str
    """"issue" or "message"."""
    names: tuple[str, ...] = ()
    """New names that the tests use and the text does not have."""
    messages: tuple[str, ...] = ()
    """Parts of new messages that the tests look for and the text does not have."""


def read_statement(checkout: Checkout, failing: Sequence[str], issues: Mapping[str, str]) -> CommitStatement:
    """Raises Skipped if too little would be left, or if the tests need what the text does not say."""
    commit = checkout.candidate.commit
    issue = issue_of(commit, issues)
    leaks = _Leaks(checkout, failing, is_issue=bool(issue))
    if issue:
        text = "\n\n".join(piece for piece in _pieces(issue) if not leaks.found_in(piece))[:MAX_CHARS]
    else:
        text = _message_text(commit, leaks)
    if len(_WORD.findall(text)) < MIN_WORDS:
        raise Skipped(f"the {'issue' if issue else 'message'} says too little without what tells the fix")
    needs = _Needs.of(checkout, failing)
    messages = tuple(message for message in needs.messages if message not in text)
    if len(messages) > MAX_MESSAGES or any(len(message) > MAX_MESSAGE or "\n" in message for message in messages):
        raise Skipped(f"its tests need the exact words of {len(messages)} messages, such as {messages[0][:80]!r}")
    said = set(_IDENTIFIER.findall(text))
    names = tuple(name for name in needs.names if name not in said)
    return CommitStatement(text=text, source="issue" if issue else "message", names=names, messages=messages)


def issue_of(commit: Commit, issues: Mapping[str, str]) -> str:
    """The text given for a commit: by its id, or the start of it, or by the number of an issue in its message."""
    for key, text in issues.items():
        if len(key) >= 7 and commit.id.startswith(key.lower()):
            return text
    numbers = dict.fromkeys(_ISSUE.findall(commit.message))
    return next((issues[number] for number in numbers if number in issues), "")


def may_state(commit: Commit, issues: Mapping[str, str]) -> bool:
    """Whether a text is given for the commit, or its message tells of more than a chore."""
    message = commit.message.strip()
    title = _without_references(message.partition("\n")[0])
    return bool(issue_of(commit, issues)) or (not _CHORE.match(title) and len(_WORD.findall(message)) >= MIN_WORDS)


def instruction_of(statement: CommitStatement, *, name: str, version: str, workdir: str) -> str:
    release = "" if version == "0" else f" {version}"
    opening = "A user reports:" if statement.source == "issue" else "This change is wanted:"
    parts = [f"{workdir} holds the source of the Python package {name}{release}. {opening}", statement.text]
    if statement.names:
        parts.append(f"Names that its callers use: {', '.join(f'`{one}`' for one in statement.names)}.")
    if statement.messages:
        parts.append(f"Words of its messages: {', '.join(f'`{one}`' for one in statement.messages)}.")
    parts.append(
        "Make the change in the package's source. Tests that you cannot see will be run on it. Leave tests and "
        "configuration as they are: changes to them do not count."
    )
    return "\n\n".join(parts)


def _message_text(commit: Commit, leaks: _Leaks) -> str:
    subject, _, body = commit.message.strip().partition("\n")
    title = _without_references(subject)
    if why := leaks.found_in(title):
        raise Skipped(f"its subject tells {why}")
    kept = [title]
    for piece in _pieces(body):
        lines = [line for line in piece.split("\n") if not _TRAILER.match(line)]
        text = "\n".join(line for line in map(_without_references, lines) if line.strip())
        is_chore = _CHORE.match(text.lstrip(" *-")) is not None
        is_new = _WORD.search(text) is not None and text.strip(" *-.") != title.strip(" .")
        if is_new and not is_chore and not leaks.found_in(text):
            kept.append(text)
    return "\n\n".join(kept)[:MAX_CHARS]


def _pieces(text: str) -> list[str]:
    """Paragraphs, and items of lists as one each; a block of code stays whole."""
    found: list[str] = []
    for number, block in enumerate(re.split(r"(```.*?```)", text.replace("\r\n", "\n"), flags=re.DOTALL)):
        if number % 2:
            found.append(block)
        else:
            found += [piece.rstrip() for piece in re.split(r"\n\s*\n|\n(?=[*-] )", block) if piece.strip()]
    return [piece.strip("\n") for piece in found]


def _without_references(line: str) -> str:
    left = _REFERENCE.sub("", _URL.sub("", line))
    return line.rstrip() if left == line else _DANGLING.sub("", left)


class _Leaks:
    """What a text must not contain."""

    def __init__(self, checkout: Checkout, failing: Sequence[str], *, is_issue: bool) -> None:
        self._is_issue = is_issue
        added, removed = _changed_lines(checkout)
        self._lines = added if is_issue else added | removed
        self._tests = {part.partition("[")[0] for test in failing for part in test.split("::")[1:]}
        self._paths = {part for path in (*checkout.fix, *checkout.tests) for part in (path, path.rpartition("/")[2])}

    def found_in(self, text: str) -> str:
        """What of the fix the text tells; empty if nothing."""
        if any(re.search(rf"(?<!\w){re.escape(test)}(?!\w)", text) for test in self._tests):
            return "the name of a hidden test"
        if _DIFF.search(text):
            return "a part of a patch"
        squeezed = " ".join(text.split())
        if any(line in squeezed for line in self._lines):
            return "a line of the fix"
        if self._is_issue:
            return ""
        if _FILE.search(text) or any(path in text for path in self._paths):
            return "a file"
        return "a test" if _TEST.search(text) else ""


def _changed_lines(checkout: Checkout) -> tuple[set[str], set[str]]:
    """The distinctive lines that the fix adds, and those that it removes, with single spaces."""
    before = [line for entry in checkout.old_source.values() if entry for line in entry.data.decode().split("\n")]
    after = [line for entry in checkout.fix.values() if entry for line in entry.data.decode().split("\n")]

    def distinctive(lines: list[str], others: list[str]) -> set[str]:
        known = set(others)
        squeezed = (" ".join(line.split()) for line in lines if line not in known)
        return {line for line in squeezed if len(line) >= MIN_LINE and re.search(r"[=()\[\]:.]", line)}

    return distinctive(after, before), distinctive(before, after)


# ---------------------------------------------------------------- what the tests need


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    names: tuple[str, ...]
    """Names that the fix defines, that the failing tests use, and that no file had before."""
    messages: tuple[str, ...]
    """Texts that the fix adds and the failing tests hold."""

    @classmethod
    def of(cls, checkout: Checkout, failing: Sequence[str]) -> _Needs:
        before = "\n".join(_source_before(checkout))
        known = set(_IDENTIFIER.findall(before))
        trees = [tree for entry in checkout.fix.values() if entry for tree in _parsed(entry.data.decode())]
        defined = {name for tree in trees for name in _defined(tree) if name not in known}
        added = {part for tree in trees for part in _texts(tree) if len(part) >= MIN_MESSAGE and " " in part}
        added = {part for part in added if part not in before}
        functions = list(_functions(checkout, failing))
        used = {name for node in functions for name in _used(node)} - {
            name for node in functions for name in _bound(node)
        }
        held = [text for node in functions for text in _texts(node)]
        messages = sorted(part for part in added if any(part in text for text in held))
        long = (text for text in held if len(text) >= MIN_MESSAGE and " " in text)
        messages += sorted(text for text in long if any(text in part for part in added))
        return cls(names=tuple(sorted(defined & used)), messages=tuple(dict.fromkeys(messages)))


def _source_before(checkout: Checkout) -> Iterator[str]:
    """The package's source files as they were in the parent."""
    for path in checkout.reference.layout.sources:
        if path not in checkout.old_source:
            yield checkout.reference.text(path)
        elif (entry := checkout.old_source[path]) is not None:
            yield entry.data.decode()


def _parsed(text: str) -> Iterator[ast.Module]:
    try:
        yield ast.parse(text)
    except (SyntaxError, ValueError):
        return


def _functions(checkout: Checkout, failing: Sequence[str]) -> Iterator[ast.AST]:
    """The failing tests' functions, and the imports of their files."""
    for path in sorted({test.partition("::")[0] for test in failing}):
        names = {test.rpartition("::")[2].partition("[")[0] for test in failing if test.startswith(f"{path}::")}
        for tree in _parsed(checkout.reference.text(path)):
            for node in ast.walk(tree):
                is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names
                if is_test or isinstance(node, ast.Import | ast.ImportFrom):
                    yield node


def _defined(tree: ast.AST) -> Iterator[str]:
    """The names by which others can reach what a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias():
                yield node.asname or node.name
            case ast.Module() | ast.ClassDef():
                if isinstance(node, ast.ClassDef):
                    yield node.name
                for line in node.body:
                    if isinstance(line, ast.Assign | ast.AnnAssign):
                        yield from _bound(line)


def _bound(tree: ast.AST) -> Iterator[str]:
    """The variables and parameters that code sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                yield node.attr
            case ast.Name(ctx=ast.Load()):
                yield node.id
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias():
                yield node.name.rpartition(".")[2]


def _texts(tree: ast.AST) -> Iterator[str]:
    """The texts in code, without docstrings."""
    docs = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value.strip()

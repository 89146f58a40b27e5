"""CodeSearch: the code search of one rollout.

Input: terms, and optionally a path and a mode. Output: an Answer for a model. Invariants: files are checked before
every answer; the same files and query give the same answer, whatever was asked before; the answer says what was left
out. It blocks, so use it in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.errors import ToolError
from slipstream.tools.codesearch.answers import answer
from slipstream.tools.codesearch.answers.answer import SearchAnswer
from slipstream.tools.codesearch.answers.query import Mode, Query
from slipstream.tools.codesearch.answers.terms import Form, read_term
from slipstream.tools.codesearch.files import Files
from slipstream.tools.codesearch.parsing.languages import language_of
from slipstream.tools.codesearch.store import Store
from slipstream.tools.codesearch.tree import CodeTree

MAX_TERMS = 8
MAX_TERM_CHARS = 20_000
"""A whole bug report, with its traceback."""
MAX_PATH_CHARS = 1000


class CodeSearch:
    """`CodeSearch(host_folder(Path("repo")), store).ask(["QuerySet.filter"])`."""

    def __init__(self, files: Files, store: Store) -> None:
        self._store = store
        self.tree = CodeTree(files, store)

    def ask(self, terms: Sequence[str], *, path: str = "", mode: Mode = Mode.AUTO) -> SearchAnswer:
        """Raises ToolError for a query that cannot be answered."""
        given = [term for term in terms if term.strip()]
        if not given and not path:
            raise ToolError('search: say what to look for, such as terms=["QuerySet.filter"] or path="db/query.py"')
        if len(given) > MAX_TERMS:
            raise ToolError(f"search: {len(given)} terms are too many: ask for up to {MAX_TERMS} at once")
        for term in given:
            if len(term) > MAX_TERM_CHARS:
                raise ToolError(f"search: a term has more than {MAX_TERM_CHARS} characters: make it shorter")
        if len(path) > MAX_PATH_CHARS:
            raise ToolError(f"search: the path has more than {MAX_PATH_CHARS} characters: make it shorter")
        if mode in (Mode.TEXT, Mode.REGEX) or not all(map(_is_about_code, given)) or not given:
            self.tree.refresh()
            has_texts = True
        else:
            self.tree.refresh(code_only=True)
            has_texts = False
        query = Query(self.tree, self._store, path, has_texts)
        answers = query.answers(given, mode) if given else [query.files(path)]
        is_empty = all(each.is_empty for each in answers)
        return answer.joined(given, answers, query.notes(given, is_empty))


def _is_about_code(text: str) -> bool:
    term = read_term(text)
    if term.form is Form.TEXT:
        return False
    return not term.pattern or bool(language_of(term.pattern))

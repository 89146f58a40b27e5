"""One query on an up-to-date tree: what a term asks for, and the answer to it.

Input: terms and a mode. Output: a SearchAnswer for each term. Invariants: the same files and query give the same
answer; what was left out is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeGuard

from slipstream.errors import ToolError
from slipstream.tools.codesearch.answers import answer
from slipstream.tools.codesearch.answers.answer import SearchAnswer
from slipstream.tools.codesearch.answers.instances import Instances
from slipstream.tools.codesearch.answers.ranking import asks_for_tests, rank_files
from slipstream.tools.codesearch.answers.resolve import Found, Resolver
from slipstream.tools.codesearch.answers.terms import Form, PathFilter, Term, close_names, read_term
from slipstream.tools.codesearch.answers.text_search import Matches, find_regex, find_text
from slipstream.tools.codesearch.answers.uses import callees, sites
from slipstream.tools.codesearch.base import is_test
from slipstream.tools.codesearch.files import SKIPPED
from slipstream.tools.codesearch.parsing.facts import FileFacts
from slipstream.tools.codesearch.parsing.languages import language_of
from slipstream.tools.codesearch.store import BINARY, Store, summary
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

MAX_QUOTED_CHARS = 100
NUM_PREVIEWED = 4
MAX_FILES_SHOWN = 20
MAX_LINES_SHOWN = 30
MAX_SITES = 40
MAX_CALLEES = 60
NUM_RANKED = 10


class Mode(StrEnum):
    AUTO = "auto"
    CALLERS = "callers"
    CALLEES = "callees"
    REFERENCES = "references"
    TEXT = "text"
    REGEX = "regex"


def _is_blank(facts: FileFacts | None) -> TypeGuard[FileFacts]:
    """Whether only the text of a file is known."""
    return facts is not None and not facts.names


def _quoted(text: str) -> str:
    """A text in a sentence: its beginning, if it is long."""
    line = " ".join(text.split()) if len(text) > MAX_QUOTED_CHARS else text
    return f'"{line if len(line) <= MAX_QUOTED_CHARS else line[:MAX_QUOTED_CHARS] + "..."}"'


class Query:
    """One query on an up-to-date tree."""

    def __init__(self, tree: CodeTree, store: Store, path: str, has_texts: bool) -> None:
        self._tree = tree
        self._store = store
        self._resolver = Resolver(tree)
        self._filter = PathFilter(path)
        self._path = path
        self._has_texts = has_texts
        self._lost: tuple[tuple[str, str], ...] = ()
        if path and not self._items():
            self._need_texts()
            if not self._items():
                raise ToolError(f'search: no file matches path="{path}"{self._close_to(path)}')

    def answers(self, terms: Sequence[str], mode: Mode) -> list[SearchAnswer]:
        """An answer for each term. A term that cannot be answered says so, unless none can."""
        answers: list[SearchAnswer] = []
        errors: list[ToolError] = []
        for term in terms:
            try:
                answers.append(self.answer(term, mode))
            except ToolError as error:
                errors.append(error)
                answers.append(SearchAnswer(text=str(error).removeprefix("search: "), is_empty=True))
        if len(errors) == len(terms):
            raise errors[0]
        return answers

    def answer(self, text: str, mode: Mode) -> SearchAnswer:
        if mode is Mode.TEXT:
            return self._text(text)
        if mode is Mode.REGEX:
            return self._matches(text, find_regex(self._store.parsers, self._items(), text))
        term = read_term(text)
        if mode is Mode.AUTO:
            if term.form is Form.LINES:
                return self._lines(term)
            if term.form is Form.FILES and not (term.parts and not self._named(term.pattern)):
                return self.files(term.pattern)
            if term.form is Form.FILES:
                term = Term(form=Form.SYMBOL, text=term.text, parts=term.parts)
            return self._symbol(term) if term.form is Form.SYMBOL else self._text(text, with_closest=True)
        if term.form is not Form.SYMBOL:
            raise ToolError(f'search: mode="{mode}" needs the name of a definition, and "{text}" is none')
        # The path restricts the uses; the definition may be elsewhere.
        found = self._find(term, anywhere=mode is not Mode.CALLEES)
        if mode is Mode.REFERENCES:
            return self._sites(term, found, calls_only=False)
        if not found.places:
            raise ToolError(f'search: there is no definition "{text}"{self._names_like(term)}')
        return self._sites(term, found, calls_only=True) if mode is Mode.CALLERS else self._callees(found)

    def notes(self, terms: Sequence[str], is_empty: bool) -> list[str]:
        """What was left out that may matter for this answer."""
        boring = () if is_empty else (SKIPPED, BINARY)
        left_out = {path: why for path, why in self._tree.left_out.items() if why not in boring}
        names = [part.encode() for term in terms for part in read_term(term).parts[-1:]]
        unparsed = {
            path: why
            for path, why in self._tree.unparsed.items()
            if is_empty or (_is_blank(facts := self._tree.code.get(path)) and any(name in facts.text for name in names))
        }
        kinds = (("left out", left_out), ("not fully parsed", unparsed), ("not searched", dict(self._lost)))
        return [f"[{kind}: {summary(paths)}]" for kind, paths in kinds if paths]

    # ---------------------------------------------------------------- files

    def _need_texts(self) -> None:
        if not self._has_texts:
            self._tree.refresh(again=True)
            self._has_texts = True

    def _items(self) -> list[tuple[str, FileFacts]]:
        items = self._tree.items() if self._has_texts else sorted(self._tree.code.items(), key=lambda item: item[0])
        if not self._path:
            return items
        return [(path, facts) for path, facts in items if self._filter.match(path)]

    def _named(self, pattern: str) -> list[tuple[str, FileFacts]]:
        """The files of a pattern; only the file if it is a complete path."""
        if not language_of(pattern) and "*" not in pattern:
            self._need_texts()
        plain = pattern.removeprefix("./").strip("/")
        exact = self._tree.get(plain)
        if exact is not None:
            return [(plain, exact)]
        wanted = PathFilter(pattern)
        return [(path, facts) for path, facts in self._items() if wanted.match(path)]

    def _close_to(self, pattern: str) -> str:
        """A remedy for a path that does not exist."""
        self._need_texts()
        paths = self._tree.paths()
        name = pattern.rstrip("/").rpartition("/")[2]
        by_name: dict[str, list[str]] = {}
        for path in paths:
            by_name.setdefault(path.rpartition("/")[2], []).append(path)
        close = close_names(name, by_name, limit=3, cutoff=0.7)
        shown = [path for found in close for path in by_name[found]][:3]
        if shown:
            return f": perhaps {' or '.join(shown)}"
        return ": paths are relative to the root, * and ** stand for names and folders"

    def files(self, pattern: str) -> SearchAnswer:
        found = self._named(pattern)
        if not found:
            why = self._tree.left_out.get(pattern)
            if why is not None:
                return SearchAnswer(text=f"{pattern} is not in the index: {why}.", is_empty=True)
            raise ToolError(f'search: no file matches "{pattern}"{self._close_to(pattern)}')
        if len(found) == 1:
            path, facts = found[0]
            num_lines = len(facts.lines())
            if num_lines <= answer.FULL_LINES and len(facts.text) <= answer.FULL_CHARS:
                body = answer.numbered(facts.lines(), 1, num_lines) if num_lines else "[it is empty]"
                return SearchAnswer(text=f"{path} ({num_lines} lines)\n{body}")
            step = f'ask for "{path}:FIRST-LAST" to read lines, or "{path}:NAME" for a definition'
            return SearchAnswer(text=answer.file_outline(path, facts), next_step=step, kind="rest")
        shown = [f"{path} ({len(facts.lines())} lines)" for path, facts in found[: 2 * MAX_FILES_SHOWN]]
        more = len(found) - len(shown)
        text = f"{len(found)} files match {pattern}:\n" + "\n".join(shown) + (f"\n[{more} more]" if more else "")
        return SearchAnswer(text=text, next_step="name one of them to see what it defines", kind="narrow")

    def _lines(self, term: Term) -> SearchAnswer:
        found = self._named(term.pattern)
        if not found:
            raise ToolError(f'search: no file matches "{term.pattern}"{self._close_to(term.pattern)}')
        if len(found) > 1:
            some = ", ".join(path for path, _ in found[:3])
            raise ToolError(f'search: {len(found)} files match "{term.pattern}", such as {some}: name one in full')
        path, facts = found[0]
        lines = facts.lines()
        if term.first > len(lines) or term.first < 1:
            raise ToolError(f"search: {path} has {len(lines)} lines: ask for lines 1 to {len(lines)}")
        first, last = term.first, min(term.last, len(lines))
        around = facts.enclosing(first)
        inside = f" in {'.'.join(facts.qualified(around))}" if around >= 0 else ""
        if first == last:
            if around >= 0:
                text, rest = answer.full(DefinitionPlace(path, facts, around))
                if not rest:
                    return SearchAnswer(text=text)
            first, last = max(1, first - 10), min(len(lines), last + 10)
        shown_to = min(last, first + 2 * answer.FULL_LINES - 1)
        text = f"{answer.where(path, first, shown_to)}{inside}\n{answer.numbered(lines, first, shown_to)}"
        if shown_to < last:
            return SearchAnswer(text=text, next_step=f'go on with "{path}:{shown_to + 1}-{last}"', kind="rest")
        return SearchAnswer(text=text)

    # ---------------------------------------------------------------- symbols

    def _find(self, term: Term, *, anywhere: bool = False) -> Found:
        found = self._resolver.find(term.parts) if term.pattern else self._meant(term.parts)
        places = found.places
        if term.pattern:
            wanted = PathFilter(term.pattern)
            places = tuple(place for place in places if wanted.match(place.path))
        if self._path and not anywhere:
            places = tuple(place for place in places if self._filter.match(place.path))
        return Found(places=places, how=found.how if places else "")

    def _meant(self, parts: tuple[str, ...]) -> Found:
        """The definitions of a name, or those that it means on an instance: `app.route`."""
        found = self._resolver.find(parts)
        if found.places or len(parts) < 2:
            return found
        if (found := Instances(self._tree, self._resolver).find(parts)).places:
            return found
        methods = [place for place in self._tree.code.defined(parts[-1]) if place.definition.kind == "method"]
        head = parts[-2].lower().replace("_", "")
        alike = [place for place in methods if head in "".join(place.qualified[-2:-1]).lower()]
        places = tuple(alike or methods)
        if not places or len(places) > NUM_PREVIEWED:
            return Found()
        return Found(places=places, how=f"what {parts[-2]} is, is not known; by the name {parts[-1]} alone")

    def _symbol(self, term: Term) -> SearchAnswer:
        found = self._find(term)
        if not found.places:
            return self._missing(term)
        name = ".".join(term.parts)
        places = found.places
        how = f"[{found.how}]\n" if found.how else ""
        if len(places) == 1:
            text, rest = answer.full(places[0])
            if outside := self._resolver.written_outside(places[0]):
                text = f"{text}\n{answer.written_outside(outside)}"
                rest = rest or answer.entity(outside[0])
            if rest:
                return SearchAnswer(text=how + text, next_step=f'ask for "{rest}" for more of it', kind="rest")
            num_files = len(self._tree.code.using(places[0].definition.name)) - 1
            step = f'{num_files} other files use the name: mode="callers" shows who calls it' if num_files > 0 else ""
            return SearchAnswer(text=how + text, next_step=step, kind="callers" if step else "")
        if len(places) <= NUM_PREVIEWED:
            texts = [f"{len(places)} definitions of {name}:", *map(answer.preview, places)]
            step = f'ask for one in full, such as "{answer.entity(places[0])}"'
            return SearchAnswer(text=how + "\n".join(texts), next_step=step, kind="rest")
        step = f'narrow with a class or module before the name, such as "{answer.entity(places[0])}", or with path'
        text = f"{len(places)} definitions of {name}:\n{answer.folded(places)}"
        return SearchAnswer(text=how + text, next_step=step, kind="narrow")

    def _missing(self, term: Term) -> SearchAnswer:
        """Without such a definition: where the text occurs, names that contain it, then the best ranked."""
        text = ".".join(term.parts) if term.pattern else term.text
        if term.pattern:
            if not self._named(term.pattern):
                raise ToolError(f'search: no file matches "{term.pattern}"{self._close_to(term.pattern)}')
            raise ToolError(f'search: "{term.pattern}" defines no "{text}"{self._names_like(term)}')
        found = self._text(text, is_symbol=True)
        if self._path and (elsewhere := self._resolver.find(term.parts).places):
            heading = f"{text} is defined elsewhere: {answer.headline(elsewhere[0])}"
            return replace(found, text=f"{heading}\n{found.text}", is_empty=False)
        return found

    def _names_like(self, term: Term) -> str:
        close = close_names(term.parts[-1], self._tree.code.def_names(), limit=3, cutoff=0.75)
        return f": perhaps {' or '.join(close)}" if close else ": look for a part of the name"

    def _sites(self, term: Term, found: Found, *, calls_only: bool) -> SearchAnswer:
        name = found.places[0].definition.name if found.places else term.parts[-1]
        all_sites = sites(self._tree, self._resolver, name, found.places, calls_only=calls_only)
        if self._path:
            all_sites = [site for site in all_sites if self._filter.match(site.path)]
        what = "calls of" if calls_only else "uses of"
        title = ".".join(term.parts)
        if not all_sites:
            step = f'mode="text" finds "{name}" in comments, strings and other files'
            return SearchAnswer(text=f"There are no {what} {title}.", next_step=step, kind="nothing", is_empty=True)
        certain = [site for site in all_sites if site.is_certain]
        by_name = [site for site in all_sites if not site.is_certain]
        num_files = len({site.path for site in all_sites})
        texts = [f"{len(all_sites)} {what} {title} in {answer.counted(num_files, 'file')}"]
        for some, how in ((certain, "certain"), (by_name, "by name alone")):
            if some:
                texts.append(f"{len(some)} {how}:\n{answer.shown_sites(some, MAX_SITES if some is certain else 20)}")
        is_cut = len(certain) > MAX_SITES or len(by_name) > 20
        return SearchAnswer(
            text="\n".join(texts), next_step="narrow with path" if is_cut else "", kind="narrow" if is_cut else ""
        )

    def _callees(self, found: Found) -> SearchAnswer:
        texts = []
        for place in found.places[:3]:
            lines = [f"{answer.headline(place)} calls:"]
            called = callees(self._tree, self._resolver, place)
            for callee in called[:MAX_CALLEES]:
                at = ", ".join(map(str, callee.lines[:3]))
                if callee.places:
                    meant = " or ".join(map(answer.headline, callee.places[:2]))
                elif callee.is_known or not callee.num_namesakes:
                    meant = "not defined in this repository"
                else:
                    meant = f"not known; {answer.counted(callee.num_namesakes, 'definition')} of that name"
                lines.append(f"  {at}: {callee.name} -> {meant}")
            if len(called) > MAX_CALLEES:
                lines.append(f"  [{len(called) - MAX_CALLEES} more]")
            if not called:
                lines.append("  nothing")
            texts.append("\n".join(lines))
        if len(found.places) > 3:
            texts.append(f"[{len(found.places) - 3} more definitions]")
        return SearchAnswer(text="\n".join(texts))

    # ---------------------------------------------------------------- text

    def _text(self, text: str, *, is_symbol: bool = False, with_closest: bool = False) -> SearchAnswer:
        self._need_texts()
        matches = find_text(self._items(), text)
        if matches.files:
            found = self._matches(text, matches)
            if with_closest and not any(facts.language and not is_test(path) for path, facts, _ in matches.files):
                closest = self._closest(text, "In the code, closest by their words:")
                return found if closest is None else replace(found, text=f"{found.text}\n{closest.text}")
            if is_symbol and not self._tree.code.defined(text) and (names := self._holding(text)):
                places = [place for name in names for place in self._tree.code.defined(name)]
                places = [place for place in places if self._filter.match(place.path)]
                places.sort(key=lambda place: is_test(place.path))
                if places:
                    heading = f"No definition is called {text}; {len(places)} have it in their names:"
                    found = SearchAnswer(
                        text=f"{heading}\n{answer.folded(places, 10)}\n{found.text}",
                        next_step=found.next_step or f'ask for one of them, such as "{answer.entity(places[0])}"',
                        kind=found.kind or "rest",
                    )
            return found
        if is_symbol and (close := self._close_names(read_term(text).parts)):
            step = f'ask for one of them, such as "{answer.entity(close[0])}"'
            heading = f'There is no "{text}". Closest by name:'
            return SearchAnswer(text=f"{heading}\n{answer.folded(close, NUM_RANKED)}", next_step=step, kind="rest")
        if closest := self._closest(text, f"Nothing matches {_quoted(text)} as it stands. Closest by their words:"):
            return closest
        step = "try other words, a part of the name, or a path"
        return SearchAnswer(text=f"Nothing matches {_quoted(text)}.", next_step=step, kind="nothing", is_empty=True)

    def _closest(self, text: str, heading: str) -> SearchAnswer | None:
        """The files that fit a text best by its words."""
        fits = rank_files(self._tree, self._items(), text, NUM_RANKED)
        if not fits:
            return None
        places = [place for fit in fits for place in fit.places]
        step = f'ask for one of them, such as "{answer.entity(places[0]) if places else fits[0].path}"'
        return SearchAnswer(text=f"{heading}\n{answer.fitting(fits)}", next_step=step, kind="rest")

    def _close_names(self, parts: tuple[str, ...]) -> list[DefinitionPlace]:
        """Definitions with similar names: the last part and the one before it may be misspelt."""
        code = self._tree.code
        places: list[DefinitionPlace] = []
        for name in close_names(parts[-1], code.def_names(), limit=5, cutoff=0.72):
            for place in code.defined(name):
                around = place.full[-2:-1]
                is_near = len(parts) < 2 or bool(close_names(parts[-2], ["".join(around)], limit=1, cutoff=0.7))
                if is_near and self._filter.match(place.path):
                    places.append(place)
        return places

    def _holding(self, text: str) -> list[str]:
        """Names of definitions that contain a text, shortest first."""
        lower = text.lower()
        return sorted((n for n in self._tree.code.def_names() if lower in n.lower()), key=lambda n: (len(n), n))[:50]

    def _matches(self, text: str, matches: Matches) -> SearchAnswer:
        self._lost += matches.not_searched
        files = matches.files
        if not files:
            step = "try a simpler pattern, or the words alone"
            return SearchAnswer(text=f"Nothing matches {_quoted(text)}.", next_step=step, kind="nothing", is_empty=True)
        about_tests = asks_for_tests(text)
        files = tuple(sorted(files, key=lambda match: not about_tests and is_test(match.path)))
        num_lines = sum(len(match.lines) for match in files)
        case = " in another case" if matches.is_other_case else ""
        places = f"{answer.counted(num_lines, 'line')} of {answer.counted(len(files), 'file')}"
        title = f"{_quoted(text)} is found{case} on {places}:"
        if num_lines <= MAX_LINES_SHOWN or len(files) == 1:
            shown = [answer.shown_lines(match.path, match.facts, match.lines, MAX_LINES_SHOWN) for match in files]
            step, kind = "", ""
            if num_lines > MAX_LINES_SHOWN:
                step, kind = "narrow with a longer text", "narrow"
            return SearchAnswer(text="\n".join([title, *shown]), next_step=step, kind=kind)
        by_lines = sorted(files, key=lambda match: (-len(match.lines), match.path))
        busiest = sorted(by_lines, key=lambda match: not about_tests and is_test(match.path))[:MAX_FILES_SHOWN]
        shown = [
            f"{match.path}: {answer.counted(len(match.lines), 'line')}, first {match.lines[0]}" for match in busiest
        ]
        if len(files) > len(shown):
            shown.append(f"[{len(files) - len(shown)} more files]")
        step = f'narrow with path, such as path="{busiest[0].path}"'
        return SearchAnswer(text="\n".join([title, *shown]), next_step=step, kind="narrow")

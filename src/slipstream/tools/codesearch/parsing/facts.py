"""Facts about one file, as compact columns.

Input: the text of a file and the reply of a parsing process, which is not trusted. Output: a Facts, or a BadReply.
Invariants: every index in a Facts is valid; a parent comes before its children; a Facts never changes, so all trees
with the same file content share it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import gt
from typing import NamedTuple

from slipstream.tools.codesearch.parsing.python_source import (
    KINDS,
    LINE_BITS,
    MAX_NAME_CHARS,
    OWNER_BITS,
    USE_BITS,
)
from slipstream.types import Json

_TO_NAME = LINE_BITS + USE_BITS + OWNER_BITS
_TO_LINE = USE_BITS + OWNER_BITS
_LINE_MASK, _USE_MASK, _OWNER_MASK = (1 << LINE_BITS) - 1, (1 << USE_BITS) - 1, (1 << OWNER_BITS) - 1
_COLUMNS = 6
_IMPORT_COLUMNS = 5
_TYPE_COLUMNS = 3
VALUES = ("variable", "field", "attribute", "constant")
"""Kinds of definitions without a body."""
MAX_IMPORT_CHARS = 4 * MAX_NAME_CHARS


class BadReply(Exception):
    """A parsing process sent an invalid reply."""


class Definition(NamedTuple):
    """One definition of a file. `first` is the line of its first decorator, `line` that of its name."""

    number: int
    name: str
    kind: str
    parent: int
    """Its number, or -1 at the top of the file."""
    first: int
    line: int
    last: int


class NameUse(NamedTuple):
    """One place where a name is used."""

    name: str
    line: int
    how: int
    """One of the uses of `python_source`."""
    owner: int
    """The definition that it is in, or -1."""


class Import(NamedTuple):
    line: int
    dots: int
    module: str
    name: str
    """Empty if the module itself is imported, `*` for everything in it."""
    as_name: str


class Instance(NamedTuple):
    """A name that is an instance of a class."""

    owner: int
    """The definition that it is in, or -1."""
    name: str
    """RETURNED for what the owner returns."""
    kind: str
    """The class, as it is written there."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class FileFacts:
    text: bytes
    language: str = ""
    """Empty for text that is not code in a known language."""
    names: tuple[str, ...] = ()
    defs: array[int]
    refs: array[int]
    docs: Mapping[int, str]
    bases: Mapping[int, tuple[str, ...]]
    flat_imports: tuple[int | str, ...] = ()
    """The five fields of each import, one after the other."""
    flat_types: tuple[int | str, ...] = ()
    """The three fields of each instance, one after the other."""
    error: str = ""
    """Why it could not be parsed; its definitions are then from a scan, or missing."""

    @property
    def imports(self) -> Iterator[Import]:
        columns = [iter(self.flat_imports)] * _IMPORT_COLUMNS
        return map(Import._make, zip(*columns, strict=True))

    def instances(self, name: str) -> list[Instance]:
        """What a name is an instance of, wherever that is said."""
        found = map(Instance._make, zip(*[iter(self.flat_types)] * _TYPE_COLUMNS, strict=True))
        return [each for each in found if each.name == name]

    @property
    def num_defs(self) -> int:
        return len(self.defs) // _COLUMNS

    def definition(self, number: int) -> Definition:
        name, kind, parent, first, line, last = self.defs[number * _COLUMNS : (number + 1) * _COLUMNS]
        return Definition(number, self.names[name], KINDS[kind], parent - 1, first, line, last)

    def definitions(self) -> Iterator[Definition]:
        return map(self.definition, range(self.num_defs))

    def qualified(self, number: int) -> tuple[str, ...]:
        """The names from the outermost definition to this one."""
        parts: list[str] = []
        while number >= 0:
            parts.append(self.names[self.defs[number * _COLUMNS]])
            number = self.defs[number * _COLUMNS + 2] - 1
        return tuple(reversed(parts))

    def children(self, number: int) -> list[Definition]:
        """The direct children of a definition, or of the file for -1, by line."""
        parents = self.defs[2::_COLUMNS]
        found = [self.definition(child) for child, parent in enumerate(parents) if parent == number + 1]
        return sorted(found, key=lambda child: (child.first, child.number))

    def enclosing(self, line: int) -> int:
        """The innermost definition around a line that has a body of its own, or -1."""
        best, best_size = -1, 0
        firsts, lasts = self.defs[3::_COLUMNS], self.defs[5::_COLUMNS]
        for number, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
            is_closer = first <= line <= last and (best < 0 or last - first <= best_size)
            if is_closer and KINDS[self.defs[number * _COLUMNS + 1]] not in VALUES:
                best, best_size = number, last - first
        return best

    def number_of(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            return -1

    def defined(self, name: str) -> list[int]:
        number = self.number_of(name)
        return [] if number < 0 else [i for i, found in enumerate(self.defs[0::_COLUMNS]) if found == number]

    def def_names(self) -> array[int]:
        """For each definition, the number of its name."""
        return self.defs[0::_COLUMNS]

    def uses_of(self, name: str) -> list[NameUse]:
        """Where a name is used, by line."""
        number = self.number_of(name)
        if number < 0:
            return []
        start = bisect_left(self.refs, number << _TO_NAME)
        end = bisect_left(self.refs, (number + 1) << _TO_NAME, start)
        return [self._use(packed) for packed in self.refs[start:end]]

    def uses_in(self, owners: frozenset[int]) -> list[NameUse]:
        """Uses inside definitions, by line."""
        wanted = {owner + 1 for owner in owners}
        found = [self._use(packed) for packed in self.refs if packed & _OWNER_MASK in wanted]
        return sorted(found, key=lambda use: (use.line, use.name, use.how))

    def _use(self, packed: int) -> NameUse:
        return NameUse(
            self.names[packed >> _TO_NAME],
            packed >> _TO_LINE & _LINE_MASK,
            packed >> OWNER_BITS & _USE_MASK,
            (packed & _OWNER_MASK) - 1,
        )

    def lines(self) -> list[str]:
        """The text, decoded and split as Python counts lines; without an empty last one."""
        text = self.text.decode("utf-8", "replace").removeprefix("\ufeff")
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines and not lines[-1]:
            lines.pop()
        return lines


def plain(text: bytes, language: str = "", error: str = "") -> FileFacts:
    """A file that is only text."""
    return FileFacts(text=text, language=language, defs=array("I"), refs=array("Q"), docs={}, bases={}, error=error)


def decode(text: bytes, language: str, header: Mapping[str, Json], blob: bytes, pool: dict[str, str]) -> FileFacts:
    """The Facts in a parsing process's reply. `pool` keeps one copy of each name. Raises BadReply."""
    texts = _texts(header.get("names"), MAX_NAME_CHARS, "the names")
    names = tuple(map(pool.setdefault, texts, texts))
    num_numbers = header.get("defs")
    if not isinstance(num_numbers, int) or not 0 <= num_numbers * 4 <= len(blob) or num_numbers % _COLUMNS:
        raise BadReply("the number of definitions")
    if (len(blob) - num_numbers * 4) % 8:
        raise BadReply("the length of the references")
    defs, refs = array("I", blob[: num_numbers * 4]), array("Q", blob[num_numbers * 4 :])
    num_defs = num_numbers // _COLUMNS
    if num_defs:
        if max(defs[0::_COLUMNS]) >= len(names) or max(defs[1::_COLUMNS]) >= len(KINDS):
            raise BadReply("a definition without a name or a kind")
        if any(map(gt, defs[2::_COLUMNS], range(num_defs))):
            raise BadReply("a definition before its parent")
    if refs and max(refs) >> _TO_NAME >= len(names):
        raise BadReply("a reference without a name")
    if refs and max([packed & _OWNER_MASK for packed in refs]) > num_defs:
        raise BadReply("a reference from nowhere")
    error = header.get("error")
    return FileFacts(
        text=text,
        language=language,
        names=names,
        defs=defs,
        refs=refs,
        docs=_docs(header.get("docs"), num_defs),
        bases=_bases(header.get("bases"), num_defs, pool),
        flat_imports=_imports(header.get("imports"), pool),
        flat_types=_types(header.get("types"), num_defs, pool),
        error=_clean(error[:MAX_NAME_CHARS]) if isinstance(error, str) else "",
    )


def _texts(given: Json, max_chars: int, what: str) -> list[str]:
    """A list of texts, checked without a Python loop, since a repository has hundreds of thousands."""
    if not isinstance(given, list):
        raise BadReply(what)
    try:
        "".join(given)  # type: ignore[arg-type]  # raises if one is not text
    except TypeError:
        raise BadReply(what) from None
    if given and max(map(len, given)) > max_chars:  # type: ignore[arg-type]
        raise BadReply(what)
    return given  # type: ignore[return-value]


def _clean(text: str) -> str:
    """Without lone surrogates, which cannot be sent to a model."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _docs(given: Json, num_defs: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for item in given if isinstance(given, list) else []:
        match item:
            case [int(number), str(text)] if 0 <= number < num_defs:
                found[number] = _clean(text[:MAX_NAME_CHARS])
            case _:
                raise BadReply("a docstring")
    return found


def _bases(given: Json, num_defs: int, pool: dict[str, str]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for item in given if isinstance(given, list) else []:
        match item:
            case [int(number), [*bases]] if 0 <= number < num_defs and len(bases) <= MAX_NAME_CHARS:
                named = [base for base in bases if isinstance(base, str) and len(base) <= MAX_NAME_CHARS]
                found[number] = tuple(pool.setdefault(base, base) for base in named)
            case _:
                raise BadReply("the bases of a class")
    return found


def _imports(given: Json, pool: dict[str, str]) -> tuple[int | str, ...]:
    if not isinstance(given, list) or len(given) % _IMPORT_COLUMNS:
        raise BadReply("the imports")
    if not {type(number) for number in (*given[0::_IMPORT_COLUMNS], *given[1::_IMPORT_COLUMNS])} <= {int}:
        raise BadReply("the line of an import")
    for column in (2, 3, 4):
        texts = _texts(given[column::_IMPORT_COLUMNS], MAX_IMPORT_CHARS, "the name of an import")
        given[column::_IMPORT_COLUMNS] = map(pool.setdefault, texts, texts)
    return tuple(given)  # type: ignore[arg-type]  # checked column by column


def _types(given: Json, num_defs: int, pool: dict[str, str]) -> tuple[int | str, ...]:
    if not isinstance(given, list) or len(given) % _TYPE_COLUMNS:
        raise BadReply("the types")
    owners = given[0::_TYPE_COLUMNS]
    if not {type(owner) for owner in owners} <= {int}:
        raise BadReply("the owner of a type")
    if owners and not -1 <= min(owners) <= max(owners) < num_defs:  # type: ignore[type-var, operator]
        raise BadReply("the owner of a type")
    for column in (1, 2):
        texts = _texts(given[column::_TYPE_COLUMNS], MAX_NAME_CHARS, "the name of a type")
        given[column::_TYPE_COLUMNS] = map(pool.setdefault, texts, texts)
    return tuple(given)  # type: ignore[arg-type]  # checked column by column

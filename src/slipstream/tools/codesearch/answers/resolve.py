"""Resolves a name to definitions: by qualified name, through imports and re-exports, through base classes.

Input: the parts of a dotted name. Output: Places in a fixed order, and how they were found. Invariants: definitions
with the complete name come before those that need an import or a base class; chains of imports or bases, even with
cycles, take a limited number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.tools.codesearch.base import is_test, module_of
from slipstream.tools.codesearch.parsing.facts import FileFacts, Import
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

MAX_STEPS = 400
MAX_DEPTH = 8
CONTAINERS = frozenset({"class", "interface", "struct", "enum", "trait", "impl", "type", "module"})
Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    places: tuple[DefinitionPlace, ...] = ()
    how: str = ""
    """What had to be followed; empty if it is defined under that very name."""


class Resolver:
    """Resolves names for one query, with a cache."""

    def __init__(self, tree: CodeTree) -> None:
        self._code = tree.code
        self._steps = 0
        self._members: dict[tuple[str, int, str], tuple[DefinitionPlace, ...]] = {}
        self._globals: dict[tuple[str, str], tuple[DefinitionPlace, ...]] = {}

    # ---------------------------------------------------------------- names

    def find(self, parts: Parts) -> Found:
        self._steps = 0
        if places := self.exact(parts):
            return Found(places=places)
        if len(parts) > 1:
            for owner in self.exact(parts[:-1]):
                if places := self.member(owner, parts[-1]):
                    of = ".".join(owner.qualified)
                    return Found(places=places, how=f"{of} inherits {parts[-1]} from there")
            for cut in range(len(parts) - 1, 0, -1):
                if places := self.in_module(parts[:cut], parts[cut:]):
                    return Found(places=places, how=f"{'.'.join(parts)} is re-exported from there")
        if found := self._by_import(parts):
            return found
        if places := self._in_other_case(parts):
            return Found(places=places, how="found in another spelling of upper and lower case")
        return Found()

    def exact(self, parts: Parts) -> tuple[DefinitionPlace, ...]:
        """The definitions whose module and name end with these parts."""
        places = self._code.defined(parts[-1])
        if len(parts) > 1:
            places = [place for place in places if place.full[-len(parts) :] == parts]
        return _in_order(places)

    def _in_other_case(self, parts: Parts) -> tuple[DefinitionPlace, ...]:
        lower = tuple(part.lower() for part in parts)
        places = [place for name in self._code.spelt(parts[-1]) for place in self._code.defined(name)]
        return _in_order([p for p in places if tuple(part.lower() for part in p.full[-len(parts) :]) == lower])

    def _by_import(self, parts: Parts) -> Found | None:
        """What a name means where its first part is imported: `np.array`, `models.CharField`, `vat`."""
        self._steps = 0
        files = self._code.items() if len(parts) == 1 else self._code.using(parts[0])
        for path, facts in sorted(files, key=lambda item: (is_test(item[0]), item[0])):
            for found in facts.imports:
                if found.as_name != parts[0] or (len(parts) == 1 and found.name in ("", parts[0])):
                    continue
                if places := self._follow(path, found, parts[1:]):
                    is_other = parts[0] not in (found.name, found.module)
                    how = "another name for it in an import" if is_other else f"imported in {path}"
                    return Found(places=places, how=f"{parts[0]} is {how}")
        return None

    # ---------------------------------------------------------------- modules and imports

    def in_module(self, module: Parts, parts: Parts, depth: int = 0) -> tuple[DefinitionPlace, ...]:
        """What a name means in a module, which may define or import it."""
        for path in self._paths_of(module):
            if places := self.in_file(path, parts, depth):
                return places
        return ()

    def in_file(self, path: str, parts: Parts, depth: int = 0) -> tuple[DefinitionPlace, ...]:
        facts = self._code.get(path)
        if facts is None or depth > MAX_DEPTH or not self._may_go_on() or not parts:
            return ()
        tops = [DefinitionPlace(path, facts, n) for n in facts.defined(parts[0]) if facts.definition(n).parent < 0]
        if tops:
            return self._below(tops, parts[1:])
        stars = []
        for found in facts.imports:
            if found.as_name == parts[0] and found.name != "*":
                if places := self._follow(path, found, parts[1:], depth + 1):
                    return places
            elif found.name == "*":
                stars.append(found)
        for star in stars:
            if places := self.in_module(_absolute(path, star), parts, depth + 1):
                return places
        return ()

    def _follow(self, path: str, found: Import, rest: Parts, depth: int = 0) -> tuple[DefinitionPlace, ...]:
        """The definitions of `rest` below what an import refers to."""
        module = _absolute(path, found)
        if not found.name:
            bound = found.as_name.split(".")
            # `import a.b` binds `a`; `import a.b as c` binds the whole.
            start = module if found.as_name != module[:1][0] else tuple(bound)
            for cut in range(len(rest) - 1, -1, -1):
                if places := self.in_module(start + rest[:cut], rest[cut:], depth):
                    return places
            return ()
        if places := self.in_module(module, (found.name, *rest), depth):
            return places
        return self.in_module((*module, found.name), rest, depth) if rest else ()

    def _paths_of(self, module: Parts) -> list[str]:
        """The files that may be a module: those whose path ends with its name, shortest first."""
        if not module:
            return []
        paths = [path for path in self._code.modules(module[-1]) if module_of(path)[-len(module) :] == module]
        return sorted(paths, key=lambda path: (len(module_of(path)), path))[:5]

    def _below(self, places: list[DefinitionPlace], rest: Parts) -> tuple[DefinitionPlace, ...]:
        for name in rest:
            places = [below for place in places for below in self.member(place, name)]
        return tuple(places)

    def seen_from(self, path: str, facts: FileFacts, name: str) -> tuple[DefinitionPlace, ...]:
        """What a plain or dotted name means at the top level of a file."""
        key = (path, name)
        if key not in self._globals:
            self._steps = 0
            self._globals[key] = self.in_file(path, tuple(name.split(".")))
        return self._globals[key]

    # ---------------------------------------------------------------- classes

    def member(self, owner: DefinitionPlace, name: str) -> tuple[DefinitionPlace, ...]:
        """A member of a class: its own, or that of the nearest base class."""
        key = (owner.path, owner.number, name)
        if key not in self._members:
            self._members[key] = ()  # a class that derives from itself
            self._members[key] = self._look_for_member(owner, name)
        return self._members[key]

    def _look_for_member(self, owner: DefinitionPlace, name: str) -> tuple[DefinitionPlace, ...]:
        facts = owner.facts
        own = [
            DefinitionPlace(owner.path, facts, n)
            for n in facts.defined(name)
            if facts.definition(n).parent == owner.number
        ]
        if own or (own := [place for place in self.written_outside(owner) if place.definition.name == name]):
            return tuple(own)
        for base in self.bases(owner):
            if places := self.member(base, name):
                return places
        return ()

    def written_outside(self, owner: DefinitionPlace) -> list[DefinitionPlace]:
        """The members of a type in blocks of their own, as Rust, Go and C++ have them."""
        definition = owner.definition
        if owner.facts.language == "python" or definition.kind not in CONTAINERS or definition.kind == "impl":
            return []
        blocks = [
            place
            for place in self._code.defined(definition.name)
            if place.definition.kind == "impl" and place.facts.language == owner.facts.language
        ]
        near = [place for place in blocks if _folder(place.path) == _folder(owner.path)] or blocks
        return [
            DefinitionPlace(place.path, place.facts, child.number)
            for place in near
            for child in place.facts.children(place.number)
        ]

    def bases(self, owner: DefinitionPlace) -> list[DefinitionPlace]:
        if not self._may_go_on():
            return []
        found: list[DefinitionPlace] = []
        for name in owner.facts.bases.get(owner.number, ()):
            places = self.in_file(owner.path, tuple(name.split(".")))
            if not places and owner.facts.language != "python":
                places = tuple(p for p in self._code.defined(name) if p.definition.kind in CONTAINERS)[:3]
            found += [place for place in places if place.definition.kind in CONTAINERS and place != owner]
        return found

    def class_around(self, path: str, facts: FileFacts, number: int) -> DefinitionPlace | None:
        """The class itself, or the class of the method that a definition is in."""
        while number >= 0:
            definition = facts.definition(number)
            if definition.kind in CONTAINERS:
                return DefinitionPlace(path, facts, number)
            number = definition.parent
        return None

    def _may_go_on(self) -> bool:
        self._steps += 1
        return self._steps <= MAX_STEPS


def _absolute(path: str, found: Import) -> Parts:
    """The module that an import names, as parts."""
    module = tuple(part for part in found.module.split(".") if part)
    if not found.dots:
        return module
    here = path.split("/")[:-1]
    above = here[: len(here) - (found.dots - 1)]
    return (*above, *module)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _in_order(places: list[DefinitionPlace]) -> tuple[DefinitionPlace, ...]:
    """Non-test code first, then the least nested. Blocks that only stand for a type are left out if the type itself is
    there."""
    real = [place for place in places if place.definition.kind != "impl"]
    return tuple(sorted(real or places, key=lambda place: (is_test(place.path), len(place.qualified), place.order)))

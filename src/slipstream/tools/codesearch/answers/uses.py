"""Finds the callers of a definition, what it calls, and where its name is used.

Input: Places with the same name. Output: uses, each marked as certain if imports, `self` and base classes lead to one
of them, else as by name only. Invariants: no use of the name is dropped; they are in order of path and line, tests
last.
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream.tools.codesearch.answers.resolve import Resolver
from slipstream.tools.codesearch.base import is_test
from slipstream.tools.codesearch.parsing.facts import FileFacts, NameUse
from slipstream.tools.codesearch.parsing.python_source import CALL, IMPORTED, MEMBER_CALL, NAME, SELF, SELF_CALL
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

CALLS = (CALL, MEMBER_CALL, SELF_CALL)


class Site(NamedTuple):
    """One use of a name."""

    path: str
    facts: FileFacts
    use: NameUse
    is_certain: bool


class Callee(NamedTuple):
    """One name that is called, and its possible definitions."""

    name: str
    how: int
    lines: tuple[int, ...]
    places: tuple[DefinitionPlace, ...]
    is_certain: bool


def sites(
    tree: CodeTree, resolver: Resolver, name: str, places: tuple[DefinitionPlace, ...], *, calls_only: bool
) -> list[Site]:
    """Where the name of the definitions `places` is used. Aliases under which a file imports one count too."""
    found: list[Site] = []
    wanted = set(places)
    for path, facts in tree.code.using(name):
        aliases = {i.as_name for i in facts.imports if i.name == name and i.as_name != name}
        for spelling in (name, *sorted(aliases)):
            for use in facts.uses_of(spelling):
                if calls_only and use.how not in CALLS:
                    continue
                found.append(Site(path, facts, use, _is_certain(resolver, wanted, path, facts, use)))
    return sorted(found, key=lambda site: (is_test(site.path), site.path, site.use.line, site.use.name, site.use.how))


def _is_certain(resolver: Resolver, wanted: set[DefinitionPlace], path: str, facts: FileFacts, use: NameUse) -> bool:
    if use.how in (SELF, SELF_CALL):
        around = resolver.class_around(path, facts, use.owner)
        return around is not None and not wanted.isdisjoint(resolver.member(around, use.name))
    if use.how in (NAME, CALL, IMPORTED):
        return not wanted.isdisjoint(resolver.seen_from(path, facts, use.name))
    return False


def callees(tree: CodeTree, resolver: Resolver, place: DefinitionPlace) -> list[Callee]:
    """What a definition calls, by the first line at which it does."""
    facts, path = place.facts, place.path
    inside = {place.number}
    for definition in facts.definitions():
        if definition.parent in inside:
            inside.add(definition.number)
    lines: dict[tuple[str, int], list[int]] = {}
    for use in facts.uses_in(frozenset(inside)):
        if use.how in CALLS:
            lines.setdefault((use.name, use.how), []).append(use.line)
    found = []
    for (name, how), at in lines.items():
        places, is_certain = _meant(tree, resolver, path, facts, place, name, how, inside)
        found.append(Callee(name, how, tuple(sorted(set(at))), places, is_certain))
    return sorted(found, key=lambda callee: (callee.lines[0], callee.name, callee.how))


def _meant(
    tree: CodeTree,
    resolver: Resolver,
    path: str,
    facts: FileFacts,
    place: DefinitionPlace,
    name: str,
    how: int,
    inside: set[int],
) -> tuple[tuple[DefinitionPlace, ...], bool]:
    if how == CALL:
        nested = tuple(
            DefinitionPlace(path, facts, n) for n in facts.defined(name) if facts.definition(n).parent in inside
        )
        if places := nested or resolver.seen_from(path, facts, name):
            return places, True
        if facts.language == "python":
            return (), False  # a built-in, or a local variable
    elif how == SELF_CALL:
        around = resolver.class_around(path, facts, place.number)
        if around is not None and (places := resolver.member(around, name)):
            return places, True
    by_name = tuple(p for p in tree.code.defined(name) if p.definition.kind in ("method", "function", "class"))
    return by_name, False

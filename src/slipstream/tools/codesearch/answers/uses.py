"""Finds the callers of a definition, what it calls, and where its name is used.

Input: Places with the same name. Output: uses, each marked as certain if imports, `self` and base classes lead to one
of them, else as by name only. Invariants: no use of the name is dropped; they are in order of path and line, tests
last.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slipstream.tools.codesearch.answers.instances import Instances
from slipstream.tools.codesearch.answers.resolve import Resolver
from slipstream.tools.codesearch.base import is_test
from slipstream.tools.codesearch.parsing.facts import FileFacts, NameUse
from slipstream.tools.codesearch.parsing.python_source import CALL, IMPORTED, MEMBER_CALL, NAME, SELF, SELF_CALL
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

CALLS = (CALL, MEMBER_CALL, SELF_CALL)
MAX_LINE_CHARS = 1_000
_STEP = r"\s*(?:\.|->|::)\s*"
_RECEIVER = rf"(?<![\w)\]])((?:\w+(?:\([^()]*\))?{_STEP})+)%s\b"


class Site(NamedTuple):
    """One use of a name."""

    path: str
    facts: FileFacts
    use: NameUse
    is_certain: bool


class Callee(NamedTuple):
    """One name that is called, and its definitions."""

    name: str
    """With what it is called on, if that is plain."""
    lines: tuple[int, ...]
    places: tuple[DefinitionPlace, ...]
    is_known: bool
    """Whether it is known what is called. If so and there are no places, it is not in the repository."""
    num_namesakes: int
    """Definitions with the name, if it is not known."""


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
    text = facts.lines()
    calls: dict[tuple[str, int, int, tuple[str, ...]], list[int]] = {}
    for use in facts.uses_in(frozenset(inside)):
        if use.how in CALLS:
            line = text[use.line - 1] if use.line <= len(text) else ""
            for receiver in _receivers(line, use.name) if use.how == MEMBER_CALL else [()]:
                calls.setdefault((use.name, use.how, use.owner, receiver), []).append(use.line)
    instances = Instances(tree, resolver)
    found: dict[tuple[str, tuple[DefinitionPlace, ...] | None], list[int]] = {}
    for (name, how, owner, receiver), lines in calls.items():
        if how == MEMBER_CALL:
            places = instances.meant(path, facts, owner, receiver, name) if receiver else None
        else:
            places = _plainly_meant(resolver, path, facts, place, name, how, inside)
        found.setdefault((".".join((*receiver, name)), places), []).extend(lines)
    return sorted(
        (_callee(tree, name, lines, places) for (name, places), lines in found.items()),
        key=lambda callee: (callee.lines[0], callee.name),
    )


def _callee(tree: CodeTree, name: str, lines: list[int], places: tuple[DefinitionPlace, ...] | None) -> Callee:
    num = 0
    if places is None:
        last = name.rpartition(".")[2]
        num = sum(each.definition.kind in ("method", "function", "class") for each in tree.code.defined(last))
    return Callee(name, tuple(sorted(set(lines))), places or (), places is not None, num)


def _receivers(line: str, name: str) -> list[tuple[str, ...]]:
    """What a method is called on in a line: `a.b().` gives (a, b()); () if it is more than names and calls."""
    found: dict[tuple[str, ...], None] = {}
    for call in re.finditer(_RECEIVER % re.escape(name), line[:MAX_LINE_CHARS]):
        before, chain = line[: call.start()].rstrip(), re.sub(r"\([^()]*\)", "()", call[1])
        parts = tuple(re.split(_STEP, chain)[:-1])
        found[() if before.endswith((")", "]", "}", "'", '"', ".", "->", "::")) else parts] = None
    return list(found) or [()]


def _plainly_meant(
    resolver: Resolver,
    path: str,
    facts: FileFacts,
    place: DefinitionPlace,
    name: str,
    how: int,
    inside: set[int],
) -> tuple[DefinitionPlace, ...] | None:
    """What a name means that is called alone, or after `self`; None if that is not known."""
    if how == CALL:
        nested = tuple(
            DefinitionPlace(path, facts, n) for n in facts.defined(name) if facts.definition(n).parent in inside
        )
        places = nested or resolver.seen_from(path, facts, name)
        # In Python the rest is a built-in, or a local variable.
        return places if places or facts.language == "python" else None
    around = resolver.class_around(path, facts, place.number)
    places = () if around is None else resolver.member(around, name)
    return places or None

"""Finds what a method is called on: the classes that a name or an expression is an instance of.

Input: an expression such as `app`, `self.session` or `make_app().config`, and the definition that it is in. Output: the
definitions that a member of it may mean. Invariants: nothing is guessed from the member's name alone; what is said to
be an instance of something outside the repository has no definitions in it.

There is no type inference: a name is an instance if an annotation or an assignment such as `app = Flask(...)` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.tools.codesearch.answers.resolve import CONTAINERS, Found, Parts, Resolver
from slipstream.tools.codesearch.base import is_test
from slipstream.tools.codesearch.parsing.facts import FileFacts
from slipstream.tools.codesearch.parsing.python_source import RETURNED
from slipstream.tools.codesearch.tree import CodeTree, DefinitionPlace

MAX_FILES = 400
"""That are looked through for what a name is an instance of."""
MAX_FOUND = 4
Classes = list[DefinitionPlace]


class Instances:
    def __init__(self, tree: CodeTree, resolver: Resolver) -> None:
        self._code = tree.code
        self._resolver = resolver

    def find(self, parts: Parts) -> Found:
        """What a name such as `app.route` means anywhere in the repository, as `app` is an instance there."""
        head, *rest = parts[1:] if parts[0] in ("self", "cls") and len(parts) > 2 else parts
        if not rest:
            return Found()
        files = sorted(self._code.using(head), key=lambda item: (is_test(item[0]), item[0]))[:MAX_FILES]
        found: dict[DefinitionPlace, str] = {}
        for path, facts in files:
            for kind in dict.fromkeys(each.kind for each in facts.instances(head)):
                for place in self._member(self._through(self._named(path, facts, kind), rest[:-1]) or [], rest[-1]):
                    found.setdefault(place, f"{head} is an instance of {kind} in {path}")
        places = tuple(found)[:MAX_FOUND]
        return Found(places=places, how=found[places[0]]) if places else Found()

    def meant(
        self, path: str, facts: FileFacts, owner: int, receiver: Sequence[str], name: str
    ) -> tuple[DefinitionPlace, ...] | None:
        """The definitions of `name` as a member of `receiver`; None if it is not known what that is."""
        classes = self._classes(path, facts, owner, receiver)
        if classes:
            return self._member(classes, name)
        if not any(part.endswith("()") for part in receiver) and (
            places := self._resolver.seen_from(path, facts, ".".join((*receiver, name)))
        ):
            return places
        if classes is None and any(found.as_name == receiver[0] for found in facts.imports):
            return ()  # something that is imported from elsewhere
        return None if classes is None else ()

    # ---------------------------------------------------------------- step by step

    def _classes(self, path: str, facts: FileFacts, owner: int, receiver: Sequence[str]) -> Classes | None:
        """The classes that an expression is an instance of, or is; empty if it is one that is not in the repository,
        None if that is not known."""
        return self._through(self._first(path, facts, owner, receiver[0]), receiver[1:])

    def _first(self, path: str, facts: FileFacts, owner: int, head: str) -> Classes | None:
        around = self._resolver.class_around(path, facts, owner)
        if head in ("self", "cls", "this"):
            return None if around is None else [around]
        if head == "super()":
            return None if around is None else self._resolver.bases(around)
        scope = owner
        while not head.endswith("()"):
            if kinds := [each.kind for each in facts.instances(head) if each.owner == scope]:
                return [place for kind in kinds for place in self._named(path, facts, kind)]
            if scope < 0:
                break
            scope = facts.definition(scope).parent
        places = self._resolver.seen_from(path, facts, head.removesuffix("()"))
        if facts.language != "python" and not places:
            places = tuple(place for place in self._code.defined(head) if place.definition.kind in CONTAINERS)
        return self._made(places)

    def _through(self, classes: Classes | None, parts: Iterable[str]) -> Classes | None:
        for part in parts:
            if not classes:
                return classes
            if part.endswith("()"):
                classes = self._made(self._member(classes, part[:-2]))
            else:
                classes = self._attribute(classes, part)
        return classes

    def _attribute(self, classes: Classes, name: str) -> Classes | None:
        """The classes of an attribute, as the class itself or one that it derives from says."""
        for each in classes:
            if kinds := [found.kind for found in each.facts.instances(name) if found.owner == each.number]:
                return [place for kind in kinds for place in self._named(each.path, each.facts, kind)]
        if places := self._member(classes, name):
            return self._made(places)
        bases = [base for each in classes for base in self._resolver.bases(each)]
        return self._attribute(bases, name) if bases else None

    def _made(self, places: Sequence[DefinitionPlace]) -> Classes | None:
        """The classes themselves, or what functions and properties say that they return, or what variables are."""
        found: Classes = []
        is_known = False
        for place in places:
            if place.definition.kind in CONTAINERS:
                found.append(place)
                continue
            definition = place.definition
            is_value = definition.kind in ("variable", "field", "attribute")
            name, owner = (definition.name, definition.parent) if is_value else (RETURNED, place.number)
            for each in place.facts.instances(name):
                if each.owner == owner:
                    is_known = True
                    found += self._named(place.path, place.facts, each.kind)
        return found if found or is_known else None

    def _named(self, path: str, facts: FileFacts, kind: str) -> Classes:
        return [place for place in self._resolver.seen_from(path, facts, kind) if place.definition.kind in CONTAINERS]

    def _member(self, classes: Classes, name: str) -> tuple[DefinitionPlace, ...]:
        for each in classes:
            if places := self._resolver.member(each, name):
                return places
        return ()

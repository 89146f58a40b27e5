"""Base: the index of one set of files, shared by every rollout that has the same.

Input: paths with their Facts. Output: which files define a name, and which use it. Invariants: it never changes; what
is derived later (lower-case names, words) is derived once, from the index alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b

from slipstream.tools.codesearch.parsing.facts import FileFacts

DEF_BITS = 18


class Base:
    def __init__(
        self, facts: Mapping[str, FileFacts], hashes: Mapping[str, bytes], left_out: Mapping[str, str]
    ) -> None:
        self.paths = tuple(sorted(facts))
        self.hashes = dict(hashes)
        """The hash of every file that was read, including files left out."""
        self.left_out = dict(left_out)
        self.key = key_of(hashes)
        self.facts = {path: facts[path] for path in self.paths}
        self.defined: dict[str, list[int]] = {}
        """Name -> where it is defined: (number of the path << DEF_BITS) + number of the definition."""
        self.used: dict[str, list[int]] = {}
        """Name -> the numbers of the paths whose files define or use it."""
        for number, path in enumerate(self.paths):
            self._add(number, self.facts[path])

    def _add(self, number: int, facts: FileFacts) -> None:
        used, defined, names = self.used, self.defined, facts.names
        for name in names:
            if name in used:
                used[name].append(number)
            else:
                used[name] = [number]
        place = number << DEF_BITS
        for name_number in facts.def_names():
            name = names[name_number]
            if name in defined:
                defined[name].append(place)
            else:
                defined[name] = [place]
            place += 1

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        total = 0
        for facts in self.facts.values():
            total += len(facts.text) + 8 * len(facts.refs) + 4 * len(facts.defs) + 60 * len(facts.names) + 1000
        return total

    @cached_property
    def unparsed(self) -> Mapping[str, str]:
        return {path: facts.error for path, facts in self.facts.items() if facts.error}

    @cached_property
    def lower(self) -> Mapping[str, tuple[str, ...]]:
        """Defined names by their lower-case form."""
        return by_lower(self.defined)

    @cached_property
    def stems(self) -> Mapping[str, tuple[str, ...]]:
        """Paths by the last part of the module that they are."""
        return by_stem(self.paths)


def key_of(hashes: Mapping[str, bytes]) -> bytes:
    """A key for the content of a whole tree."""
    whole = blake2b(digest_size=16)
    for path in sorted(hashes):
        whole.update(path.encode() + b"\0" + hashes[path])
    return whole.digest()


def by_lower(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        lower = name.lower()
        found[lower] = (*found.get(lower, ()), name)
    return found


def module_of(path: str) -> tuple[str, ...]:
    """`a/b/c.py` -> (a, b, c); a package's `__init__` is the package."""
    parts = path.split("/")
    parts[-1] = parts[-1].split(".")[0]
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return tuple(parts)


def is_test(path: str) -> bool:
    """Whether a file is for tests, judging by its name: it is shown last."""
    *folders, name = path.split("/")
    stem = name.partition(".")[0]
    return (
        name.startswith(("test_", "conftest."))
        or stem == "tests"
        or stem.endswith(("_test", "_tests"))
        or (name.endswith(".java") and stem.endswith(("Test", "Tests")))
        or ".test." in name
        or ".spec." in name
        or not {"test", "tests", "__tests__"}.isdisjoint(folders)
    )


def by_stem(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(module_of(path)[-1], []).append(path)
    return {stem: tuple(some) for stem, some in found.items()}

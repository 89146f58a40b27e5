"""The files of one rollout as they are now: a shared base, and what differs from it.

Input: Files. Output: Facts by path, and places by name. Invariants: after `refresh`, every answer is that of a new
index of the files; only files whose stamps changed were read again; a rollout owns only its changes and its stamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slipstream.tools.codesearch.base import DEF_BITS, Base, by_lower, by_stem, module_of
from slipstream.tools.codesearch.files import DOUBT_NS, Files, Stamp
from slipstream.tools.codesearch.parsing.facts import Definition, FileFacts
from slipstream.tools.codesearch.parsing.languages import language_of
from slipstream.tools.codesearch.store import NEAR_SHARE, PENDING, Loaded, Store, differences

MAX_PENDING = 5000
_DEF_MASK = (1 << DEF_BITS) - 1


class DefinitionPlace(NamedTuple):
    """A definition, and the file it is in."""

    path: str
    facts: FileFacts
    number: int

    @property
    def definition(self) -> Definition:
        return self.facts.definition(self.number)

    @property
    def qualified(self) -> tuple[str, ...]:
        return self.facts.qualified(self.number)

    @property
    def full(self) -> tuple[str, ...]:
        """Its name, with the module before it."""
        return module_of(self.path) + self.qualified

    @property
    def order(self) -> tuple[str, int]:
        return (self.path, self.number)


class FileLayer:
    """Part of a rollout's files: code, or the others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base: Base | None = None
        self._stamps: dict[str, int] = {}
        """The hash of each file's stamp when it was last read."""
        self._doubtful: set[str] = set()
        self._over: dict[str, FileFacts | None] = {}
        """What differs from the base; None if the file is gone."""
        self._over_hashes: dict[str, bytes] = {}
        self._over_left_out: dict[str, str] = {}

    # ---------------------------------------------------------------- keeping up

    def refresh(self, files: Files, stamps: Mapping[str, Stamp], *, again: bool = False) -> int:
        """Update from the files; returns how many were read."""
        now_ns = files.now_ns()
        if self._base is None:
            self._start(files, stamps, now_ns)
            return len(stamps)
        known = self._stamps
        stale = self.stale(stamps, again=again)
        gone = [path for path in known if path not in stamps] if len(known) + len(stale) > len(stamps) else []
        for path in gone:
            self._forget(path)
        if stale:
            self._update(files, stale, now_ns)
            if len(self._over) > max(16, 2 * NEAR_SHARE * len(stamps)) and not self._pending():
                self._start(files, stamps, now_ns)
        return len(stale)

    def stale(self, stamps: Mapping[str, Stamp], *, again: bool = False) -> dict[str, Stamp]:
        """The files that must be read again. `again`: within the same query, so pending files have to wait."""
        known = self._stamps
        stale = {path: stamp for path, stamp in stamps.items() if known.get(path) != hash(stamp)}
        pending = [] if again else self._pending()
        stale.update((path, stamps[path]) for path in (*self._doubtful, *pending) if path in stamps)
        return stale

    def _pending(self) -> list[str]:
        """Files that there was no time to parse, as many as are tried at once."""
        return [path for path, why in self.unparsed.items() if why == PENDING][:MAX_PENDING]

    def _start(self, files: Files, stamps: Mapping[str, Stamp], now_ns: int) -> None:
        base, loaded = self._store.base_for(files, stamps)
        self._base = base
        self._over, self._over_hashes, self._over_left_out = {}, {}, {}
        for path in differences(base, loaded.hashes):
            if path in loaded.hashes:
                self._put(path, loaded)
            else:
                self._over[path] = None
        self._stamps = {}
        self._note_stamps({path: stamps[path] for path in loaded.hashes}, now_ns)

    def _update(self, files: Files, stale: Mapping[str, Stamp], now_ns: int) -> None:
        assert self._base is not None
        pending = set(self._pending())
        hashes = {path: self._hash(path) for path in stale if path not in pending}
        known = {path: known for path, known in hashes.items() if known is not None}
        loaded = self._store.load(files, stale, known)
        for path in stale:
            if path not in loaded.hashes:
                self._forget(path)
            elif known.get(path) != loaded.hashes[path]:
                if self._base.hashes.get(path) == loaded.hashes[path] and path not in pending:
                    self._drop(path)  # as it was before
                else:
                    self._put(path, loaded)
        self._note_stamps({path: stamp for path, stamp in stale.items() if path in loaded.hashes}, now_ns)

    def _note_stamps(self, stamps: Mapping[str, Stamp], now_ns: int) -> None:
        self._stamps.update((path, hash(stamp)) for path, stamp in stamps.items())
        self._doubtful.difference_update(stamps)
        self._doubtful.update(path for path, stamp in stamps.items() if stamp[1] > now_ns - DOUBT_NS)

    def _hash(self, path: str) -> bytes | None:
        if path in self._over:
            return self._over_hashes.get(path)
        return self._base.hashes.get(path) if self._base is not None else None

    def _drop(self, path: str) -> None:
        self._over.pop(path, None)
        self._over_hashes.pop(path, None)
        self._over_left_out.pop(path, None)

    def _put(self, path: str, loaded: Loaded) -> None:
        self._drop(path)
        self._over[path] = loaded.facts.get(path)
        self._over_hashes[path] = loaded.hashes[path]
        if path in loaded.left_out:
            self._over_left_out[path] = loaded.left_out[path]

    def _forget(self, path: str) -> None:
        self._drop(path)
        self._stamps.pop(path, None)
        self._doubtful.discard(path)
        if self._base is not None and path in self._base.hashes:
            self._over[path] = None

    # ---------------------------------------------------------------- asking

    @property
    def num_changed(self) -> int:
        return len(self._over)

    @property
    def base(self) -> Base | None:
        return self._base

    @property
    def left_out(self) -> dict[str, str]:
        base = {} if self._base is None else self._base.left_out
        kept = {path: why for path, why in base.items() if path not in self._over}
        return {**kept, **self._over_left_out}

    @property
    def unparsed(self) -> dict[str, str]:
        base = {} if self._base is None else self._base.unparsed
        kept = {path: why for path, why in base.items() if path not in self._over}
        return kept | {path: facts.error for path, facts in self.changed().items() if facts.error}

    def get(self, path: str) -> FileFacts | None:
        if path in self._over:
            return self._over[path]
        return None if self._base is None else self._base.facts.get(path)

    def items(self) -> Iterator[tuple[str, FileFacts]]:
        """Every file, in any order."""
        if self._base is not None:
            for path, facts in self._base.facts.items():
                if path not in self._over:
                    yield path, facts
        for path, changed in self._over.items():
            if changed is not None:
                yield path, changed

    def changed(self) -> dict[str, FileFacts]:
        return {path: facts for path, facts in self._over.items() if facts is not None}

    def defined(self, name: str) -> list[DefinitionPlace]:
        """Where a name is defined, in order."""
        found: list[DefinitionPlace] = []
        base = self._base
        if base is not None:
            for packed in base.defined.get(name, ()):
                path = base.paths[packed >> DEF_BITS]
                if path not in self._over:
                    found.append(DefinitionPlace(path, base.facts[path], packed & _DEF_MASK))
        for path, facts in self.changed().items():
            found += [DefinitionPlace(path, facts, number) for number in facts.defined(name)]
        return sorted(found, key=lambda place: place.order) if self._over else found

    def using(self, name: str) -> list[tuple[str, FileFacts]]:
        """The files that define or use a name, in order."""
        found: list[tuple[str, FileFacts]] = []
        base = self._base
        if base is not None:
            paths = [base.paths[number] for number in base.used.get(name, ())]
            found = [(path, base.facts[path]) for path in paths if path not in self._over]
        found += [(path, facts) for path, facts in self.changed().items() if name in facts.names]
        return sorted(found, key=lambda item: item[0]) if self._over else found

    def spelt(self, name: str) -> list[str]:
        """Defined names that differ from this one only in case."""
        lower = name.lower()
        found = set(() if self._base is None else self._base.lower.get(lower, ()))
        for facts in self.changed().values():
            found.update(by_lower(facts.names).get(lower, ()))
        return sorted(found)

    def def_names(self) -> set[str]:
        """Every defined name; may include some that are gone."""
        found = set(() if self._base is None else self._base.defined)
        for facts in self.changed().values():
            found.update(facts.names[number] for number in facts.def_names())
        return found

    def modules(self, stem: str) -> list[str]:
        """The paths of the modules with that last part."""
        found = set(() if self._base is None else self._base.stems.get(stem, ()))
        found = {path for path in found if path not in self._over}
        return sorted(found | set(by_stem(self.changed()).get(stem, ())))


class CodeTree:
    """All files of a rollout: `refresh` before each query."""

    def __init__(self, files: Files, store: Store) -> None:
        self._files = files
        self.code = FileLayer(store)
        self.texts = FileLayer(store)

    def refresh(self, *, code_only: bool = False, again: bool = False) -> int:
        """Update the index; returns how many files were read. With `code_only`, other files are left as they are.
        `again`: for the same query."""
        stamps = self._files.stat(code_only=code_only)
        if code_only:
            return self.code.refresh(self._files, stamps, again=again)
        code = {path: stamp for path, stamp in stamps.items() if language_of(path)}
        texts = {path: stamp for path, stamp in stamps.items() if path not in code}
        num_read = self.code.refresh(self._files, code, again=again)
        return num_read + self.texts.refresh(self._files, texts)

    def stale(self, stamps: Mapping[str, Stamp]) -> list[str]:
        """The paths that the next `refresh` would read."""
        code = {path: stamp for path, stamp in stamps.items() if language_of(path)}
        texts = {path: stamp for path, stamp in stamps.items() if path not in code}
        return sorted([*self.code.stale(code), *self.texts.stale(texts)])

    def get(self, path: str) -> FileFacts | None:
        return self.code.get(path) or self.texts.get(path)

    def items(self) -> list[tuple[str, FileFacts]]:
        """Every file that was checked, by path."""
        return sorted([*self.code.items(), *self.texts.items()], key=lambda item: item[0])

    def paths(self) -> list[str]:
        return [path for path, _ in self.items()]

    @property
    def left_out(self) -> dict[str, str]:
        """Path -> why it is not in the index at all."""
        return {**self._files.left_out, **self.code.left_out, **self.texts.left_out}

    @property
    def unparsed(self) -> dict[str, str]:
        """Path of code -> why not all of its definitions are known."""
        return self.code.unparsed

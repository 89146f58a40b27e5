"""What all rollouts of this process share: parsing processes, Facts by content, and bases.

Input: the bytes of files. Output: their Facts, each parsed once however many trees have it. Invariant: when the bases
grow too large together, the least recently used ones are dropped; one in use lives on with its users.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from weakref import WeakValueDictionary

from slipstream.errors import SandboxError, SandboxFileError, SandboxLimitError
from slipstream.tools.codesearch.base import Base, key_of
from slipstream.tools.codesearch.files import MAX_FILE_BYTES, Files, Read, Stamp
from slipstream.tools.codesearch.parsing.facts import BadReply, FileFacts, decode, plain
from slipstream.tools.codesearch.parsing.languages import installed_grammars, language_of
from slipstream.tools.codesearch.parsing.parsers import NO_TIME, Job, Lost, Parsers

MAX_TREE_BYTES = 512 << 20
NEAR_SHARE = 0.2
"""A tree that differs from a base in fewer files than this is stored as that base with changes."""
BINARY = "binary"
NOT_PARSED = "not parsed: "
PENDING = NOT_PARSED + NO_TIME
LATER_TIMEOUT_S = 5.0
MINIFIED_BYTES = 2000
MINIFIED_LINE_BYTES = 300
_BINARY_PEEK = 8192


@dataclass(slots=True, kw_only=True)
class Loaded:
    """The result of reading some files."""

    facts: dict[str, FileFacts] = field(default_factory=dict)
    hashes: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def content_hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


class Store:
    def __init__(
        self, parsers: Parsers | None = None, *, max_base_bytes: int = 2 << 30, parse_timeout_s: float = 45.0
    ) -> None:
        self.parsers = Parsers(languages=installed_grammars()) if parsers is None else parsers
        self._max_base_bytes = max_base_bytes
        self._parse_timeout_s = parse_timeout_s
        self._facts: WeakValueDictionary[tuple[bytes, str], FileFacts] = WeakValueDictionary()
        self._bases: OrderedDict[bytes, Base] = OrderedDict()
        self._lock = threading.Lock()
        self._building = threading.Lock()
        """Rollouts that start together on one repository parse it once."""

    def close(self) -> None:
        self.parsers.close()

    @property
    def num_bases(self) -> int:
        return len(self._bases)

    def load(
        self, files: Files, stamps: Mapping[str, Stamp], known: Mapping[str, bytes], timeout_s: float = LATER_TIMEOUT_S
    ) -> Loaded:
        """Read files and parse those with new content. `known` are hashes: a file that still has its own is returned
        with its hash only. What is not parsed in time is there as text, with the error PENDING."""
        loaded = Loaded()
        texts: dict[str, bytes] = {}
        room = MAX_TREE_BYTES
        wanted = _big_first(stamps)

        def jobs() -> Iterator[Job]:
            nonlocal room
            with files.reading() as read:
                for path in wanted:
                    text = _read(read, path, stamps[path], room, loaded)
                    if text is None or known.get(path) == loaded.hashes[path]:
                        continue
                    room -= len(text)
                    language = language_of(path)
                    if self._settle(path, text, language, loaded):
                        continue
                    texts[path] = text
                    yield Job(key=path, header={"op": "parse", "language": language}, data=text)

        pool: dict[str, str] = {}
        width = 1 + len(stamps) // 8
        for job, reply in self.parsers.run(jobs(), timeout_s=timeout_s, width=width):
            text, language = texts.pop(job.key), language_of(job.key)
            try:
                if isinstance(reply, Lost):
                    raise BadReply(reply.reason)
                facts = decode(text, language, reply.header, reply.blob, pool)
                self._facts[loaded.hashes[job.key], language] = facts
            except BadReply as bad:
                facts = plain(text, language, error=f"{NOT_PARSED}{bad}")
            loaded.facts[job.key] = facts
        return loaded

    def text_of(self, digest: bytes, language: str) -> bytes | None:
        """The content with that hash, if a tree has it."""
        facts = self._facts.get((digest, language))
        return None if facts is None else facts.text

    def _settle(self, path: str, text: bytes, language: str, loaded: Loaded) -> bool:
        """Whether a file needs no parsing: its content is known, or it is not code."""
        known = self._facts.get((loaded.hashes[path], language))
        if known is not None:
            loaded.facts[path] = known
        elif b"\0" in text[:_BINARY_PEEK]:
            loaded.left_out[path] = BINARY
        elif language != "python" and _is_minified(text):
            loaded.facts[path] = plain(text, language, f"{NOT_PARSED}minified")
        elif language == "python" or language in self.parsers.languages:
            return False
        else:
            error = f"{NOT_PARSED}no grammar for {language}, pip install 'slipstream[code]'" if language else ""
            loaded.facts[path] = facts = plain(text, language, error)
            self._facts[loaded.hashes[path], language] = facts
        return True

    def base_for(self, files: Files, stamps: Mapping[str, Stamp]) -> tuple[Base, Loaded]:
        """A base that is similar to these files, and the files in which they differ."""
        with self._building:
            loaded = self.load(files, stamps, {}, self._parse_timeout_s)
            base = self._nearest(loaded)
            if base is None:
                base = Base(loaded.facts, loaded.hashes, loaded.left_out)
                self._keep(base)
            return base, loaded

    def _nearest(self, loaded: Loaded) -> Base | None:
        with self._lock:
            bases = list(self._bases.values())
        if not any(facts.error == PENDING for facts in loaded.facts.values()):
            bases = [base for base in bases if PENDING not in base.unparsed.values()]
        key = key_of(loaded.hashes)
        for base in bases:
            if base.key == key:
                return self._used(base)
        best, best_differing = None, NEAR_SHARE * len(loaded.hashes)
        for base in bases:
            same = sum(map(loaded.hashes.__contains__, base.hashes))
            if max(len(base.hashes), len(loaded.hashes)) - same < best_differing:
                differing = len(differences(base, loaded.hashes))
                if differing < best_differing:
                    best, best_differing = base, differing
        return None if best is None else self._used(best)

    def _used(self, base: Base) -> Base:
        with self._lock:
            if base.key in self._bases:
                self._bases.move_to_end(base.key)
        return base

    def _keep(self, base: Base) -> None:
        with self._lock:
            self._bases[base.key] = base
            sizes = {key: kept.num_bytes for key, kept in self._bases.items()}
            while sum(sizes.values()) > self._max_base_bytes and len(self._bases) > 1:
                del sizes[self._bases.popitem(last=False)[0]]


def differences(base: Base, hashes: Mapping[str, bytes]) -> set[str]:
    """The paths at which a base and a tree differ."""
    return {path for path, _ in base.hashes.items() ^ hashes.items()}


def _big_first(stamps: Mapping[str, Stamp]) -> list[str]:
    """Longest files first, so that no process is left with the longest file at the end."""
    return sorted(stamps, key=lambda path: (-stamps[path][0], path))


def _read(read: Read, path: str, stamp: Stamp, room: int, loaded: Loaded) -> bytes | None:
    """The bytes of a file; None if it is gone or left out."""
    size = stamp[0]
    if size > MAX_FILE_BYTES:
        loaded.hashes[path] = b"large" + repr(size).encode()
        loaded.left_out[path] = f"larger than {MAX_FILE_BYTES // 1000} kB"
        return None
    if size > room:
        loaded.hashes[path] = b"room"
        loaded.left_out[path] = f"more than {MAX_TREE_BYTES >> 20} MB of text in all"
        return None
    try:
        text = read(path)
    except (SandboxError, SandboxFileError, SandboxLimitError):
        return None
    loaded.hashes[path] = content_hash(text)
    return text


def _is_minified(text: bytes) -> bool:
    """Whether its lines are too long to be written by hand."""
    return len(text) > MINIFIED_BYTES and len(text) > MINIFIED_LINE_BYTES * (1 + text.count(b"\n"))


def summary(left_out: Mapping[str, str], limit: int = 3) -> str:
    """A line that says how many files were left out, and why."""
    reasons = Counter(left_out.values())
    parts = []
    for reason, number in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:limit]:
        example = min(path for path, why in left_out.items() if why == reason)
        parts.append(f"{example}{f' and {number - 1} more' if number > 1 else ''} ({reason})")
    more = f"; and {len(reasons) - limit} other reasons" if len(reasons) > limit else ""
    return "; ".join(parts) + more

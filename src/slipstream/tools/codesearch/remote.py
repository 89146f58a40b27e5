"""The files of any sandbox, through a small program that runs inside it (`sandbox_program.py`).

Input: a Sandbox with python3. Output: Files for one query. Invariants: a file is transferred only if no tree of this
process has its content; the program's output is untrusted: it is bounded, checked, and only about the sandbox's own
files.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slipstream.bounded import inflate
from slipstream.errors import SandboxFileError, ToolError
from slipstream.offload import WorkTooLarge, by_size
from slipstream.sandbox.base import Sandbox
from slipstream.tools.codesearch.files import MAX_FILE_BYTES, MAX_FILES, Read, Stamp
from slipstream.tools.codesearch.parsing.languages import BINARY_SUFFIXES, SKIPPED_FOLDERS, language_of
from slipstream.tools.codesearch.store import Store
from slipstream.tools.codesearch.tree import CodeTree
from slipstream.types import Json

MAX_REPLY_BYTES = 64 << 20
BATCH_BYTES = 8 << 20
PYTHON = "python3"
_PROGRAM = Path(__file__).with_name("sandbox_program.py")
_HASH = re.compile(r"(?:[0-9a-f]{32})?")


class FetchedFiles:
    """Files as the sandbox reported them: `await fetch(...)` before each query."""

    def __init__(self, sandbox: Sandbox, store: Store, root: str = ".") -> None:
        self._sandbox = sandbox
        self._store = store
        self._root = root
        self._stamps: dict[str, Stamp] = {}
        self._left_out: dict[str, str] = {}
        self._now_ns = 0
        self._bytes: dict[str, bytes] = {}
        self._hashes: dict[str, str] = {}

    @property
    def left_out(self) -> Mapping[str, str]:
        return self._left_out

    def now_ns(self) -> int:
        return self._now_ns

    def stat(self, *, code_only: bool = False) -> Mapping[str, Stamp]:
        if not code_only:
            return self._stamps
        return {path: stamp for path, stamp in self._stamps.items() if language_of(path)}

    @contextmanager
    def reading(self) -> Iterator[Read]:
        yield self._read

    def _read(self, path: str) -> bytes:
        if path in self._bytes:
            return self._bytes[path]
        known_hash = self._hashes.get(path)
        if known_hash == "":
            return b"\0"  # it is binary, which is all that matters
        text = None if known_hash is None else self._store.text_of(bytes.fromhex(known_hash), language_of(path))
        if text is None:
            raise SandboxFileError(f"{path} could not be read")
        return text

    async def fetch(self, tree: CodeTree, timeout_s: float) -> None:
        """Find out what changed, and get it. Raises ToolError if the sandbox cannot answer."""
        async with asyncio.timeout(timeout_s):
            reply, _ = await self._ask(
                {
                    "op": "stat",
                    "skipped": [*sorted(SKIPPED_FOLDERS)],
                    "binary": [*sorted(BINARY_SUFFIXES)],
                    "max_files": MAX_FILES,
                },
                timeout_s,
            )
            self._stamps, self._left_out = _stamps(reply.get("files")), _reasons(reply.get("left_out"))
            now_ns = reply.get("now_ns")
            self._now_ns = now_ns if isinstance(now_ns, int) else 0
            self._bytes, self._hashes = {}, {}
            stale = [path for path in tree.stale(self._stamps) if self._stamps[path][0] <= MAX_FILE_BYTES]
            for batch in _batches(stale, self._stamps, 8 * BATCH_BYTES):
                reply, _ = await self._ask({"op": "hash", "paths": batch}, timeout_s)
                self._hashes.update(_hashes(reply.get("hashes"), batch))
            unknown = [path for path in stale if self._is_unknown(path)]
            for batch in _batches(unknown, self._stamps, BATCH_BYTES):
                reply, blob = await self._ask({"op": "read", "paths": batch}, timeout_s)
                self._bytes.update(_split(reply.get("sizes"), blob))

    def _is_unknown(self, path: str) -> bool:
        known_hash = self._hashes.get(path)
        return bool(known_hash) and self._store.text_of(bytes.fromhex(known_hash or ""), language_of(path)) is None

    async def _ask(self, request: dict[str, Json], timeout_s: float) -> tuple[dict[str, Json], bytes]:
        stdin = json.dumps({**request, "root": self._root, "max_bytes": MAX_FILE_BYTES}).encode()
        argv = [PYTHON, "-I", "-S", "-c", _PROGRAM.read_text("utf-8")]
        result = await self._sandbox.exec(argv, stdin=stdin, timeout_s=timeout_s, max_output_bytes=2 * MAX_REPLY_BYTES)
        if result.exit_code == 127:
            raise ToolError(f"search: the sandbox has no {PYTHON}: look with other tools")
        if result.exit_code != 0 or result.stdout.num_left_out:
            why = result.stderr.text().strip().rpartition("\n")[2]
            raise ToolError(f"search: the files could not be listed in the sandbox: {why[:200] or 'it took too long'}")
        data = result.stdout.head + result.stdout.tail
        try:  # packed, it may be much smaller than the files to be read
            return await by_size(_unpacked, data, num_bytes=16 * len(data))
        except WorkTooLarge as raised:
            raise ToolError(f"search: the files of the sandbox are too many to look at: {raised}") from raised


def _unpacked(data: bytes) -> tuple[dict[str, Json], bytes]:
    try:
        whole = inflate(data, MAX_REPLY_BYTES, "the answer")
        line, _, blob = whole.partition(b"\n")
        reply = json.loads(line)
    except (zlib.error, ValueError, RecursionError):
        raise ToolError(f"search: {PYTHON} in the sandbox gave no proper answer: look with other tools") from None
    return (reply if isinstance(reply, dict) else {}), blob


def _batches(paths: Sequence[str], stamps: Mapping[str, Stamp], max_bytes: int) -> Iterator[list[Json]]:
    batch: list[Json] = []
    room = max_bytes
    for path in paths:
        if batch and stamps[path][0] > room:
            yield batch
            batch, room = [], max_bytes
        batch.append(path)
        room -= stamps[path][0]
    if batch:
        yield batch


def _stamps(given: Json) -> dict[str, Stamp]:
    found: dict[str, Stamp] = {}
    for path, stamp in given.items() if isinstance(given, dict) else ():
        match stamp:
            case [int(size), int(changed_ns), int(inode)] if size >= 0 and len(path) < 4096:
                found[path] = (size, changed_ns, inode)
    return found


def _reasons(given: Json) -> dict[str, str]:
    items = given.items() if isinstance(given, dict) else ()
    return {path: why[:200] for path, why in items if isinstance(why, str) and len(path) < 4096}


def _hashes(given: Json, asked: Sequence[Json]) -> dict[str, str]:
    items = given.items() if isinstance(given, dict) else ()
    wanted = set(map(str, asked))
    return {
        path: found for path, found in items if path in wanted and isinstance(found, str) and _HASH.fullmatch(found)
    }


def _split(sizes: Json, blob: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    at = 0
    for item in sizes if isinstance(sizes, list) else []:
        match item:
            case [str(path), int(size)] if 0 <= size <= len(blob) - at:
                found[path] = blob[at : at + size]
                at += size
            case _:
                break
    return found

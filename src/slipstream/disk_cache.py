"""A cache of answers in one SQLite file, limited in size and shared by processes.

Input: keys, made with `key_of` from whatever the answer depends on, and bytes. Output: the bytes, or None.
Invariants: what was used longest ago goes first; a file that is damaged or of another version is replaced by an empty
one; a cache that cannot be written keeps nothing, and never fails its caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

log = logging.getLogger(__name__)

VERSION = 1
BUSY_TIMEOUT_S = 10.0


def key_of(*parts: object) -> str:
    """A key that differs if any of the parts, which are JSON, does."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class DiskCache:
    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes

    async def get(self, key: str) -> bytes | None:
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, value: bytes) -> None:
        await asyncio.to_thread(self._put, key, value)

    def _get(self, key: str) -> bytes | None:
        if not self.path.exists():
            return None
        try:
            with closing(self._open()) as file, file:
                row = file.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    file.execute("UPDATE entries SET used_s = ? WHERE key = ?", (time.time(), key))
        except (sqlite3.Error, OSError) as raised:
            log.warning("the cache %s cannot be read: %s", self.path, raised)
            return None
        return None if row is None else bytes(row[0])

    def _put(self, key: str, value: bytes) -> None:
        if len(value) > self._max_bytes:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._open()) as file, file:
                row = (key, value, len(value), time.time())
                file.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
                self._make_room(file)
        except (sqlite3.Error, OSError) as raised:
            log.warning("the cache %s cannot be written: %s", self.path, raised)

    def _make_room(self, file: sqlite3.Connection) -> None:
        (total,) = file.execute("SELECT SUM(num_bytes) FROM entries").fetchone()
        if total <= self._max_bytes:
            return
        for key, num_bytes in file.execute("SELECT key, num_bytes FROM entries ORDER BY used_s, rowid").fetchall():
            file.execute("DELETE FROM entries WHERE key = ?", (key,))
            total -= num_bytes
            if total <= self._max_bytes:
                return

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.OperationalError:  # locked for too long, or no such place: not damaged
            raise
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S)
        try:
            if file.execute("PRAGMA user_version").fetchone() != (VERSION,):
                self._make_tables(file)
        except BaseException:
            file.close()
            raise
        return file

    @staticmethod
    def _make_tables(file: sqlite3.Connection) -> None:
        with file:
            file.execute("BEGIN IMMEDIATE")
            if file.execute("PRAGMA user_version").fetchone() == (VERSION,):  # another process was faster
                return
            file.execute("DROP TABLE IF EXISTS entries")
            file.execute(
                "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, num_bytes INTEGER NOT NULL,"
                " used_s REAL NOT NULL)"
            )
            file.execute("CREATE INDEX entries_by_use ON entries (used_s, num_bytes)")
            file.execute(f"PRAGMA user_version = {VERSION}")

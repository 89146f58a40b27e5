"""The tables of a run store: creates, opens and checks a run's `run.db`.

A database that is missing, damaged, of another program or of an unknown version is refused with a ConfigError: every
connection returned from here is to a run store of SCHEMA_VERSION.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from slipstream.atomic import sync
from slipstream.errors import ConfigError
from slipstream.types import Json

SCHEMA_VERSION = 3
DATABASE_NAME = "run.db"
LOCK_NAME = "lock"

_PAGE_BYTES = 8192
"""A turn is one or two kilobytes: SQLite's usual 4096 would leave a fifth of the file empty."""

_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        phase TEXT NOT NULL,
        step INTEGER NOT NULL,
        task_id TEXT NOT NULL,
        sample INTEGER NOT NULL,
        seed INTEGER,
        weight INTEGER,
        group_size INTEGER,
        seq INTEGER UNIQUE,
        UNIQUE (phase, step, task_id, sample)
    )
    """,
    """
    CREATE TABLE turns (
        seq INTEGER PRIMARY KEY,
        is_event INTEGER NOT NULL,
        job INTEGER NOT NULL REFERENCES jobs (id),
        attempt INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        branch INTEGER NOT NULL,
        parent INTEGER,
        num_kept INTEGER NOT NULL,
        trainable INTEGER NOT NULL,
        fork TEXT,
        added BLOB NOT NULL,
        stop TEXT,
        sampled_ids BLOB,
        logprobs BLOB,
        version_runs BLOB,
        messages BLOB NOT NULL,
        UNIQUE (job, attempt, turn)
    )
    """,
    """
    CREATE TABLE artifacts (
        seq INTEGER PRIMARY KEY,
        job INTEGER NOT NULL REFERENCES jobs (id),
        attempt INTEGER NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (job, attempt)
    )
    """,
    """
    CREATE TABLE rollouts (
        seq INTEGER PRIMARY KEY,
        job INTEGER NOT NULL UNIQUE REFERENCES jobs (id),
        attempt INTEGER NOT NULL,
        body BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE steps (
        step INTEGER PRIMARY KEY,
        planned TEXT NOT NULL,
        taken TEXT,
        version INTEGER,
        metrics TEXT
    )
    """,
    "CREATE TABLE measured (step INTEGER, kind TEXT, metrics TEXT NOT NULL, PRIMARY KEY (step, kind))",
)
"""`seq` is the position of an event among all events of the run. A job known only by its key has neither that nor a
seed; a turn that arrived inside its rollout, without a TurnTaken, is not an event."""

_LATER_TABLES = {
    "cpu_samples": "at_s REAL NOT NULL, seconds REAL NOT NULL, percent REAL NOT NULL, cores REAL NOT NULL, "
    "own_cores REAL NOT NULL",
    "gpu_samples": "at_s REAL NOT NULL, seconds REAL NOT NULL, gpu INTEGER NOT NULL, percent REAL NOT NULL, "
    "memory_mb REAL NOT NULL",
    "engine_work": "at_s REAL NOT NULL, seconds REAL NOT NULL, num_steps INTEGER NOT NULL, num_rows INTEGER NOT NULL, "
    "num_held INTEGER NOT NULL, num_prompt INTEGER NOT NULL, took_s REAL NOT NULL, cpu_s REAL NOT NULL",
    "learner_work": "step INTEGER NOT NULL, work TEXT NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL",
}
"""Tables that a run of SCHEMA_VERSION may lack: created when it is opened for writing, and read as empty otherwise."""

_LATER_COLUMNS = {"cpu_samples": {"helper_cores": "REAL NOT NULL DEFAULT 0"}}
"""Columns that those tables may lack: added in the same way, and read as 0 otherwise."""


def database_path(folder: Path) -> Path:
    return folder / DATABASE_NAME


def run_folders(root: Path) -> list[Path]:
    """The folders directly below `root` that hold a run, by name."""
    if not root.is_dir():
        return []
    return sorted(folder for folder in root.iterdir() if database_path(folder).is_file())


def holds_run(folder: Path) -> bool:
    """Whether there is a database of any kind. One that was left half-created, without a table, does not count."""
    path = database_path(folder)
    if not path.exists():
        return False
    try:
        with closing(_connect(path, "ro")) as connection:
            return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    except sqlite3.Error:
        return True


def create_database(folder: Path, *, config: Json, created_s: float) -> sqlite3.Connection:
    """Create a run store in `folder`, open for writing; its tables and config are durable."""
    path = database_path(folder)
    if holds_run(folder):
        raise ConfigError(f"{folder} already holds a run: open it to resume, or choose another folder")
    with _creating(path):
        connection = _open_for_writing(path, "rwc")
        try:
            meta: dict[str, Json] = {"schema_version": SCHEMA_VERSION, "config": config, "created_s": created_s}
            connection.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                connection.execute(table)
            _make_later_tables(connection)
            connection.executemany(
                "INSERT INTO meta (key, value) VALUES (?, ?)",
                [(key, json.dumps(value)) for key, value in meta.items()],
            )
            connection.execute("COMMIT")
            sync(folder.parent)
        except BaseException:
            connection.close()
            raise
    return connection


def open_database(folder: Path) -> sqlite3.Connection:
    """Open the run store in `folder`, which was checked before, for writing."""
    path = database_path(folder)
    with refusing_damage(path):
        connection = _open_for_writing(path, "rw")
        try:
            _make_later_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether a run has this table."""
    return bool(
        connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()[
            0
        ]
    )


def has_column(connection: sqlite3.Connection, table: str, name: str) -> bool:
    return any(row[1] == name for row in connection.execute(f"PRAGMA table_info({table})"))


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that sees one consistent state, even while the run is written."""
    path = database_path(folder)
    if not path.is_file():
        raise ConfigError(f"there is no run in {folder}: {_runs_beside(folder)}")
    with refusing_damage(path), closing(_connect(path, "ro")) as connection:
        connection.execute("BEGIN")
        yield connection


def check_database(folder: Path) -> None:
    """Refuse what is not a run store of SCHEMA_VERSION."""
    path = database_path(folder)
    with reading(folder) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        row = None
        if "meta" in tables:
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        found = None if row is None else json.loads(row[0])
    if found is None:
        raise ConfigError(
            f"{path} is not a run store: it has no schema version (expected {SCHEMA_VERSION}); "
            "name a folder that `slipstream train` or `slipstream eval` created"
        )
    if found != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {found}, and this Slipstream reads version {SCHEMA_VERSION}: "
            "use the Slipstream that wrote it, or a newer one"
        )


@contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the codec into a ConfigError that names `path`."""
    try:
        yield
    except (sqlite3.Error, zlib.error, ValueError, LookupError, TypeError) as raised:
        raise ConfigError(
            f"{path} cannot be read as a run store of version {SCHEMA_VERSION} ({raised}): "
            "the file is damaged, truncated or something else; restore it from a copy, or start a new run"
        ) from raised


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # A connection is used by one thread at a time, though not always the same: Python forbids that by default.
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _open_for_writing(path: Path, mode: str) -> sqlite3.Connection:
    connection = _connect(path, mode)
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _make_later_tables(connection: sqlite3.Connection) -> None:
    for name, columns in _LATER_TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
    for table, added in _LATER_COLUMNS.items():
        for name, kind in added.items():
            if not has_column(connection, table, name):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


@contextmanager
def _creating(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as raised:
        raise ConfigError(f"{path} cannot be created ({raised}): choose a writable folder") from raised


def _runs_beside(folder: Path) -> str:
    names = [beside.name for beside in run_folders(folder.parent)]
    if not names:
        return f"no run exists in {folder.parent}"
    return f"the runs in {folder.parent} are {', '.join(names)}"

"""Starts the process that runs the tests, and reports its results. A standalone program: standard library only.

Input: one JSON object on standard input. Output: one JSON object on standard output.
Invariants: this process imports only the standard library, from an interpreter started without `site` and without the
environment's search path (`-I -S`), so no code of the tree under test can run in it. Tests run in another interpreter
(`session.py`), whose standard output is not the report. Messages of that process are accepted only if they have the
right shape and this run's key.

The program is passed to the interpreter as text, so there is no file that the work could replace.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
from typing import Any

MAX_BYTES = 8 << 20
MAX_TEXT = 2_000
STATUSES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
PR_SET_DUMPABLE = 4


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    sys.path[:] = [path for path in sys.path if path]
    hide()
    before = fingerprints(asked["root"], asked["protect"])
    started = time.monotonic()
    report = run(asked)
    report["seconds"] = time.monotonic() - started
    after = fingerprints(asked["root"], asked["protect"])
    report["changed"] = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    write_all(1, json.dumps(report).encode())


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def hide() -> None:
    """Keep processes of the same user out of this process's memory and open files."""
    with contextlib.suppress(Exception):  # not available everywhere
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def fingerprints(root: str, patterns: list[str]) -> dict[str, tuple[int, ...]]:
    """Fingerprints of the test files, which show that a file was written to even if it was restored."""
    if not patterns:
        return {}
    wanted = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.DOTALL)
    found: dict[str, tuple[int, ...]] = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in ("__pycache__", ".git", ".pytest_cache", ".hypothesis")]
        for file in files:
            if not file.endswith((".py", ".ini", ".cfg", ".toml")):
                continue
            place = pathlib.Path(folder, file)
            path = os.path.relpath(place, root)
            if wanted.fullmatch(path):
                with contextlib.suppress(OSError):
                    seen = place.lstat()
                    found[path] = (seen.st_mode, seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns)
    return found


def shadowed(added: list[str], path: list[str]) -> list[str]:
    """The added modules that shadow another. Looks for files; imports nothing."""
    found = []
    for place in added:
        name = place[: -len("/__init__.py")] if place.endswith("/__init__.py") else place
        name = name.rpartition("/")[2].partition(".")[0]
        specs = [importlib.machinery.PathFinder.find_spec(name, [folder]) for folder in path]
        origins = {os.path.realpath(spec.origin) for spec in specs if spec is not None and spec.origin}
        if origins - {os.path.realpath(place)}:
            found.append(place)
    return found


# ---------------------------------------------------------------- the other process


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Start the session, check its search path, let it run the tests, and collect its messages until it reports its end
    or exits."""
    report: dict[str, Any] = {"tests": [], "errors": [], "strange": 0, "ended": False, "shadowed": []}
    reading, writing = os.pipe()
    session = subprocess.Popen(
        [sys.executable, "-s", "-B", "-c", asked["session"], str(writing)],
        stdin=subprocess.PIPE,
        stdout=2,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    lines = Lines(session, reading)
    try:
        first = lines.next()
        path = path_of(first)
        if path is None:
            report["missing"] = "the interpreter wrote nothing" if first is None else "the interpreter does not start"
            return report
        report["shadowed"] = shadowed(asked["added_modules"], path + asked["paths"])
        if not report["shadowed"]:
            send_request(
                session, {name: asked[name] for name in asked if name not in ("session", "protect", "added_modules")}
            )
            line = lines.next()
            while line is not None:
                add_message(line, asked["key"], report)
                line = None if report["ended"] else lines.next()
    finally:
        with contextlib.suppress(OSError):
            os.killpg(session.pid, signal.SIGKILL)
    return report


def path_of(line: bytes | None) -> list[str] | None:
    """The search path that the session reports first, before it imports anything."""
    try:
        sent = json.loads(line or b"")
        return [str(path) for path in sent["path"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def send_request(session: subprocess.Popen[bytes], asked: dict[str, Any]) -> None:
    assert session.stdin is not None
    with contextlib.suppress(OSError):  # it exited, which shows in its messages
        session.stdin.write(json.dumps(asked).encode())
        session.stdin.close()


class Lines:
    """The session's messages, line by line, up to a limit; None once it has ended or sent too much."""

    def __init__(self, session: subprocess.Popen[bytes], reading: int) -> None:
        self._session = session
        self._reading = reading
        self._rest = b""
        self._waiting: list[bytes] = []
        self._num_bytes = 0

    def next(self) -> bytes | None:
        is_over = False
        while not self._waiting and self._num_bytes <= MAX_BYTES:
            ready, _, _ = select.select([self._reading], [], [], 0 if is_over else 0.02)
            if not ready:
                if is_over:  # a process that it left running may hold the pipe open
                    return None
                is_over = self._session.poll() is not None
                continue
            data = os.read(self._reading, 1 << 16)
            if not data:
                return None
            self._num_bytes += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._waiting += lines
        return self._waiting.pop(0) if self._waiting else None


def add_message(line: bytes, key: str, report: dict[str, Any]) -> None:
    """Add one message to the report; anything else is counted as strange."""
    try:
        sent = json.loads(line)
        if type(sent) is not dict or sent.pop("key", None) != key:
            raise ValueError
        kind = next(iter(sent), "")
        if kind == "test" and set(sent) == {"test", "status", "text"}:
            test, status, text = (checked_text(sent[name]) for name in ("test", "status", "text"))
            if status not in STATUSES:
                raise ValueError
            report["tests"].append([test, status, text])
        elif kind in ("error", "missing") and len(sent) == 1:
            value = checked_text(sent[kind])
            if kind == "error":
                report["errors"].append(value)
            else:
                report["missing"] = value
        elif kind == "ended" and set(sent) == {"ended", "replaced"}:
            if type(sent["ended"]) is not int or type(sent["replaced"]) is not list:
                raise ValueError
            report.update(replaced=[checked_text(name) for name in sent["replaced"]], ended=True)
        else:
            raise ValueError
    except (ValueError, RecursionError):
        report["strange"] += 1


def checked_text(value: object) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ValueError
    value.encode()  # a surrogate raises a ValueError
    return value


if __name__ == "__main__":
    main()

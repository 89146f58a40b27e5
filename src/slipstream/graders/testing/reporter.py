"""Runs tests and reports them. One standalone program for the inside of a sandbox: standard library and pytest alone.

Enters: one JSON object on standard input. Leaves: one JSON object on standard output.
Always holds: the process that reads the results and writes the report never runs code under test; that runs in a fork,
whose standard output is not the report's, and which says with every result a key that was made for this run.

It is given to the interpreter as text, so there is no file that the work could have replaced, and nobody knows before
the run where its results go. What it cannot do is stated in `slipstream.graders.tests`: the fork's part of it shares a
process with the code under test.
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
import sys
import tempfile
import time
import types
from typing import Any

MAX_BYTES = 64 << 20
GUARDED = (
    "_pytest.runner",
    "_pytest.python",
    "_pytest.unittest",
    "_pytest.reports",
    "_pytest.outcomes",
    "_pytest.main",
    "pluggy._hooks",
    "pluggy._callers",
    "pluggy._manager",
    "unittest.case",
)
"""Modules whose functions nobody may replace while tests run."""
PR_SET_DUMPABLE = 4


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    report_fd = os.dup(1)
    sys.path[:] = [path for path in sys.path if path]
    base = list(sys.path)
    report: dict[str, Any] = {}
    try:
        sys.path[:] = search_path(asked)
        preload()
        report["shadowed"] = shadowed(asked["added_modules"], base + asked["paths"])
        before = fingerprints(asked["root"], asked["protect"])
        started = time.monotonic()
        report.update(run(asked, report_fd))
        report["seconds"] = time.monotonic() - started
        after = fingerprints(asked["root"], asked["protect"])
        report["changed"] = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    except ImportError as raised:
        report["missing"] = str(raised)
    write_all(report_fd, json.dumps(report).encode())


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def search_path(asked: dict[str, Any]) -> list[str]:
    """The standard library first, so that nothing stands before it; then what the task names, then the rest."""
    library = [path for path in sys.path if "site-packages" not in path and "dist-packages" not in path]
    rest = [path for path in sys.path if path not in library]
    return [*library, *asked["paths"], *rest, asked["root"]]


def preload() -> None:
    import _pytest.assertion.rewrite  # noqa: F401
    import pytest  # noqa: F401

    for name in GUARDED:
        with contextlib.suppress(ImportError):
            __import__(name)


def shadowed(added: list[str], path: list[str]) -> list[str]:
    """Of modules that the work adds, those that stand in the place of another."""
    found = []
    for place in added:
        name = place.removesuffix("/__init__.py").rpartition("/")[2].partition(".")[0]
        specs = [importlib.machinery.PathFinder.find_spec(name, [folder]) for folder in path]
        origins = {os.path.realpath(spec.origin) for spec in specs if spec is not None and spec.origin}
        if origins - {os.path.realpath(place)}:
            found.append(place)
    return found


def fingerprints(root: str, patterns: list[str]) -> dict[str, tuple[int, ...]]:
    """Of the files that tests are made of. They tell that a file was written to, even if it was put back."""
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


# ---------------------------------------------------------------- the process that reports


def run(asked: dict[str, Any], report_fd: int) -> dict[str, Any]:
    """Fork, and gather what the fork says until it says that it has ended, or has ended without a word."""
    hide(True)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.close(report_fd)
        try:
            run_tests(asked, writing)
        finally:
            os._exit(0)
    os.close(writing)
    gathered = gather(pid, reading, asked["key"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return gathered


def hide(hidden: bool) -> None:
    """Whether processes of the same user may look into this one."""
    with contextlib.suppress(Exception):  # where there is no such call, nothing is lost but this
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0 if hidden else 1, 0, 0, 0)


def gather(pid: int, reading: int, key: str) -> dict[str, Any]:
    report: dict[str, Any] = {"tests": [], "errors": [], "strange": 0, "ended": False}
    rest, num_bytes, is_over = b"", 0, False
    while not report["ended"] and num_bytes <= MAX_BYTES:
        ready, _, _ = select.select([reading], [], [], 0 if is_over else 0.02)
        if not ready:
            if is_over:
                break
            is_over = os.waitpid(pid, os.WNOHANG)[0] == pid
            continue
        data = os.read(reading, 1 << 16)
        if not data:
            break
        num_bytes += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            take(line, key, report)
    return report


def take(line: bytes, key: str, report: dict[str, Any]) -> None:
    try:
        said = json.loads(line)
        if said.pop("key") != key:
            raise ValueError
        if "test" in said:
            report["tests"].append([said["test"], said["status"], said["text"]])
        elif "error" in said:
            report["errors"].append(said["error"])
        elif "ended" in said:
            report.update(ended=True, exit_code=said["ended"], replaced=said["replaced"], num_selected=said["num"])
    except (ValueError, KeyError, AttributeError, TypeError):
        report["strange"] += 1


# ---------------------------------------------------------------- the process that runs code under test


def run_tests(asked: dict[str, Any], writing: int) -> None:
    os.setpgid(0, 0)
    hide(False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.environ["PYTHONPATH"] = os.pathsep.join(asked["paths"])
    os.environ.pop("PYTHONSAFEPATH", None)
    sys.argv = ["pytest"]
    import pytest

    key, dumps, write = asked["key"], json.dumps, os.write

    def say(**said: Any) -> None:
        data = dumps({"key": key, **said}).encode() + b"\n"
        while data:
            data = data[write(writing, data) :]

    before = functions()
    reporter = make_reporter(asked, say)
    forced = ["-p", "no:cacheprovider", "--maxfail=0", "--rootdir", asked["root"], "--import-mode=append"]
    code = 99
    try:
        code = int(pytest.main([*forced, *asked["arguments"], *asked["tests"]], plugins=[reporter]))
    finally:
        after = functions()
        replaced = sorted(name for name, mark in before.items() if after.get(name) != mark)
        say(ended=code, replaced=replaced, num=reporter.num_selected)


def functions() -> dict[str, tuple[int, int]]:
    """The functions and methods of the guarded modules."""
    found: dict[str, tuple[int, int]] = {}
    for module_name in GUARDED:
        module = sys.modules.get(module_name)
        if module is None:
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                found[f"{module_name}.{name}"] = (id(value), id(value.__code__))
            elif isinstance(value, type) and value.__module__ == module_name:
                for inner, method in list(vars(value).items()):
                    plain = getattr(method, "__func__", method)
                    if isinstance(plain, types.FunctionType):
                        found[f"{module_name}.{name}.{inner}"] = (id(plain), id(plain.__code__))
    return found


def make_reporter(asked: dict[str, Any], say: Any) -> Any:
    import pytest

    class Reporter:
        def __init__(self) -> None:
            self.num_selected = 0
            self._phases: dict[str, dict[str, Any]] = {}

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
            self.num_selected = len(items)
            if asked["canaries"]:
                add_canaries(session, items)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            phases = self._phases.setdefault(report.nodeid, {})
            phases[report.when] = report
            if report.when == "teardown":
                status, text = outcome(self._phases.pop(report.nodeid))
                say(test=report.nodeid, status=status, text=text)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                say(error=f"{report.nodeid}: {str(report.longrepr)[-600:]}")

    def add_canaries(session: Any, items: list[Any]) -> None:
        canaries = asked["canaries"]
        place = pathlib.Path(tempfile.mkdtemp(), f"test_{canaries['module']}.py")
        place.write_text(
            f"def test_{canaries['passes']}():\n    assert len({canaries['token']!r}) == {len(canaries['token'])}\n\n\n"
            f"def test_{canaries['fails']}():\n    assert len({canaries['token']!r}) == 0, {canaries['token']!r}\n"
        )
        module = pytest.Module.from_parent(session, path=place)
        for item, share in zip(list(module.collect()), canaries["places"], strict=True):
            # between two files, so that no fixture of a file ends before its time
            gaps = [
                number
                for number in range(len(items) + 1)
                if number in (0, len(items)) or items[number - 1].path != items[number].path
            ]
            items.insert(gaps[int(share * len(gaps))], item)

    return Reporter()


def outcome(phases: dict[str, Any]) -> tuple[str, str]:
    """A test's status from the reports of its phases, and the end of what went wrong."""
    setup, call, teardown = (phases.get(when) for when in ("setup", "call", "teardown"))
    last: Any = call or setup
    if setup is None or setup.failed or (teardown is not None and teardown.failed):
        bad = teardown if teardown is not None and teardown.failed else setup
        return "ERROR", str(getattr(bad, "longrepr", ""))[-600:]
    if last.failed:
        return "FAILED", str(last.longrepr)[-600:]
    if last.skipped:
        return ("XFAIL" if hasattr(last, "wasxfail") else "SKIPPED"), ""
    return ("XPASS" if hasattr(last, "wasxfail") else "PASSED"), ""


if __name__ == "__main__":
    main()

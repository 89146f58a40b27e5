"""Runs tests with pytest and reports each result. A standalone program: standard library and pytest only.

Started by `reporter.py`, which reads its messages from a pipe. Its first message is its search path, sent before
anything but the standard library is imported; then it reads from standard input what to run. From then on it shares a
process with the code under test, so its messages prove nothing by themselves: see `slipstream.graders.tests`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import random
import sys
import tempfile
import types
from typing import Any

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
"""Modules whose functions must not be replaced while tests run."""


def main() -> None:
    writing = int(sys.argv[1])
    sys.path[:] = [path for path in sys.path if path]
    write_all(os.write, writing, json.dumps({"path": sys.path}).encode() + b"\n")
    asked = json.loads(sys.stdin.buffer.read())
    try:
        run_tests(asked, writing)
    finally:
        os._exit(0)


def write_all(write: Any, fd: int, data: bytes) -> None:
    while data:
        data = data[write(fd, data) :]


def search_path(asked: dict[str, Any]) -> list[str]:
    """The standard library first, so that nothing shadows it; then the task's paths, then the rest."""
    library = [path for path in sys.path if "site-packages" not in path and "dist-packages" not in path]
    rest = [path for path in sys.path if path not in library]
    return [*library, *asked["paths"], *rest, asked["root"]]


def run_tests(asked: dict[str, Any], writing: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["PYTHONPATH"] = os.pathsep.join(asked["paths"])
    os.environ.pop("PYTHONSAFEPATH", None)
    sys.argv = ["pytest"]
    sys.path[:] = search_path(asked)
    key, dumps, write = asked["key"], json.dumps, os.write

    def say(**said: Any) -> None:
        write_all(write, writing, dumps({**said, "key": key}).encode() + b"\n")

    try:
        import _pytest.assertion.rewrite  # noqa: F401
        import pytest

        for name in GUARDED:
            with contextlib.suppress(ImportError):
                __import__(name)
    except ImportError as raised:
        say(missing=plain(str(raised)))
        return
    before = functions()
    reporter = make_reporter(asked, say)
    forced = ["-p", "no:cacheprovider", "--maxfail=0", "--rootdir", asked["root"]]
    forced += ["--import-mode=append"] if asked["append"] else []
    code = 99
    try:
        code = int(pytest.main([*forced, *asked["arguments"], *in_process(asked), *asked["tests"]], plugins=[reporter]))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the work may have replaced it
                stream.flush()
        after = functions()
        replaced = sorted(name for name, mark in before.items() if after.get(name) != mark)
        say(ended=code, replaced=replaced[:20])


def in_process(asked: dict[str, Any]) -> list[str]:
    """The argument that keeps tests in this process, whatever the settings of the repository say."""
    has_xdist = importlib.util.find_spec("xdist") is not None and "no:xdist" not in asked["arguments"]
    return ["-n0"] if has_xdist else []


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
            self._phases: dict[str, dict[str, Any]] = {}

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
            if asked["order"]:
                items[:] = shuffled(items, random.Random(asked["order"]))
            if asked["canaries"]:
                add_canaries(session, items)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            phases = self._phases.setdefault(report.nodeid, {})
            phases[report.when] = report
            if report.when == "teardown":
                status, text = outcome(self._phases.pop(report.nodeid))
                say(test=plain(report.nodeid), status=status, text=plain(text))

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                say(error=plain(f"{report.nodeid[:600]}: {str(report.longrepr)[-600:]}"))

    def add_canaries(session: Any, items: list[Any]) -> None:
        canaries = asked["canaries"]
        place = pathlib.Path(tempfile.mkdtemp(), f"test_{canaries['module']}.py")
        place.write_text(
            f"def test_{canaries['passes']}():\n    assert len({canaries['token']!r}) == {len(canaries['token'])}\n\n\n"
            f"def test_{canaries['fails']}():\n    assert len({canaries['token']!r}) == 0, {canaries['token']!r}\n"
        )
        module = module_at(session, place)
        for item, share in zip(list(module.collect()), canaries["places"], strict=True):
            # between two files, so that no fixture of a file is torn down early
            gaps = [
                number
                for number in range(len(items) + 1)
                if number in (0, len(items)) or file_of(items[number - 1]) != file_of(items[number])
            ]
            items.insert(gaps[int(share * len(gaps))], item)

    return Reporter()


def module_at(session: Any, place: pathlib.Path) -> Any:
    """The collector of a test file, in any version of pytest."""
    import pytest

    if int(pytest.__version__.partition(".")[0]) >= 7:
        return pytest.Module.from_parent(session, path=place)
    fspath = type(session.fspath)(str(place))
    make = getattr(pytest.Module, "from_parent", None)
    return pytest.Module(fspath, session) if make is None else make(session, fspath=fspath)


def file_of(item: Any) -> str:
    return str(getattr(item, "path", None) or item.fspath)


def shuffled(items: list[Any], rng: random.Random) -> list[Any]:
    """The files in random order, and so the classes and functions in each: tests that share a fixture stay together."""
    files: dict[str, dict[str, list[Any]]] = {}
    for item in items:
        file, _, names = item.nodeid.partition("::")
        files.setdefault(file, {}).setdefault(names.partition("::")[0].partition("[")[0], []).append(item)
    found: list[Any] = []
    for file in rng.sample(sorted(files), len(files)):
        for group in rng.sample(sorted(files[file]), len(files[file])):
            members = files[file][group]
            found += rng.sample(members, len(members))
    return found


def plain(text: str) -> str:
    """Encodable text of bounded length."""
    return text[:1_500].encode("utf-8", "backslashreplace").decode()[:1_900]


def outcome(phases: dict[str, Any]) -> tuple[str, str]:
    """A test's status from the reports of its phases, and the end of its error message."""
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

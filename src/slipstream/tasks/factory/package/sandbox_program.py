"""Runs tests and snippets inside a sandbox, for the factory. A standalone program: standard library and pytest only.

Input: one JSON object on standard input, `{"op": "suite" | "mutants" | "snippets", ...}`. Output: JSON lines on
standard output, one for each job. Invariants: pytest is imported once and every job is a fork with a deadline; files
that a job changes are restored after it; the output of the code under test is discarded; a test that takes longer than
the job's `test_timeout_s` is left out, and the others run again without it.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import math
import os
import pathlib
import random
import re
import resource
import runpy
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

Job = dict[str, Any]
"""A job or an answer, as JSON."""

ROOT = str(pathlib.Path.cwd())
MAX_REPR = 600
MAX_MEMORY = 1 << 30
NO_TEST = "-"
"""Told in place of a test's id when it has ended."""
MAX_HUNG = 6
"""After this many tests that hang, the job counts as timed out."""
FLAGS = (
    "-q", "-o", "addopts=", "-p", "no:cacheprovider", "--rootdir", ROOT, "--import-mode=append", "--tb=native",
    "-W", "ignore::pytest.PytestWarning", "--continue-on-collection-errors",
)  # fmt: skip


def main() -> None:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    if request["op"] != "snippets":
        import _pytest.assertion.rewrite
        import _pytest.unittest  # noqa: F401
        import pytest  # noqa: F401

        for name in ("hypothesis", "doctest", "unittest.mock"):
            with contextlib.suppress(ImportError):
                __import__(name)
    gc.freeze()
    work = {"suite": run_tests, "mutants": run_tests, "snippets": run_snippet}[request["op"]]
    for job in request["jobs"]:
        with changed(job.get("files", {}), job.get("number", 0)):
            answer = run_job(work, job)
        answer["id"] = job["id"]
        out.write(json.dumps(answer) + "\n")
        out.flush()


@contextlib.contextmanager
def changed(files: dict[str, str | None], number: int) -> Iterator[None]:
    """A context in which the files have other contents, or None for no file. Their modification times differ each time,
    so that no stale compiled file is used."""
    before: dict[str, bytes | None] = {}
    try:
        for path, text in files.items():
            place = pathlib.Path(path)
            before[path] = place.read_bytes() if place.is_file() else None
            rewrite(path, None if text is None else text.encode("utf-8", "surrogateescape"), 1_000_000_000 + 4 * number)
        yield
    finally:
        for path, data in before.items():
            rewrite(path, data, 1_500_000_000)


def rewrite(path: str, data: bytes | None, when: int) -> None:
    place = pathlib.Path(path)
    if data is None:
        place.unlink(missing_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    os.utime(path, (when, when))


def run_job(work: Callable[[Job], Job], job: Job) -> Job:
    """Run the job; if a test hangs, once more without that test."""
    deadline = time.monotonic() + job["timeout_s"]
    hung: list[str] = []
    while len(hung) <= MAX_HUNG:
        answer = run_in_fork(work, {**job, "left_out": [*job.get("left_out", ()), *hung]}, deadline)
        if "hung" not in answer:
            if "outcomes" in answer:
                answer["outcomes"].update(dict.fromkeys(hung, "hung"))
            return answer
        hung.append(answer["hung"])
    return {"timed_out": True}


def run_in_fork(work: Callable[[Job], Job], job: Job, deadline: float) -> Job:
    """Run `work(job)` in a child process that is killed at the deadline; returns its answer, or the test that hung."""
    ours, theirs = os.pipe()
    watching, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(ours)
        os.close(watching)
        if "cpu_s" in job:  # unlike a deadline, independent of the machine's load
            resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"]))
            resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        try:
            answer = work({**job, "telling": telling})
        except BaseException as raised:
            answer = {"error": f"{type(raised).__name__}: {raised}"[:MAX_REPR]}
        with os.fdopen(theirs, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
        os._exit(0)
    os.close(theirs)
    os.close(telling)
    data, timed_out, hung = read_until(ours, watching, deadline, job.get("test_timeout_s"))
    os.close(ours)
    os.close(watching)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if hung:
        return {"hung": hung}
    if timed_out or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) and not data):
        return {"timed_out": True}
    try:
        failure: Job = json.loads(data)
        return failure
    except ValueError:
        return {"error": "the run ended without an answer"}


def read_until(answers: int, watching: int, deadline: float, test_s: float | None) -> tuple[bytes, bool, str]:
    """The answer, whether the deadline passed, and the test that was running for longer than `test_s`."""
    pieces: list[bytes] = []
    open_fds = [answers, watching]
    told = ""
    test_deadline = math.inf
    while True:
        left = min(deadline, test_deadline) - time.monotonic()
        ready = select.select(open_fds, [], [], max(0.0, left))[0]
        if not ready:
            return b"", deadline <= test_deadline, "" if deadline <= test_deadline else told
        if watching in ready:
            piece = os.read(watching, 1 << 16)
            if not piece:
                open_fds.remove(watching)
            told = piece.decode("utf-8", "surrogateescape").rstrip("\n").rpartition("\n")[2]
            running = test_s is not None and bool(piece) and told != NO_TEST
            test_deadline = time.monotonic() + test_s if running and test_s is not None else math.inf
        if answers in ready:
            piece = os.read(answers, 1 << 16)
            if not piece:
                return b"".join(pieces), False, ""
            pieces.append(piece)


# ---------------------------------------------------------------- tests


def run_tests(job: Job) -> Job:
    import pytest

    plugin = Plugin(job)
    sys.dont_write_bytecode = not job.get("compile", False)
    plugins: list[Any] = [plugin]
    recorder: Any = None
    if "recorder" in job:
        recorder = runpy.run_path(job["recorder"])["Recorder"](job, ROOT)
        recorder.install()
        plugins.append(recorder)
    flags = [*FLAGS, "--assert=plain"] if recorder else FLAGS
    code = pytest.main([*flags, *job["paths"]], plugins=plugins)
    return {
        "recorded": recorder and {"prelude": recorder.prelude.ops, "tests": recorder.sessions},
        "code": int(code),
        "outcomes": plugin.outcomes,
        "seconds": plugin.seconds,
        "touched": {test: sorted(places) for test, places in plugin.touched.items()},
        "failures": plugin.failures,
        "broken": plugin.broken[:20],
    }


class Plugin:
    def __init__(self, job: Job) -> None:
        self.wanted = None if job.get("tests") is None else set(job["tests"])
        self.order = job.get("order")
        self.traced = set(job.get("traced", ()))
        self.details = job.get("details", False)
        self.max_failures = job.get("max_failures")
        self.outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.touched: dict[str, set[tuple[str, int]]] = {}
        self.failures: dict[str, Job] = {}
        self.broken: list[list[str]] = []
        self.num_failed = 0
        self.began = time.process_time()
        self.left_out = set(job.get("left_out", ()))
        self.telling = job["telling"]

    def tell(self, what: str) -> None:
        """Say which test runs. One line fits into the pipe at once, and its reader is never far behind."""
        os.write(self.telling, f"{what}\n".encode("utf-8", "surrogateescape"))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.left_out]
        if self.wanted is not None:
            items[:] = [item for item in items if item.nodeid in self.wanted]
        if self.order is not None:
            files: dict[str, list[Any]] = {}
            for item in items:
                files.setdefault(item.nodeid.partition("::")[0], []).append(item)
            rng = random.Random(self.order)
            groups = list(files.values())
            rng.shuffle(groups)
            items[:] = [item for group in groups for item in rng.sample(group, len(group))]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append([report.nodeid, str(report.longrepr)[-MAX_REPR:]])

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid
        kept = self.outcomes.get(test)
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if hasattr(report, "wasxfail"):
                outcome = "skipped"
            if kept != "failed":
                self.outcomes[test] = outcome
            self.num_failed += outcome == "failed" and kept != "failed"

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self.seconds[nodeid] = round(time.process_time() - self.began, 4)
        self.tell(NO_TEST)
        if self.max_failures is not None and self.num_failed > self.max_failures:
            import pytest

            pytest.exit("enough has failed", returncode=1)

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.tell(nodeid)
        self.began = time.process_time()

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> None:
        if self.traced:
            start_trace(self.traced, self.touched.setdefault(item.nodeid, set()))

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if self.traced and call.when == "teardown":
            stop_trace()
        if self.details and call.excinfo is not None and call.when == "call" and item.nodeid not in self.failures:
            with contextlib.suppress(Exception):
                self.failures[item.nodeid] = describe(item, call.excinfo)


def start_trace(files: set[str], touched: set[tuple[str, int]]) -> None:
    """Record which functions of the files are entered, as `(file, first line)`, without tracing inside them."""
    seen: set[CodeType] = set()
    prefix = ROOT + os.sep

    def trace(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if code not in seen:
            seen.add(code)
            name = code.co_filename
            if name.startswith(prefix) and name[len(prefix) :] in files:
                touched.add((name[len(prefix) :], code.co_firstlineno))

    threading.settrace(trace)
    sys.settrace(trace)


def stop_trace() -> None:
    sys.settrace(None)
    threading.settrace(None)


# ---------------------------------------------------------------- what a failure looked like


def describe(item: Any, excinfo: Any) -> Job:
    """Where in the test a failure occurred, and with which values."""
    path = str(item.path)
    found = None
    step = excinfo.tb
    while step is not None:
        if step.tb_frame.f_code.co_filename == path:
            found = step
        step = step.tb_next
    last = excinfo.tb
    while last.tb_next is not None:
        last = last.tb_next
    failure: Job = {
        "exception": excinfo.type.__name__,
        "message": str(excinfo.value)[:MAX_REPR],
        "params": {},
        "raised_in_test": found is not None and last is found,
    }
    callspec = getattr(item, "callspec", None)
    for name, value in (callspec.params if callspec is not None else {}).items():
        failure["params"][name] = repr_of(value)
    if found is None:
        return failure
    frame = found.tb_frame
    failure["function"] = frame.f_code.co_name
    failure["first_line"] = frame.f_code.co_firstlineno
    failure["line"] = found.tb_lineno
    failure["values"] = values(path, found.tb_lineno, frame)
    return failure


COMPARED = {"assertEqual": "==", "assertEquals": "==", "assertListEqual": "==", "assertDictEqual": "==",
            "assertTupleEqual": "==", "assertSetEqual": "==", "assertSequenceEqual": "==", "assertIs": "is",
            "assertIn": "in", "assertNotEqual": "!="}  # fmt: skip


def values(path: str, line: int, frame: FrameType) -> Job | None:
    """Both sides of the failed comparison, evaluated again in its frame; None if it is not a comparison."""
    tree = ast.parse(pathlib.Path(path).read_bytes())
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assert, ast.Expr)) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not nodes:
        return None
    node = max(nodes, key=lambda one: one.lineno)
    if isinstance(node, ast.Assert):
        test = node.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            if any(isinstance(part, (ast.Await, ast.Yield)) for part in ast.walk(test)):
                return None
            return {"left": ast.unparse(test), "left_value": value_of(test, frame), "operator": "true"}
        left, right, operator = test.left, test.comparators[0], SIGNS.get(type(test.ops[0]), "")
    else:
        call = node.value
        if not isinstance(call, ast.Call) or len(call.args) < 2:
            return None
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        left, right, operator = call.args[0], call.args[1], COMPARED.get(name, "")
    if not operator:
        return None
    return {
        "left": ast.unparse(left),
        "right": ast.unparse(right),
        "left_value": value_of(left, frame),
        "right_value": value_of(right, frame),
        "operator": operator,
    }


SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
         ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}  # fmt: skip


def value_of(node: ast.expr, frame: FrameType) -> str:
    try:
        return repr_of(eval(compile(ast.Expression(node), "<value>", "eval"), {**frame.f_globals, **frame.f_locals}))
    except BaseException as raised:
        return f"{type(raised).__name__}: {raised}"[:MAX_REPR]


def repr_of(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return "?"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text if len(text) <= MAX_REPR else text[: MAX_REPR - 3] + "..."


# ---------------------------------------------------------------- snippets


def run_snippet(job: Job) -> Job:
    """Run a snippet as a program; returns the exception that ended it, if any."""
    sys.dont_write_bytecode = True
    names = {"__name__": "__main__"}
    try:
        exec(compile(job["text"], "<snippet>", "exec"), names)
    except BaseException as raised:
        return {"exception": type(raised).__name__, "message": str(raised)[:MAX_REPR]}
    return {"exception": None}


if __name__ == "__main__":
    main()

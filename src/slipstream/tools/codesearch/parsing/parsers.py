"""A pool of parsing processes, shared by all rollouts of this process.

Input: jobs, each a small header and the bytes of a file. Output: for each job, once and in any order, its reply or the
reason why there is none. Invariants: a job that hangs or crashes its process costs its own time limit and no other job;
replies are treated as untrusted bytes and JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import ToolFailure
from slipstream.types import Json

LENGTHS = struct.Struct("<II")
MAX_REPLY_BYTES = 64 << 20
WINDOW_BYTES = 1 << 18
WINDOW_JOBS = 64
START_TIMEOUT_S = 20.0
NO_TIME = "there was no time for it yet"
_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    key: str
    """What the caller knows it by: a path."""
    header: Mapping[str, Json]
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    header: Mapping[str, Json]
    blob: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Why there is no reply."""

    reason: str


class _Process:
    """One parsing process and its jobs."""

    def __init__(self, max_memory_bytes: int, languages: tuple[str, ...]) -> None:
        argv = [sys.executable, "-I", "-B", "-W", "ignore", str(_WORKER), str(max_memory_bytes), *languages]
        self._child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/", bufsize=0
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self.stdin, self.stdout = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stdout, False)
        self.jobs: deque[Job] = deque()
        self.since_s = time.monotonic()
        """When its current job became the first in its queue."""
        self.is_ready = False
        self._out = bytearray()
        self._in = bytearray()

    @property
    def has_room(self) -> bool:
        return len(self.jobs) < WINDOW_JOBS and len(self._out) < WINDOW_BYTES

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def give(self, job: Job, cpu_s: float) -> None:
        header = json.dumps({**job.header, "cpu_s": cpu_s}).encode()
        self._out += LENGTHS.pack(len(header), len(job.data)) + header + job.data
        if not self.jobs:
            self.since_s = time.monotonic()
        self.jobs.append(job)

    def write(self) -> bool:
        """Whether the process still reads."""
        try:
            written = os.write(self.stdin, memoryview(self._out)[: 1 << 16])
        except BlockingIOError:
            return True
        except OSError:
            return False
        del self._out[:written]
        return True

    def read(self) -> bool:
        """Whether the process is still there."""
        try:
            data = os.read(self.stdout, 1 << 18)
        except BlockingIOError:
            return True
        self._in += data
        return bool(data)

    def frames(self) -> list[Reply]:
        """The replies that are complete. Raises ValueError for an invalid one."""
        found: list[Reply] = []
        start = 0
        while len(self._in) - start >= LENGTHS.size:
            header_bytes, blob_bytes = LENGTHS.unpack_from(self._in, start)
            if header_bytes + blob_bytes > MAX_REPLY_BYTES:
                raise ValueError("the reply is too large")
            end = start + LENGTHS.size + header_bytes + blob_bytes
            if len(self._in) < end:
                break
            middle = end - blob_bytes
            header = json.loads(bytes(self._in[start + LENGTHS.size : middle]))
            blob = bytes(self._in[middle:end])
            start = end
            if not isinstance(header, dict):
                raise ValueError("the reply is not an object")
            if not self.is_ready:
                self.is_ready, self.since_s = True, time.monotonic()
                continue
            self.since_s = time.monotonic()
            found.append(Reply(header=header, blob=blob))
        del self._in[:start]
        return found

    def close(self) -> None:
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._child.wait()


@dataclass
class _Run:
    """One call of `run`: the jobs that are left, and the limits."""

    jobs: Iterator[Job]
    job_timeout_s: float
    deadline_s: float
    again: deque[Job] = field(default_factory=deque)
    is_drained: bool = False

    def next_job(self) -> Job | None:
        if self.again:
            return self.again.popleft()
        if not self.is_drained:
            job = next(self.jobs, None)
            self.is_drained = job is None
            return job
        return None


class Parsers:
    """`with Parsers() as parsers: for job, result in parsers.run(jobs): ...`; safe to use from several threads."""

    def __init__(
        self,
        *,
        num_processes: int | None = None,
        languages: tuple[str, ...] = (),
        max_memory_bytes: int = 2 << 30,
        job_timeout_s: float = 10.0,
    ) -> None:
        self.languages = languages
        """The languages other than Python whose grammars the processes load."""
        self.num_processes = num_processes or min(4, os.cpu_count() or 1)
        self.job_timeout_s = job_timeout_s
        self._max_memory_bytes = max_memory_bytes
        # One more than a large run may take, so that a small one need not wait for it.
        self._free = threading.Semaphore(self.num_processes + 1)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._is_closed = False

    def __enter__(self) -> Parsers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for process in idle:
            process.close()

    def run(
        self, jobs: Iterable[Job], *, job_timeout_s: float | None = None, timeout_s: float = 120.0, width: int = 1
    ) -> Iterator[tuple[Job, Reply | Lost]]:
        """Do the jobs with up to `width` processes. Jobs not started within `timeout_s` are lost too."""
        run = _Run(iter(jobs), job_timeout_s or self.job_timeout_s, time.monotonic() + timeout_s)
        processes = self._take(min(width, self.num_processes))
        try:
            yield from self._pump(run, processes)
        finally:
            self._give_back(processes)

    def _pump(self, run: _Run, processes: list[_Process]) -> Iterator[tuple[Job, Reply | Lost]]:
        while True:
            if time.monotonic() < run.deadline_s:
                self._deal(run, processes)
            else:
                yield from self._abandon(run, processes)
            if not any(process.jobs for process in processes):
                return
            self._wait(run, processes)
            for number, process in enumerate(processes):
                reason = ""
                try:
                    if process.wants_to_write and not process.write():
                        reason = "it ended the process that read it"
                    alive = process.read()
                    for reply in process.frames():
                        if not process.jobs:
                            raise ValueError("a reply without a job")
                        yield process.jobs.popleft(), reply
                    if not alive:
                        reason = "it ended the process that read it"
                except (ValueError, RecursionError):
                    reason = "the process that read it sent an invalid reply"
                if not reason and self._is_late(process, run):
                    reason = f"it took longer than {run.job_timeout_s:g} s"
                if reason:
                    yield from self._replace(number, processes, run, reason)

    def _deal(self, run: _Run, processes: list[_Process]) -> None:
        for process in processes:
            while process.has_room and (job := run.next_job()) is not None:
                process.give(job, run.job_timeout_s + 5)

    def _wait(self, run: _Run, processes: list[_Process]) -> None:
        now_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            limit_s = run.deadline_s - now_s
            for process in processes:
                selector.register(process.stdout, selectors.EVENT_READ)
                if process.wants_to_write:
                    selector.register(process.stdin, selectors.EVENT_WRITE)
                if process.jobs:
                    limit_s = min(limit_s, process.since_s + self._patience_s(process, run) - now_s)
            selector.select(max(0.0, limit_s) + 0.001)

    @staticmethod
    def _patience_s(process: _Process, run: _Run) -> float:
        return run.job_timeout_s if process.is_ready else START_TIMEOUT_S

    def _is_late(self, process: _Process, run: _Run) -> bool:
        now_s = time.monotonic()
        if now_s >= run.deadline_s:
            return False
        return bool(process.jobs) and now_s - process.since_s >= self._patience_s(process, run)

    def _replace(
        self, number: int, processes: list[_Process], run: _Run, reason: str
    ) -> Iterator[tuple[Job, Reply | Lost]]:
        """Replace a broken process: its first job is to blame, the others are tried again."""
        jobs = processes[number].jobs
        processes[number].close()
        if not processes[number].is_ready:
            raise ToolFailure("code search: its parsing process does not start: check the Python installation")
        processes[number] = self._start()
        if jobs:
            blamed = jobs.popleft()
            run.again.extendleft(reversed(jobs))
            yield blamed, Lost(reason=reason)

    def _abandon(self, run: _Run, processes: list[_Process]) -> Iterator[tuple[Job, Reply | Lost]]:
        for number, process in enumerate(processes):
            if process.jobs:
                run.again.extend(process.jobs)
                process.close()
                processes[number] = self._start()
        while (job := run.next_job()) is not None:
            yield job, Lost(reason=NO_TIME)

    def _take(self, width: int) -> list[_Process]:
        self._free.acquire()
        taken = 1
        while taken < width and self._free.acquire(blocking=False):
            taken += 1
        with self._lock:
            processes = [self._idle.pop() for _ in range(min(taken, len(self._idle)))]
        return processes + [self._start() for _ in range(taken - len(processes))]

    def _start(self) -> _Process:
        return _Process(self._max_memory_bytes, self.languages)

    def _give_back(self, processes: list[_Process]) -> None:
        with self._lock:
            for process in processes:
                if process.jobs or self._is_closed:
                    process.close()
                else:
                    self._idle.append(process)
        self._free.release(len(processes))

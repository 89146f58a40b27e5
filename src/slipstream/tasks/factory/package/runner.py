"""Runs a package's tests in a few sandboxes over one tree, each with `sandbox_program.py` in it.

Input: jobs for `sandbox_program.py`. Output: its answers, as JSON objects, in the order of the jobs.
Invariants: nothing runs outside a sandbox; at most `num_at_once` sandboxes run at a time; a sandbox that breaks is
replaced, and its unanswered jobs count as timed out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.aio import task_group
from slipstream.errors import SandboxBroken
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.factory import replay
from slipstream.types import File, SandboxLimits, SandboxSpec

WORKDIR = "/work"
DEPS = ".deps"
SANDBOX_PROGRAM = Path(__file__).with_name("sandbox_program.py")
PROGRAM = "/tmp/factory.py"
RECORDER = "/tmp/recorder.py"
LIMITS = SandboxLimits(memory_mb=2048, processes=128, disk_mb=256, file_mb=64)
START_TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 256 << 20

Answer = Mapping[str, Any]
"""A job or an answer as JSON, with the keys of `sandbox_program.py`."""


def environment(root: str) -> dict[str, str]:
    """The environment in which Python finds the package and its requirements, and runs reproducibly."""
    own = WORKDIR if root == "." else f"{WORKDIR}/{root}"
    return {
        "PATH": f"{WORKDIR}/{DEPS}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{own}:{WORKDIR}/{DEPS}",
        "PYTHONHASHSEED": "0",
        "CI": "1",
        "TZ": "UTC",
    }


def spec_of(tree: Path, root: str, *, limits: SandboxLimits = LIMITS) -> SandboxSpec:
    return SandboxSpec(workdir=WORKDIR, tree=str(tree.resolve()), env=environment(root), limits=limits)


class Workers:
    """Sandboxes over one tree. Made by `open_workers`."""

    def __init__(self, provider: SandboxProvider, spec: SandboxSpec, num_at_once: int) -> None:
        self._provider = provider
        self._spec = spec
        self._room = asyncio.Semaphore(num_at_once)
        self._idle: list[Sandbox] = []

    async def run(self, op: str, jobs: Sequence[Answer], *, timeout_s: float) -> list[Answer]:
        """Run jobs one after the other in one sandbox; `timeout_s` covers all of them."""
        async with self._room:
            sandbox = self._idle.pop() if self._idle else await self._open()
            answers: list[Answer] = []
            missing: Answer = {"timed_out": True}
            try:
                result = await sandbox.exec(
                    ["/usr/bin/env", "python3", PROGRAM],
                    stdin=json.dumps({"op": op, "jobs": list(jobs)}).encode(),
                    timeout_s=timeout_s,
                    max_output_bytes=MAX_ANSWER_BYTES,
                )
                answers = _read(result.stdout.head + result.stdout.tail)
                if not result.timed_out:
                    missing = {"error": f"the runner ended with {result.exit_code}: {last_line(result.stderr.text())}"}
                self._idle.append(sandbox)
            except SandboxBroken:
                await sandbox.aclose()
            except BaseException:
                await sandbox.aclose()
                raise
        by_id = {answer.get("id"): answer for answer in answers}
        return [by_id.get(job["id"], {**missing, "id": job["id"]}) for job in jobs]

    async def run_all(
        self, op: str, jobs: Sequence[Answer], *, at_a_time: int, timeout_s: float
    ) -> AsyncIterator[Answer]:
        """Run jobs in batches of `at_a_time`, in parallel; yields the answers in the order of the jobs."""
        parts = [jobs[place : place + at_a_time] for place in range(0, len(jobs), at_a_time)]
        async with task_group() as group:
            running = [group.create_task(self.run(op, part, timeout_s=timeout_s)) for part in parts]
            try:
                for one in running:
                    for answer in await one:
                        yield answer
            finally:
                for one in running:
                    one.cancel()

    async def _open(self) -> Sandbox:
        sandbox = await open_sandbox(self._provider, self._spec, timeout_s=START_TIMEOUT_S)
        programs = {PROGRAM: SANDBOX_PROGRAM, RECORDER: replay.RECORDER}
        await sandbox.write({path: File(data=source.read_bytes()) for path, source in programs.items()})
        return sandbox

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()


@contextlib.asynccontextmanager
async def open_workers(provider: SandboxProvider, spec: SandboxSpec, *, num_at_once: int) -> AsyncIterator[Workers]:
    workers = Workers(provider, spec, num_at_once)
    try:
        yield workers
    finally:
        await workers.aclose()


def _read(data: bytes) -> list[Answer]:
    answers: list[Answer] = []
    for line in data.split(b"\n"):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            answers.append(answer)
    return answers


def first_error(output: str) -> str:
    """The first line of a long output that mentions an error, or else the last line."""
    errors = [line.strip() for line in output.splitlines() if "error:" in line.lower()]
    return errors[0][:300] if errors else last_line(output)


def last_line(output: str) -> str:
    """The last line of an error message."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"

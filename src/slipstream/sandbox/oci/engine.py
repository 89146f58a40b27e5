"""Runs the command line of a container engine: podman or docker.

Input: arguments. Output: exit code, stdout and stderr. Invariants: every call has a deadline; at the deadline, or if
the caller is cancelled, the engine's process is ended before the call returns; errors contain its stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slipstream.errors import ConfigError, SandboxError

CALL_TIMEOUT_S = 60.0
END_GRACE_S = 5.0
"""How long the engine's process may take to clean up after SIGTERM."""
SHOWN_CHARACTERS = 2000


class EngineKind(StrEnum):
    PODMAN = "podman"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """How one call of the engine ended."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine reports about itself and this machine."""

    version: str
    runtime: str
    is_rootless: bool
    limits_memory: bool
    """For a container as a whole; otherwise only for each process."""
    limits_processes: bool
    has_seccomp: bool
    has_quota: bool
    """The storage driver can limit the size of a container's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A container engine's executable."""

    kind: EngineKind
    path: str

    async def call(
        self, args: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S, cwd: Path = Path("/")
    ) -> EngineResult:
        """Run it to its end, whatever its exit code. Raises SandboxError if it cannot be run or exceeds `timeout_s`.

        `cwd` is its working directory, where processes that it leaves running may write (podman's conmon does).
        """
        try:
            process = await asyncio.create_subprocess_exec(
                self.path,
                *args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=cwd,
            )
        except OSError as error:
            raise SandboxError(f"{self.path} could not be run: {error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            await _end(process)
            raise SandboxError(f"`{self.kind} {_shown(args)}` did not finish within {timeout_s:g} s") from None
        except BaseException:
            await _end(process)
            raise
        return _result(process.returncode, stdout, stderr)

    async def must(self, args: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S, cwd: Path = Path("/")) -> str:
        """Its stdout. Raises SandboxError, with its stderr, if it failed."""
        result = await self.call(args, timeout_s=timeout_s, cwd=cwd)
        if result.exit_code != 0:
            raise SandboxError(
                f"`{self.kind} {_shown(args)}` failed with exit code {result.exit_code}: {result.stderr}"
            )
        return result.stdout

    def call_blocking(self, args: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S) -> EngineResult:
        """Like `call`, without an event loop."""
        try:
            done = subprocess.run(
                [self.path, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, cwd="/"
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"`{self.kind} {_shown(args)}` could not be run: {error}") from error
        return _result(done.returncode, done.stdout, done.stderr)


def _shown(args: Sequence[str]) -> str:
    return " ".join(args[:2])


def _result(exit_code: int | None, stdout: bytes, stderr: bytes) -> EngineResult:
    text = stderr.decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]
    return EngineResult(
        exit_code=-1 if exit_code is None else exit_code, stdout=stdout.decode("utf-8", "replace"), stderr=text
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate it: SIGTERM first, since an engine that is killed leaves locks and mounts behind."""

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_S):
                await process.communicate()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):  # a child process may hold the pipes open
                async with asyncio.timeout(END_GRACE_S):
                    await process.wait()

    await finish(asyncio.ensure_future(end()))


async def finish(task: asyncio.Task[None]) -> None:
    """Wait until a task is done, even if cancelled; the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.done():
                break
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def installed() -> list[Engine]:
    """The installed engines, podman first, since it needs no daemon."""
    found = [(kind, shutil.which(kind)) for kind in EngineKind]
    return [Engine(kind=kind, path=path) for kind, path in found if path is not None]


def find_engine(name: str | None) -> Engine:
    """The engine with this name, or else the first that responds. Raises ConfigError."""
    if name is not None and name not in tuple(EngineKind):
        raise ConfigError(f"{name!r} is not a container engine: use 'podman' or 'docker'")
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"on {sys.platform} containers run in a virtual machine that Slipstream cannot reach: run it on Linux"
        )
    there = [engine for engine in installed() if name in (None, engine.kind)]
    if not there:
        raise ConfigError(
            f"no {name or 'podman or docker'} was found: install the package {name or 'podman'!r} of your distribution"
        )
    complaints = []
    for engine in there:
        result = engine.call_blocking(["version", "--format", "{{.Client.Version}}"])
        if result.exit_code == 0 and engine.kind is EngineKind.DOCKER:  # the daemon must respond too
            result = engine.call_blocking(["version", "--format", "{{.Server.Version}}"])
        if result.exit_code == 0:
            return engine
        complaints.append(f"{engine.kind}: {result.stderr}")
    raise ConfigError(explain("; ".join(complaints)))


async def ask_facts(engine: Engine) -> EngineFacts:
    info = await engine.must(["info", "--format", "{{json .}}"])
    try:
        return read_facts(engine.kind, json.loads(info))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SandboxError(f"the output of `{engine.kind} info` could not be parsed: {error!r}") from error


def read_facts(kind: EngineKind, info: dict[str, object]) -> EngineFacts:
    """Parse the JSON of `info`, in which the two engines share no key."""
    if kind is EngineKind.PODMAN:
        host, store = _part(info, "host"), _part(info, "store")
        controllers = host.get("cgroupControllers") or []
        security = _part(host, "security")
        assert isinstance(controllers, list)
        return EngineFacts(
            version=str(_part(info, "version").get("Version", "")),
            runtime=str(_part(host, "ociRuntime").get("name", "")),
            is_rootless=bool(security.get("rootless")),
            limits_memory="memory" in controllers,
            limits_processes="pids" in controllers,
            has_seccomp=bool(security.get("seccompEnabled")),
            has_quota=_has_quota(str(store.get("graphDriverName")), str(_part(store, "graphStatus"))),
        )
    security_options = str(info.get("SecurityOptions"))
    return EngineFacts(
        version=str(info.get("ServerVersion", "")),
        runtime=str(info.get("DefaultRuntime", "")),
        is_rootless="name=rootless" in security_options,
        limits_memory=bool(info.get("MemoryLimit")),
        limits_processes=bool(info.get("PidsLimit")),
        has_seccomp="name=seccomp" in security_options,
        has_quota=_has_quota(str(info.get("Driver")), str(info.get("DriverStatus"))),
    )


def _part(whole: dict[str, object], name: str) -> dict[str, object]:
    part = whole.get(name) or {}
    assert isinstance(part, dict)
    return part


def _has_quota(driver: str, status: str) -> bool:
    """Drivers that take `--storage-opt size=`; overlay only on xfs, where it must have been mounted with `pquota`."""
    return driver in ("btrfs", "zfs") or (driver.startswith("overlay") and "xfs" in status.lower())


REMEDIES = (
    ("permission denied.*docker", "you may not access docker: add yourself to the group `docker`, or use podman"),
    ("connect to the docker daemon", "start docker's daemon (`sudo systemctl start docker`), or install podman"),
    ("rlimit", "it sets higher limits than this process has: raise them (`ulimit -Hn`, `ulimit -Hu`)"),
    ("newuidmap|subuid|subgid", "you need subordinate ids: run `sudo usermod --add-subuids 100000-165535 USER`"),
    ("netavark|cni|slirp4netns|pasta", "its networks do not work here: use `network='none'`"),
    ("executable file not found|no such file", "a program is missing: install python3 (3.8 or later) in the image"),
    (
        "version `GLIBC|Error loading shared|ld-linux",
        "the host's Python does not run in this image: install python3 in it",
    ),
    ("cgroup", "it may not create cgroups here: run podman as root, or without a root of cgroups of version 1"),
)


def explain(complaint: str) -> str:
    """One sentence on why an engine does not run containers, and what to do."""
    for pattern, remedy in REMEDIES:
        if re.search(pattern, complaint, re.IGNORECASE | re.DOTALL):
            return f"containers do not start on this machine ({complaint}); {remedy}"
    return f"containers do not start on this machine ({complaint}); try `podman run --network none IMAGE true`"

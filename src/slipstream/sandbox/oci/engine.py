"""The command line of a container engine: podman or docker.

Input: arguments. Output: what the engine said. Invariants: every call has a deadline; at the deadline, and when the
caller is cancelled, the engine's program is ended before the call comes back; what it complained about is in the error.
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
"""How long the engine's program may take to tidy up once it was told to end."""
SHOWN_CHARACTERS = 2000


class EngineKind(StrEnum):
    PODMAN = "podman"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """How one call of the engine ended."""

    code: int
    out: str
    complaint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine says of itself and this machine."""

    version: str
    runtime: str
    is_rootless: bool
    limits_memory: bool
    """Of a container as a whole; else only of each process."""
    limits_processes: bool
    has_seccomp: bool
    has_quota: bool
    """The storage driver can hold a container's files to a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine's program."""

    kind: EngineKind
    path: str

    async def call(
        self, args: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S, cwd: Path = Path("/")
    ) -> EngineResult:
        """Run it to its end, whatever that is. Raises SandboxError if it cannot be run, or not within `timeout_s`.

        `cwd` is where it runs, and where what it leaves running may write to (podman's conmon does).
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
                out, complaint = await process.communicate()
        except TimeoutError:
            await _end(process)
            raise SandboxError(f"`{self.kind} {_shown(args)}` was not done within {timeout_s:g} s") from None
        except BaseException:
            await _end(process)
            raise
        return _said(process.returncode, out, complaint)

    async def must(self, args: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S, cwd: Path = Path("/")) -> str:
        """Its output. Raises SandboxError, with what it complained about, if it failed."""
        said = await self.call(args, timeout_s=timeout_s, cwd=cwd)
        if said.code != 0:
            raise SandboxError(f"`{self.kind} {_shown(args)}` failed with {said.code}: {said.complaint}")
        return said.out

    def call_blocking(self, args: Sequence[str], *, timeout_s: float = CALL_TIMEOUT_S) -> EngineResult:
        """The same for who has no event loop."""
        try:
            done = subprocess.run(
                [self.path, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, cwd="/"
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"`{self.kind} {_shown(args)}` could not be run: {error}") from error
        return _said(done.returncode, done.stdout, done.stderr)


def _shown(args: Sequence[str]) -> str:
    return " ".join(args[:2])


def _said(code: int | None, out: bytes, complaint: bytes) -> EngineResult:
    text = complaint.decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]
    return EngineResult(code=-1 if code is None else code, out=out.decode("utf-8", "replace"), complaint=text)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it for good: politely first, since a container engine that is killed leaves its locks and mounts."""

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE_S):
                await process.communicate()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):  # a program of its own may hold the pipes open
                async with asyncio.timeout(END_GRACE_S):
                    await process.wait()

    await finish(asyncio.ensure_future(end()))


async def finish(task: asyncio.Task[None]) -> None:
    """Wait for a task that must be done to its end, cancelled or not; a cancellation is told afterwards."""
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
    """The engines whose programs are here, podman first: it needs no daemon."""
    found = [(kind, shutil.which(kind)) for kind in EngineKind]
    return [Engine(kind=kind, path=path) for kind, path in found if path is not None]


def find_engine(name: str | None) -> Engine:
    """The engine of that name; without one, the first that answers. Raises ConfigError."""
    if name is not None and name not in tuple(EngineKind):
        raise ConfigError(f"{name!r} is no container engine: use 'podman' or 'docker'")
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"on {sys.platform} containers run in another machine, which Slipstream cannot reach into: run it on Linux"
        )
    there = [engine for engine in installed() if name in (None, engine.kind)]
    if not there:
        raise ConfigError(
            f"no {name or 'podman or docker'} was found: install the package {name or 'podman'!r} of your distribution"
        )
    complaints = []
    for engine in there:
        said = engine.call_blocking(["version", "--format", "{{.Client.Version}}"])
        if said.code == 0 and engine.kind is EngineKind.DOCKER:  # the program answers for itself, the daemon must too
            said = engine.call_blocking(["version", "--format", "{{.Server.Version}}"])
        if said.code == 0:
            return engine
        complaints.append(f"{engine.kind}: {said.complaint}")
    raise ConfigError(explain("; ".join(complaints)))


async def ask_facts(engine: Engine) -> EngineFacts:
    said = await engine.must(["info", "--format", "{{json .}}"])
    try:
        return read_facts(engine.kind, json.loads(said))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SandboxError(f"`{engine.kind} info` said what cannot be understood: {error!r}") from error


def read_facts(kind: EngineKind, info: dict[str, object]) -> EngineFacts:
    """What `info` told, from its JSON. The two engines have no word in common."""
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
    ("permission denied.*docker", "you may not talk to docker: add yourself to the group `docker`, or use podman"),
    ("connect to the docker daemon", "start docker's daemon (`sudo systemctl start docker`), or install podman"),
    ("rlimit", "the limits it sets are above those of this process: raise them (`ulimit -Hn`, `ulimit -Hu`)"),
    ("newuidmap|subuid|subgid", "give yourself subordinate ids: `sudo usermod --add-subuids 100000-165535 USER`"),
    ("netavark|cni|slirp4netns|pasta", "its networks do not work here: keep `network='none'`"),
    ("executable file not found|no such file", "it lacks a program: install python3 (3.8 or later) in the image"),
    (
        "version `GLIBC|Error loading shared|ld-linux",
        "the host's Python does not run there: put python3 into the image",
    ),
    ("cgroup", "it may not make cgroups here: run podman as root, or without a root of cgroups of version 1"),
)


def explain(complaint: str) -> str:
    """One sentence on an engine that does not run containers, with what to do."""
    for pattern, remedy in REMEDIES:
        if re.search(pattern, complaint, re.IGNORECASE | re.DOTALL):
            return f"containers do not start here ({complaint}); {remedy}"
    return f"containers do not start here ({complaint}); see whether `podman run --network none IMAGE true` works"

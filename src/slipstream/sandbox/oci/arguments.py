"""The argument lists of podman and docker.

Input: a SandboxSpec, an image, what the engine can do. Output: lists of strings, and nothing has happened yet.
Invariants: no capability, no new privileges, no network but the one asked for, the engine's own seccomp profile, a
bound on memory, processes and files in memory; every container carries the label of its lease.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError
from slipstream.sandbox import supervisor
from slipstream.sandbox.cleanup.lease import ARGUMENT, LABEL
from slipstream.sandbox.oci.engine import EngineFacts, EngineKind
from slipstream.types import SandboxSpec

RUN_FOLDER = "/run/slipstream"
PYTHON_HOME = "/opt/python"
DOCKERFILE = "dockerfile:"
BUILT = "localhost/slipstream-build"
TAKEN = ("dev", "proc", "run", "sys")
"""Top folders that are the engine's own, so that the workdir cannot be there."""
MB = 1 << 20
MAX_OPEN_FILES = 65536
MAX_PROCESSES = 1 << 14
"""Of one user on the whole machine: podman itself runs with less than what its caller may have."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED_MODULES = "import _ctypes, _socket, fcntl, resource, select, sys; sys.exit(sys.version_info < (3, 8))"


class DiskLimit(StrEnum):
    """How a sandbox is held to its disk limit."""

    QUOTA = "quota"
    """By the storage driver, to the byte."""
    MEMORY = "memory"
    """Nothing can be written but the workdir and /tmp, which are memory of that size."""
    WATCHED = "watched"
    """It is looked at every second, and ended when it is over; files are limited one by one meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """What runs the supervisor. With a `home` it is the host's, bound into the container."""

    path: str
    home: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is here."""

    id: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What holds for all containers of a provider."""

    kind: EngineKind
    runtime: str | None = None
    network: str = "none"
    user: str | None = None
    disk: DiskLimit = DiskLimit.WATCHED
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """An image to be built from a Dockerfile."""

    context: Path
    dockerfile: str = "Dockerfile"
    """Its name below the context."""
    args: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- containers


def workdir_of(spec: SandboxSpec) -> str:
    """The spec's workdir, checked."""
    path = PurePosixPath(spec.workdir)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[1] in TAKEN:
        raise ConfigError(
            f"the workdir {spec.workdir!r} cannot be used in a container: use an absolute path such as /work, not "
            f"below /{', /'.join(TAKEN)}"
        )
    return str(path)


def image_python() -> Python:
    return Python(path="python3")


def host_python() -> Python:
    """The running Python, without its virtual environment."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Python(path=f"{PYTHON_HOME}/bin/{name}", home=Path(sys.base_prefix))


def environment(spec: SandboxSpec, image: Image) -> dict[str, str]:
    """What every program inside finds in its environment."""
    base = {"PATH": PATH, "HOME": workdir_of(spec), "LANG": "C.UTF-8", "TERM": "dumb"}
    return base | dict(image.env) | dict(spec.env)


def program_limits(spec: SandboxSpec, facts: EngineFacts) -> dict[str, int]:
    """The limits of every program inside, by the names of the `resource` module. What the engine holds the whole
    container to is not held again; RLIMIT_NPROC counts a user's processes on the whole machine."""
    limits = {
        "RLIMIT_NPROC": MAX_PROCESSES if facts.limits_processes else spec.limits.processes + 1,
        "RLIMIT_FSIZE": spec.limits.file_mb * MB,
        "RLIMIT_CPU": spec.limits.cpu_s,
        "RLIMIT_CORE": 0,
    }
    if not facts.limits_memory:
        limits["RLIMIT_AS"] = spec.limits.memory_mb * MB
    return limits


def confinement(spec: SandboxSpec, choices: Choices, facts: EngineFacts) -> list[str]:
    """Options of `run` that hold a container: what it may do, and how much of it."""
    limits = spec.limits
    args = ["--pull", "never", "--network", choices.network, "--cap-drop", "ALL"]
    args += ["--cap-add", "DAC_OVERRIDE"]  # for the workdir: the root of an image may be closed even to its owner
    args += ["--security-opt", "no-new-privileges", "--ipc", "private", "--hostname", "sandbox", "--no-healthcheck"]
    args += ["--shm-size", str(_shared_bytes(spec)), "--cpu-shares", str(max(2, round(1024 * limits.cpus)))]
    if facts.limits_memory:
        args += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
    if facts.limits_processes:
        args += ["--pids-limit", str(limits.processes + 1)]
    args += ulimits()
    if choices.kind is EngineKind.PODMAN:
        args += ["--image-volume", "ignore", "--log-driver", "k8s-file"]
    if choices.runtime is not None:
        args += ["--runtime", choices.runtime]
    if choices.user is not None:
        args += ["--user", choices.user]
    return args + _disks(spec, choices) + list(choices.extra)


def ulimits() -> list[str]:
    """None above our own: an engine without the right to raise limits would fail to start the container."""
    args = []
    for name, which, most in (
        ("nofile", resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        ("nproc", resource.RLIMIT_NPROC, MAX_PROCESSES),
        ("core", resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        args += ["--ulimit", f"{name}={value}:{value}"]
    return args


def _shared_bytes(spec: SandboxSpec) -> int:
    return min(spec.limits.disk_mb * MB // 8, 64 * MB)


def _disks(spec: SandboxSpec, choices: Choices) -> list[str]:
    num_bytes = spec.limits.disk_mb * MB
    if choices.disk is DiskLimit.QUOTA:
        return ["--storage-opt", f"size={num_bytes}"]
    if choices.disk is DiskLimit.WATCHED:
        return []
    workdir = workdir_of(spec)
    temporary = num_bytes // 4
    args = ["--read-only"] + (["--read-only-tmpfs=false"] if choices.kind is EngineKind.PODMAN else [])
    args += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={temporary}"]
    if workdir != "/tmp":
        left = num_bytes - temporary - _shared_bytes(spec)
        args += ["--tmpfs", f"{workdir}:rw,exec,nosuid,nodev,mode=1777,size={left}"]
    return args


def _python_options(python: Python) -> list[str]:
    if python.home is None:
        return []
    # Moved, it finds its own library no more.
    return [*_bound(python.home, PYTHON_HOME), "--env", f"LD_LIBRARY_PATH={PYTHON_HOME}/lib"]


def _bound(folder: Path, place: str) -> list[str]:
    """A folder of the host, shown read-only."""
    if "," in str(folder):
        raise ConfigError(f"{folder} cannot be shown in a container, for the comma in its name: use another folder")
    return ["--mount", f"type=bind,source={folder},destination={place},readonly"]


def run(
    spec: SandboxSpec,
    image: Image,
    *,
    name: str,
    lease: str,
    folder: Path,
    python: Python,
    choices: Choices,
    facts: EngineFacts,
) -> list[str]:
    """Start a container whose first program is the supervisor. `folder` is the host's side of RUN_FOLDER."""
    args = ["run", "--detach", "--name", name, "--label", f"{LABEL}={lease}", *confinement(spec, choices, facts)]
    args += [*_bound(folder, RUN_FOLDER), *_python_options(python), "--workdir", "/"]
    args += ["--entrypoint", python.path, image.id, "-I", "-S", "-B", f"{RUN_FOLDER}/{supervisor.OCI_ENTRY.name}"]
    limits = program_limits(spec, facts)
    args += [f"{RUN_FOLDER}/control", workdir_of(spec), f"{ARGUMENT}{lease}"]
    return [*args, *(f"{key}={value}" for key, value in limits.items())]


def try_out(image: Image, *, name: str, lease: str, python: Python, choices: Choices, facts: EngineFacts) -> list[str]:
    """Run a container that only sees whether the supervisor could run in it."""
    spec = SandboxSpec()
    args = ["run", "--name", name, "--label", f"{LABEL}={lease}"]
    args += [*confinement(spec, replace(choices, disk=DiskLimit.WATCHED), facts), *_python_options(python)]
    return [*args, "--workdir", "/", "--entrypoint", python.path, image.id, "-I", "-S", "-c", NEEDED_MODULES]


def remove(kind: EngineKind, name: str) -> list[str]:
    """Kill a container, if it is there, and remove it with its volumes."""
    args = ["rm", "--force", "--volumes"]
    return [*args, "--ignore", "--time", "0", name] if kind is EngineKind.PODMAN else [*args, name]


def commit(name: str, lease: str) -> list[str]:
    """Keep a container's files as an image without a name. It stands still meanwhile."""
    return ["commit", "--pause=true", "--change", f"LABEL {LABEL}={lease}", name]


# ---------------------------------------------------------------- images


def read_image(said: str) -> Image:
    """What `image inspect` told."""
    told = json.loads(said)[0]
    pairs = ((told.get("Config") or {}).get("Env") or []) if isinstance(told, dict) else []
    return Image(id=str(told["Id"]), env=dict(pair.split("=", 1) for pair in pairs if "=" in pair))


def build_of(base: str) -> BuildSpec | None:
    """What `dockerfile:PATH` stands for, where PATH is a Dockerfile or the folder of one; None for an image's name."""
    if not base.startswith(DOCKERFILE):
        return None
    path = Path(base.removeprefix(DOCKERFILE)).expanduser()
    if path.is_dir():
        path /= "Dockerfile"
    if not path.is_file():
        raise ConfigError(f"the base {base!r} names no Dockerfile: {path} is not there")
    return BuildSpec(context=path.parent.resolve(), dockerfile=path.name)


def build(spec: BuildSpec, *, tag: str, choices: Choices, extra: Sequence[str] = ()) -> list[str]:
    args = ["build", "--tag", tag, "--file", str(spec.context / spec.dockerfile), "--label", "slipstream.build=1"]
    if choices.kind is EngineKind.PODMAN:
        args += ulimits()
        if choices.runtime is not None:
            args += ["--runtime", choices.runtime]
    for name, value in spec.args.items():
        args += ["--build-arg", f"{name}={value}"]
    return [*args, *extra, str(spec.context)]


def tag_of(spec: BuildSpec) -> str:
    """The name of what a build makes: the digest of all that goes into it. The same context has the same name."""
    if not (spec.context / spec.dockerfile).is_file():
        raise ConfigError(f"there is no Dockerfile {spec.dockerfile!r} in {spec.context}")
    digest = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "big") + data)

    add(spec.dockerfile, json.dumps(sorted(spec.args.items())))
    for folder, names, files in os.walk(spec.context):
        names.sort()
        for name in sorted([*files, *(name for name in names if (Path(folder) / name).is_symlink())]):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            add(str(path.relative_to(spec.context)), oct(mode))
            if stat.S_ISLNK(mode):
                add(str(path.readlink()))
            elif stat.S_ISREG(mode):
                add(path.read_bytes())
    return f"{BUILT}:{digest.hexdigest()[:32]}"

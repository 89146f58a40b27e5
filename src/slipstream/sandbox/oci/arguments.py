"""The argument lists for podman and docker.

Input: a SandboxSpec, an image, and what the engine can do. Output: lists of strings; nothing is run here.
Invariants: no capabilities, no new privileges, no network except the configured one, the engine's own seccomp profile,
limits on memory, processes and files in memory; every container has the label of its lease.
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
from slipstream.sandbox.activation import activated
from slipstream.sandbox.cleanup.lease import ARGUMENT, LABEL
from slipstream.sandbox.oci.engine import EngineFacts, EngineKind
from slipstream.types import SandboxSpec

RUN_FOLDER = "/run/slipstream"
PYTHON_HOME = "/opt/python"
DOCKERFILE = "dockerfile:"
BUILT = "localhost/slipstream-build"
TAKEN = ("dev", "proc", "run", "sys")
"""Top-level folders that the engine owns, so the workdir cannot be there."""
MB = 1 << 20
MAX_OPEN_FILES = 65536
MAX_PROCESSES = 1 << 14
"""Per user, on the whole machine: podman itself runs with a lower limit than its caller."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED_MODULES = "import _ctypes, _socket, fcntl, resource, select, sys; sys.exit(sys.version_info < (3, 8))"


class DiskLimit(StrEnum):
    """How the disk limit is enforced."""

    QUOTA = "quota"
    """By the storage driver, to the byte."""
    MEMORY = "memory"
    """Only the workdir and /tmp are writable, and they are memory of that size."""
    WATCHED = "watched"
    """Usage is checked every second, and the sandbox ended when it exceeds the limit; each file is limited too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The Python that runs the supervisor. With a `home`, it is the host's, mounted into the container."""

    path: str
    home: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A local image."""

    id: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """The options for all containers of a provider."""

    kind: EngineKind
    runtime: str | None = None
    network: str = "none"
    user: str | None = None
    disk: DiskLimit = DiskLimit.WATCHED
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """An image to build from a Dockerfile."""

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
    """The environment of every program inside."""
    base = {"PATH": PATH, "HOME": workdir_of(spec), "LANG": "C.UTF-8", "TERM": "dumb"}
    return activated({**base, **image.env}, spec)


def program_limits(spec: SandboxSpec, facts: EngineFacts) -> dict[str, int]:
    """The limits of every program inside, by the names of the `resource` module. What the engine limits for the whole
    container is not limited again; RLIMIT_NPROC counts a user's processes on the whole machine."""
    limits = {
        "RLIMIT_NPROC": MAX_PROCESSES if facts.limits_processes else spec.limits.processes + 1,
        "RLIMIT_FSIZE": spec.limits.file_mb * MB,
        "RLIMIT_CPU": spec.limits.cpu_s,
        "RLIMIT_CORE": 0,
    }
    if not facts.limits_memory:
        limits["RLIMIT_AS"] = spec.limits.memory_mb * MB
    return limits


def confinement(spec: SandboxSpec, options: ContainerOptions, facts: EngineFacts) -> list[str]:
    """Options of `run` that confine a container: its rights and its resources."""
    limits = spec.limits
    args = ["--pull", "never", "--network", options.network, "--cap-drop", "ALL"]
    args += ["--cap-add", "DAC_OVERRIDE"]  # for the workdir: the root of an image may be closed even to its owner
    args += ["--security-opt", "no-new-privileges", "--ipc", "private", "--hostname", "sandbox", "--no-healthcheck"]
    args += ["--shm-size", str(_shared_bytes(spec)), "--cpu-shares", str(max(2, round(1024 * limits.cpus)))]
    if facts.limits_memory:
        args += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
    if facts.limits_processes:
        args += ["--pids-limit", str(limits.processes + 1)]
    args += ulimits()
    if options.kind is EngineKind.PODMAN:
        args += ["--image-volume", "ignore", "--log-driver", "k8s-file"]
    if options.runtime is not None:
        args += ["--runtime", options.runtime]
    if options.user is not None:
        args += ["--user", options.user]
    return args + _disks(spec, options) + list(options.extra)


def ulimits() -> list[str]:
    """Limits no higher than our own: an engine that may not raise limits would fail to start the container."""
    args = []
    for name, which, maximum in (
        ("nofile", resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        ("nproc", resource.RLIMIT_NPROC, MAX_PROCESSES),
        ("core", resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        value = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        args += ["--ulimit", f"{name}={value}:{value}"]
    return args


def _shared_bytes(spec: SandboxSpec) -> int:
    return min(spec.limits.disk_mb * MB // 8, 64 * MB)


def _disks(spec: SandboxSpec, options: ContainerOptions) -> list[str]:
    num_bytes = spec.limits.disk_mb * MB
    if options.disk is DiskLimit.QUOTA:
        return ["--storage-opt", f"size={num_bytes}"]
    if options.disk is DiskLimit.WATCHED:
        return []
    workdir = workdir_of(spec)
    temporary = num_bytes // 4
    args = ["--read-only"] + (["--read-only-tmpfs=false"] if options.kind is EngineKind.PODMAN else [])
    args += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={temporary}"]
    if workdir != "/tmp":
        left = num_bytes - temporary - _shared_bytes(spec)
        args += ["--tmpfs", f"{workdir}:rw,exec,nosuid,nodev,mode=1777,size={left}"]
    return args


def _python_options(python: Python) -> list[str]:
    if python.home is None:
        return []
    # After the move it would not find its own library.
    return [*_bound(python.home, PYTHON_HOME), "--env", f"LD_LIBRARY_PATH={PYTHON_HOME}/lib"]


def _bound(folder: Path, place: str) -> list[str]:
    """A read-only mount of a host folder."""
    if "," in str(folder):
        raise ConfigError(
            f"{folder} cannot be mounted into a container because of the comma in its name: use another folder"
        )
    return ["--mount", f"type=bind,source={folder},destination={place},readonly"]


def run(
    spec: SandboxSpec,
    image: Image,
    *,
    name: str,
    lease: str,
    folder: Path,
    python: Python,
    options: ContainerOptions,
    facts: EngineFacts,
) -> list[str]:
    """Start a container whose first program is the supervisor. `folder` is the host's side of RUN_FOLDER."""
    args = ["run", "--detach", "--name", name, "--label", f"{LABEL}={lease}", *confinement(spec, options, facts)]
    args += [*_bound(folder, RUN_FOLDER), *_python_options(python), "--workdir", "/"]
    args += ["--entrypoint", python.path, image.id, "-I", "-S", "-B", f"{RUN_FOLDER}/{supervisor.OCI_ENTRY.name}"]
    limits = program_limits(spec, facts)
    args += [f"{RUN_FOLDER}/control", workdir_of(spec), f"{ARGUMENT}{lease}"]
    return [*args, *(f"{key}={value}" for key, value in limits.items())]


def trial_run(
    image: Image, *, name: str, lease: str, python: Python, options: ContainerOptions, facts: EngineFacts
) -> list[str]:
    """Run a container that only tests whether the supervisor could run in it."""
    spec = SandboxSpec()
    args = ["run", "--name", name, "--label", f"{LABEL}={lease}"]
    args += [*confinement(spec, replace(options, disk=DiskLimit.WATCHED), facts), *_python_options(python)]
    return [*args, "--workdir", "/", "--entrypoint", python.path, image.id, "-I", "-S", "-c", NEEDED_MODULES]


def remove(kind: EngineKind, name: str) -> list[str]:
    """Kill a container, if it is there, and remove it with its volumes."""
    args = ["rm", "--force", "--volumes"]
    return [*args, "--ignore", "--time", "0", name] if kind is EngineKind.PODMAN else [*args, name]


def commit(name: str, lease: str) -> list[str]:
    """Save a container's files as an unnamed image. The container is paused meanwhile."""
    return ["commit", "--pause=true", "--change", f"LABEL {LABEL}={lease}", name]


# ---------------------------------------------------------------- images


def read_image(inspected: str) -> Image:
    """Parse the output of `image inspect`."""
    facts = json.loads(inspected)[0]
    pairs = ((facts.get("Config") or {}).get("Env") or []) if isinstance(facts, dict) else []
    return Image(id=str(facts["Id"]), env=dict(pair.split("=", 1) for pair in pairs if "=" in pair))


def build_of(base: str) -> BuildSpec | None:
    """The build for `dockerfile:PATH`, where PATH is a Dockerfile or its folder; None for the name of an image."""
    if not base.startswith(DOCKERFILE):
        return None
    path = Path(base.removeprefix(DOCKERFILE)).expanduser()
    if path.is_dir():
        path /= "Dockerfile"
    if not path.is_file():
        raise ConfigError(f"the base {base!r} does not name a Dockerfile: {path} does not exist")
    return BuildSpec(context=path.parent.resolve(), dockerfile=path.name)


def build(spec: BuildSpec, *, tag: str, options: ContainerOptions, extra: Sequence[str] = ()) -> list[str]:
    args = ["build", "--tag", tag, "--file", str(spec.context / spec.dockerfile), "--label", "slipstream.build=1"]
    if options.kind is EngineKind.PODMAN:
        args += ulimits()
        if options.runtime is not None:
            args += ["--runtime", options.runtime]
    for name, value in spec.args.items():
        args += ["--build-arg", f"{name}={value}"]
    return [*args, *extra, str(spec.context)]


def tag_of(spec: BuildSpec) -> str:
    """The name of a built image: a digest of all its inputs, so that the same context gets the same name."""
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

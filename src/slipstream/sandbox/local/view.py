"""Views: the read-only files that many sandboxes share, assembled once.

Output: a `HostView`, from which the keeper makes a read-only tree. Each sandbox sees it through its own overlays, which
are mounted as one.
Invariants: a view is read-only, and nothing in it is secret.

The kernel has one lock for all mounts of a machine. A sandbox assembled from its parts would take it sixty times, and
hundreds of concurrent starts would spend their time waiting for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_FROM_HOST = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
TERMINALS, SHARED_MEMORY = "/dev/pts", "/dev/shm"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
DEVICE_LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/core", "/proc/kcore"),
    ("/dev/ptmx", "pts/ptmx"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """Everything in it is named by its path inside. The default has only /dev."""

    folders: tuple[str, ...] = (TERMINALS, SHARED_MEMORY)
    files: tuple[tuple[str, bytes], ...] = ()
    links: tuple[tuple[str, str], ...] = DEVICE_LINKS
    copied: tuple[str, ...] = ()
    """Host paths copied when the view is made. Missing ones are left out."""
    shown: tuple[tuple[str, str], ...] = ()
    """Host folders: the path inside, and the path on the host."""
    devices: tuple[str, ...] = DEVICES


def host_view(*, files: Mapping[str, bytes], mount_points: tuple[str, ...]) -> HostView:
    """The host's programs, a minimal /etc, and mount points for the sandbox's own folders."""
    links = [*DEVICE_LINKS, ("/var/tmp", "../tmp")]
    folders = {"/usr": "/usr"}
    for name in SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            links.append((str(folder), str(folder.readlink())))
        elif folder.is_dir():
            folders[str(folder)] = str(folder)
    return HostView(
        folders=(TERMINALS, SHARED_MEMORY, "/etc", "/opt", "/run", "/var", "/proc", *mount_points),
        files=tuple(files.items()),
        links=tuple(links),
        copied=ETC_FROM_HOST,
        shown=tuple(folders.items()),
    )

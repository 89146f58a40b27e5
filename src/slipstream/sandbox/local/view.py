"""Views: what many sandboxes see alike, put together once.

Input: what a sandbox is to find that is no file of its own. Output: a `HostView`, which the keeper makes as a
read-only tree. Each sandbox sees it through overlays of its own, which bwrap shows with one mount.
Invariants: nothing in a view can be written to, and nothing in it is secret.

The kernel has one lock for all mounts of a machine, and bwrap reads the whole table of them after every one it makes.
A sandbox put together from its parts took that lock sixty times, and where hundreds start at once they waited for it
and for little else.
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
    """Everything in it is named by its path inside. As it is by default it has /dev alone."""

    folders: tuple[str, ...] = (TERMINALS, SHARED_MEMORY)
    files: tuple[tuple[str, bytes], ...] = ()
    links: tuple[tuple[str, str], ...] = DEVICE_LINKS
    copied: tuple[str, ...] = ()
    """Of this machine, as they are when the view is made. What is not there is left out."""
    shown: tuple[tuple[str, str], ...] = ()
    """Folders of this machine: where they are inside, and where here."""
    devices: tuple[str, ...] = DEVICES


def host_view(*, files: Mapping[str, bytes], mount_points: tuple[str, ...], shown: Mapping[str, str]) -> HostView:
    """The programs of this machine, a minimal /etc, and places to mount the sandbox's own folders at."""
    links = [*DEVICE_LINKS, ("/var/tmp", "../tmp")]
    folders = {"/usr": "/usr", **shown}
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

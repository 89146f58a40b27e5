"""The layers and views of local sandboxes: each a tmpfs, and overlays over what sandboxes share. Standalone (Python
3.8+, standard library only).

Invariants: a layer has a fixed size; a view is read-only. Each program sees its view through its own overlays: an
overlay has its own inodes, so a lock or a watch on a shared file stays inside one sandbox.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH112, PTH118, PTH120, PTH123, PTH211

from __future__ import annotations

import errno
import os

from slipstream.sandbox.keeper.copying import copy_of_host
from slipstream.sandbox.keeper.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
    unmount,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    View = Any
    """A dict. `Any`, since this program cannot import the types of the package."""

BYTES_PER_FILE = 4096
"""The number of files a layer can hold depends on its size: empty files take memory too."""
MOUNT_FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "nosymfollow": 0x100,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": 0x200000,
}


def make_layer(place: str, num_bytes: int, folders: dict[str, int], terminals: str = "") -> None:
    """`terminals` is its folder for pseudo-terminals, if it has one."""
    options = f"size={num_bytes},nr_inodes={max(1024, num_bytes // BYTES_PER_FILE)},mode=0755"
    mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)
    umask = os.umask(0)
    try:
        for name, mode in folders.items():
            os.mkdir(f"{place}/{name}", mode)
    finally:
        os.umask(umask)
    if terminals:
        options = "newinstance,ptmxmode=0666,mode=620"
        mount("devpts", os.path.join(place, terminals), "devpts", MS_NOSUID | MS_NOEXEC, options)


def drop_layer(place: str) -> None:
    """Unmount a layer. A sandbox that still has it mounted keeps it."""
    unmount(place)
    os.rmdir(place)


def fill_view(place: str, view: View) -> None:
    """Put a view into a layer and make it read-only."""

    def inside(path: str) -> str:
        target = place + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return target

    for path in view["folders"]:
        os.makedirs(place + path, exist_ok=True)
    for path, content in view["files"]:
        with open(inside(path), "wb") as file:
            file.write(content)
        os.chmod(place + path, 0o444)
    for path, target in view["links"]:
        os.symlink(target, inside(path))
    for path in view["copied"]:
        copy_of_host(path, inside(path))
    for path, source in view["shown"]:
        os.makedirs(place + path, exist_ok=True)
        mount(source, place + path, "", MS_BIND | MS_REC)
    for path in view["devices"]:
        os.close(os.open(inside(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        mount(path, place + path, "", MS_BIND)
    devices = {place + path for path in view["devices"]}
    for path, flags in mounts_below(place):
        wanted = flags | MS_NOSUID if path in devices else flags | MS_NOSUID | MS_NODEV | MS_RDONLY
        if wanted == flags:
            continue
        try:
            mount("none", path, "", wanted | MS_REMOUNT | MS_BIND)
        except OSError as error:
            if error.errno != errno.EACCES or path == place:  # nobody inside can reach it either
                raise


def mount_overlay(source: str, empty: str, place: str) -> None:
    """Mount a folder read-only with its own inodes. The kernel requires a second lower folder."""
    options = f"lowerdir={source}:{empty},userxattr"
    mount("overlay", place, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options)


def mounts_in_view(view: str) -> dict[str, bool]:
    """The mounts in a view by path, and whether each can be shown through an overlay.

    An overlay does not include mounts inside its folder, and the kernel refuses one that would hide them.
    """
    paths = [path[len(view) :] for path, _ in mounts_below(view) if path != view]
    inner = {path for path in paths if any(path.startswith(other + "/") for other in paths)}
    return {
        path: os.path.isdir(view + path) and not any(other.startswith(path + "/") for other in inner)
        for path in paths
        if path not in inner
    }


def mount_view(view: str, parts: dict[str, bool], place: str, empty: str) -> None:
    """Mount a view. `parts` says which mounts get an overlay; the path "" is the view itself."""
    if not parts.get(""):
        mount(view, place, "", MS_BIND | MS_REC)
        return
    mount_overlay(view, empty, place)
    for path, is_overlaid in parts.items():
        if path and is_overlaid:
            mount_overlay(view + path, empty, place + path)
        elif path:
            mount(view + path, place + path, "", MS_BIND | MS_REC)


def try_overlays(view: str, place: str, empty: str) -> dict[str, bool]:
    """The mounts of a view, and which of them this machine can show through an overlay."""
    parts = {"": True, **mounts_in_view(view)}
    for path, is_overlaid in parts.items():
        if is_overlaid:
            try:
                mount_overlay(view + path, empty, place)
            except OSError:
                parts[path] = False
            else:
                unmount(place)
    return parts


def mounts_below(place: str) -> list[tuple[str, int]]:
    """The mounts at and below a path, with their flags."""
    found = []
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            fields = line.split()
            path = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
            if path == place or path.startswith(place + "/"):
                flags = [MOUNT_FLAGS.get(name, 0) for name in fields[5].decode().split(",")]
                found.append((path, sum(flags)))
    return found

"""Turns a fork of the keeper into process 1 of a sandbox. Standalone (Python 3.8+, standard library only).

Input: a `spawn` request, and the folder of layers. The process is in a mount and a pid namespace of its own already;
they belong to the keeper's user namespace, in which a sandbox has no rights. Output: none; `become` runs the supervisor
until the sandbox ends.
Invariants: before the supervisor handles its first request, the process is in its own user, pid, mount, ipc, uts,
network and cgroup namespaces; nothing of the host is mounted except what the request names; it has no capability and
cannot get one, and no further user namespace; it has no descriptor but the control socket and those of the supervisor.

Nothing that an agent made is followed out of the sandbox: places are resolved below the new root, and before /proc,
with its links to a process's descriptors, is there.
"""

# ruff: noqa: PTH103, PTH118

from __future__ import annotations

import _socket
import fcntl
import os
import resource
import struct
import sys

from slipstream.sandbox.keeper.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    PR_SET_NO_NEW_PRIVS,
    change_root,
    checked,
    drop_capabilities,
    libc,
    mount,
    prctl,
    set_filter,
    unmount,
    unshare,
)
from slipstream.sandbox.supervisor import program as supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Request = Any
    """A dict. `Any`, since this program cannot import the types of the package."""

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
HOST_NAME = "sandbox"
SET_INTERFACE_FLAGS, IS_UP_AND_RUNNING = 0x8914, 0x41
RISKY_IN_PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"
SPECIAL_IN_OPTIONS = ("\\", ",", ":")


class Places:
    """Where a process 1 finds its parts before the change of the root: in its own mount namespace."""

    def __init__(self, layers: str) -> None:
        self.layer = os.path.join(layers, "own")
        self.view = os.path.join(layers, "own-view")
        """Through the sandbox's own overlays."""
        self.proc = os.path.join(layers, "own-proc")
        self.root = os.path.join(layers, "own-root")
        """Where its root is put together."""


def load_everything() -> None:
    """Load what the supervisor would otherwise import in a sandbox, from files that an agent may have written."""
    "".encode("utf-16-be")


def enter_user_namespace(flags: int, what: str) -> None:
    """Our user and group are the only ones in it."""
    uid, gid = os.getuid(), os.getgid()
    unshare(flags, what)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        write(f"/proc/self/{name}", text)


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def become(request: Request, places: Places, control: int, stderr: int) -> NoReturn:
    """Never returns."""
    status = 1
    try:
        os.dup2(stderr, 2)
        sys.path.clear()
        sys.meta_path.clear()
        os.setsid()
        if (open_files := request["open_files"]) is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        make_root(request, places)
        checked(prctl(PR_SET_NO_NEW_PRIVS, 1), "forbidding new privileges")
        enter_user_namespace(new_namespaces(), "making namespaces")
        start_loopback()
        _socket.sethostname(HOST_NAME)
        give_up_rights(request["filter"])
        supervisor.supervise(control, request["workdir"], request["limits"])
        status = 0
    except BaseException as error:  # a traceback would read the source from the sandbox's files
        os.write(2, f"process 1: {type(error).__name__}: {error}{lines_of(error)}\n".encode("utf-8", "replace"))
    finally:
        os._exit(status)


def new_namespaces() -> int:
    flags = CLONE_NEWUSER | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET
    return flags | CLONE_NEWCGROUP if os.path.exists("/proc/self/ns/cgroup") else flags  # noqa: PTH110


def lines_of(error: BaseException) -> str:
    """Where it was raised, the outermost call first."""
    trace, said = error.__traceback__, ""
    while trace:
        code = trace.tb_frame.f_code
        said += f", {os.path.basename(code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119
        trace = trace.tb_next
    return said


def start_loopback() -> None:
    asked = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        fcntl.ioctl(asked.fileno(), SET_INTERFACE_FLAGS, struct.pack("16sh14x", b"lo", IS_UP_AND_RUNNING))
    finally:
        asked.close()


# ---------------------------------------------------------------- the root


def make_root(request: Request, places: Places) -> None:
    """Make the sandbox's root, with the layer's folders in it, and leave the host's."""
    layer = places.layer
    for name, lowers in request["overlays"]:
        mount_overlay(lowers, f"{layer}/{name}", f"{layer}/{name}-work", f"{layer}/{name}-overlay")
    root = f"{layer}/{request['root']}" if request["root"] else places.view
    mount(root, places.root, "", MS_BIND | MS_REC)
    old, shared, proc, own = (os.open(path, FOLDER) for path in ("/", places.view, places.proc, layer))
    os.chroot(places.root)  # so that no link leads out, not even with "..", while the host's root is still there
    if request["root"]:
        os.fchdir(shared)
        bind("dev", "/dev")
    os.fchdir(own)
    for source, target, is_read_only in request["binds"]:
        bind(source, target, is_read_only=is_read_only)
    os.makedirs(request["workdir"], exist_ok=True)
    workdir = os.open(request["workdir"], FOLDER)
    os.fchdir(proc)
    show_proc()
    os.fchdir(old)
    os.chroot(".")
    change_root(places.root)
    os.fchdir(old)
    unmount(".")
    os.fchdir(workdir)
    for fd in (old, shared, proc, own, workdir):
        os.close(fd)


def mount_overlay(lowers: list[str], upper: str, work: str, place: str) -> None:
    """`lowers`: bottom to top."""
    below = ":".join(escaped(lower) for lower in reversed(lowers))
    options = f"lowerdir={below},upperdir={escaped(upper)},workdir={escaped(work)},userxattr"
    mount("overlay", place, "overlay", MS_NOSUID | MS_NODEV, options)


def escaped(path: str) -> str:
    for character in SPECIAL_IN_OPTIONS:
        path = path.replace(character, f"\\{character}")
    return path


def bind(source: str, target: str, *, is_read_only: bool = False) -> None:
    """Mount a folder or a file at its place, which is made if it is a missing folder."""
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(target, exist_ok=True)
    mount(source, target, "", MS_BIND | MS_REC)
    if is_read_only:
        mount("none", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def show_proc() -> None:
    """The current folder is the sandbox's own /proc. Nobody inside could write to the risky parts of it; where one
    could all the same, they are read-only."""
    bind(".", "/proc")
    for path in RISKY_IN_PROC:
        if os.access(path, os.W_OK):
            bind(path, path, is_read_only=True)


# ---------------------------------------------------------------- rights


def give_up_rights(instructions: bytes) -> None:
    """Drop all capabilities, forbid further user namespaces, and filter system calls.

    The limit on user namespaces belongs to the outer one of two, in which nothing inside has any right.
    """
    write(USER_NAMESPACES, "1")
    enter_user_namespace(CLONE_NEWUSER, "making the inner user namespace")
    drop_capabilities()
    if libc.unshare(CLONE_NEWUSER) == 0:
        raise OSError("further user namespaces could be created")
    if instructions:
        set_filter(instructions)

"""The keeper: a small process beside a run that creates the layers of its local sandboxes and starts them. A standalone
program (Python 3.8+, standard library only), run by bwrap in its own user and mount namespaces.

Input: requests on a SEQPACKET control socket, one marshalled dict each, with file descriptors. Output: a JSON reply for
each, with file descriptors where noted. Invariants: a layer is its own tmpfs with a fixed size; a view is a read-only
layer; only this process and the sandboxes it started can reach either, and the contents vanish with them; what it
starts has no capabilities; it follows no link in an agent's files; when the control socket closes it exits.

    keeper.py CONTROL_FD LAYERS slipstream-lease=ID

Requests: `spawn` a program with its own layer (returns its pidfd and a descriptor of the layer), `make` a shared layer
or `make_view` (returns a descriptor of it), `drop` such a layer, `listen` on a Unix socket in a layer (returns it),
`copy` folders from one layer to another.

A program's layer is mounted where only that program and its sandbox can see it. If all were mounted here, each new
sandbox would copy the mounts of all the others, and take them down again, under the kernel's one mount lock.

Each program sees its view through its own overlays. An overlay has its own inodes, so a lock or a watch on a shared
file stays inside one sandbox.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH112, PTH118, PTH120, PTH123, PTH211, SIM105

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import marshal
import os
import resource
import select
import signal
import socket
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Request = Any
    """A dict. `Any`, since this program cannot import the types of the package."""

PACKET_BYTES = 1 << 16
MAX_FDS = 32
FD_BYTES = 4
FIRST_SPARE_FD = 300
MAX_ENDED = 1024
COPY_BYTES = 1 << 20
OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""These fail a copy; any other error only skips one entry."""
BYTES_PER_FILE = 4096
"""The number of files a layer can hold depends on its size: empty files take memory too."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 0x20, 0x1000, 0x4000
MNT_DETACH, CLONE_NEWNS = 2, 0x20000
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
PR_SET_PDEATHSIG, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 47, 4
OVERLAY_XATTRS = ("user.overlay.opaque", "user.overlay.redirect", "user.overlay.metacopy")
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# ---------------------------------------------------------------- layers


def mount(source: str, place: str, kind: str, flags: int, options: str = "") -> None:
    result = libc.mount(os.fsencode(source), os.fsencode(place), kind.encode(), flags, options.encode())
    checked(result, f"mounting {place}")


def make_layer(place: str, num_bytes: int, folders: dict[str, int], terminals: str = "") -> None:
    """`terminals` is its folder for pseudo-terminals, if it has one."""
    options = f"size={num_bytes},nr_inodes={max(1024, num_bytes // BYTES_PER_FILE)},mode=0755"
    mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name, mode in folders.items():
        os.mkdir(os.path.join(place, name))
        os.chmod(os.path.join(place, name), mode)
    if terminals:
        options = "newinstance,ptmxmode=0666,mode=620"
        mount("devpts", os.path.join(place, terminals), "devpts", MS_NOSUID | MS_NOEXEC, options)


def drop_layer(place: str) -> None:
    """Unmount a layer. A sandbox that still has it mounted keeps it."""
    checked(libc.umount2(os.fsencode(place), MNT_DETACH), "unmounting a layer")
    os.rmdir(place)


def fill_view(place: str, view: Request) -> None:
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
                checked(libc.umount2(os.fsencode(place), MNT_DETACH), "unmounting an overlay")
    return parts


def copy_of_host(path: str, target: str) -> None:
    """Copy a host path; skipped if it does not exist or is not readable."""
    folder, name = os.path.split(path)
    try:
        here = os.open(folder, FOLDER)
    except OSError:
        return
    there = os.open(os.path.dirname(target), FOLDER)
    try:
        below = copy_entry(name, here, there)
        if below:
            copy_folder(*below)
            for fd in below:
                os.close(fd)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES):
            raise
    finally:
        os.close(here)
        os.close(there)


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


def copy_folder(source: int, target: int) -> None:
    """Copy a folder's files, links, folders and overlay whiteouts into another; skips everything else.

    The files belong to an agent and may change while they are read.
    """
    copy_marks(source, target)
    todo = [(os.dup(source), os.dup(target), names_in(source))]
    """The path from the top to the current folder, with the names left to copy: descriptors grow with depth only."""
    try:
        while todo:
            here, there, names = todo[-1]
            if not names:
                todo.pop()
                os.close(here)
                os.close(there)
                continue
            try:
                below = copy_entry(names.pop(), here, there)
            except OSError as error:
                if error.errno in OUT_OF_ROOM:
                    raise
                continue  # it vanished or changed its type
            if below:
                todo.append((*below, []))
                todo[-1][2].extend(names_in(below[0]))
    except OSError:
        for here, there, _ in todo:
            os.close(here)
            os.close(there)
        raise


def names_in(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def copy_entry(name: str, here: int, there: int) -> tuple[int, int] | None:
    """Copy one entry. A folder is created empty, and its (source, target) descriptors are returned."""
    facts = os.stat(name, dir_fd=here, follow_symlinks=False)
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
    elif stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=there)
    elif stat.S_ISREG(facts.st_mode):
        copy_file(name, here, there, facts)
    elif stat.S_ISDIR(facts.st_mode):
        source = os.open(name, FOLDER, dir_fd=here)
        try:
            os.mkdir(name, 0o700, dir_fd=there)
            target = os.open(name, FOLDER, dir_fd=there)
        except OSError:
            os.close(source)
            raise
        os.fchmod(target, mode)
        copy_marks(source, target)
        return source, target
    return None


def copy_file(name: str, here: int, there: int, facts: os.stat_result) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=there)
        try:
            while os.sendfile(target, source, None, COPY_BYTES):
                pass
            os.fchmod(target, stat.S_IMODE(facts.st_mode))
            os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def copy_marks(source: int, target: int) -> None:
    for name in OVERLAY_XATTRS:
        try:
            value = os.getxattr(source, name)
        except OSError:
            continue
        os.setxattr(target, name, value)


# ---------------------------------------------------------------- programs


def exec_child(request: Request, fds: list[int]) -> NoReturn:
    """The child's side of starting a program. Never returns. Descriptors get the numbers given in the request."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for join_file in fds[len(request["targets"]) :]:  # join the meter before starting anything
            os.write(join_file, b"0")
        spare = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE_FD) for fd in fds]
        for index, target in enumerate(request["targets"]):
            os.dup2(spare[index], target)
        os.chdir("/")
        if (open_files := request.get("open_files")) is not None:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
        os.execve(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"{request['argv'][0]}: {error.strerror}\n".encode("utf-8", "replace"))
    finally:
        os._exit(127)


# ---------------------------------------------------------------- requests


class Keeper:
    def __init__(self, control: socket.socket, layers: str) -> None:
        self.control = control
        self.layers = layers
        self.own_layer = os.path.join(layers, "own")
        """Where every program finds its own layer."""
        self.own_view = os.path.join(layers, "own-view")
        """Where every program finds its view, through its own overlays."""
        self.empty = os.path.join(layers, "empty")
        self.parts: dict[str, dict[str, bool]] = {}
        """By the name of a view: its mounts, and which get an overlay."""
        self.answering: dict[int, Request] = {}
        """By pid, the requests handled by a child process."""
        self.ended: dict[int, int] = {}
        """By pid, the wait status of the latest ended children, the oldest first."""
        for place in (self.own_layer, self.own_view, self.empty):
            os.mkdir(place)

    def reply(self, request_id: int, fds: list[int], **values: int | str) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(FD_BYTES, sys.byteorder) for fd in fds))]
        self.control.sendmsg([json.dumps({"id": request_id, **values}).encode()], rights if fds else [])

    def handle(self, request: Request, fds: list[int]) -> None:
        try:
            getattr(self, "do_" + request["op"])(request, fds)
        except OSError as error:
            self.refuse(request, error)

    def refuse(self, request: Request, error: OSError) -> None:
        kind = "limit" if error.errno == errno.ENOSPC else "host"
        self.reply(request["id"], [], error=kind, message=f"{request['op']}: {error.strerror or error}")

    def in_own_process(self, request: Request, answer: Callable[[], None]) -> None:
        """Handle a request in a child process, so that other requests do not wait."""
        pid = os.fork()
        if pid:
            self.answering[pid] = request
            return
        try:
            answer()
        except OSError as error:
            self.refuse(request, error)
        except Exception as error:  # otherwise the request would never be answered
            self.refuse(request, OSError(errno.EIO, f"{type(error).__name__}: {error}"))
        finally:
            os._exit(0)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.ended.pop(pid, None)
            self.ended[pid] = status
            if len(self.ended) > MAX_ENDED:
                del self.ended[next(iter(self.ended))]
            request = self.answering.pop(pid, None)
            if request and os.WIFSIGNALED(status):  # it may not have answered; a second reply does no harm
                self.refuse(request, OSError(errno.ECHILD, "the process that handled it was killed"))

    # ---------------------------------------------------------------- layers

    def new_layer(self, request: Request, fill: Callable[[str], None]) -> None:
        place = os.path.join(self.layers, request["layer"])
        os.mkdir(place)
        try:
            make_layer(place, request["num_bytes"], request["folders"])
            fill(place)
        except OSError:
            if os.path.ismount(place):
                drop_layer(place)
            else:
                os.rmdir(place)
            raise
        folder = os.open(place, FOLDER)
        try:
            self.reply(request["id"], [folder])
        finally:
            os.close(folder)

    def do_make(self, request: Request, fds: list[int]) -> None:
        self.new_layer(request, lambda place: None)

    def do_make_view(self, request: Request, fds: list[int]) -> None:
        def fill(place: str) -> None:
            fill_view(place, request["view"])
            self.parts[request["layer"]] = try_overlays(place, self.own_view, self.empty)

        self.new_layer(request, fill)

    def do_drop(self, request: Request, fds: list[int]) -> None:
        drop_layer(os.path.join(self.layers, request["layer"]))
        self.parts.pop(request["layer"], None)
        self.reply(request["id"], [])

    def do_copy(self, request: Request, fds: list[int]) -> None:
        """Copies folders from the first layer to the second."""
        source, target = fds

        def copy() -> None:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # folders may be deeply nested
            for name in request["folders"]:
                here = os.open(name, FOLDER, dir_fd=source)
                copy_folder(here, os.open(name, FOLDER, dir_fd=target))
            self.reply(request["id"], [])

        self.in_own_process(request, copy)

    def do_listen(self, request: Request, fds: list[int]) -> None:
        path = f"/proc/self/fd/{fds[0]}/{request['path']}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(path)
            os.chmod(path, 0o777)  # anyone who can see it may connect
            listening.listen(64)
            self.reply(request["id"], [listening.fileno()])

    # ---------------------------------------------------------------- programs

    def do_hello(self, request: Request, fds: list[int]) -> None:
        self.reply(request["id"], [])

    def do_status(self, request: Request, fds: list[int]) -> None:
        """How a started program ended: the signal that killed it, or its exit status; neither while it runs."""
        self.reap()
        told = {}
        if (status := self.ended.get(request["pid"])) is not None:
            signaled = os.WIFSIGNALED(status)
            told = {"signal": os.WTERMSIG(status)} if signaled else {"exit": os.WEXITSTATUS(status)}
        self.reply(request["id"], [], **told)

    def do_spawn(self, request: Request, fds: list[int]) -> None:
        def start() -> None:
            checked(libc.unshare(CLONE_NEWNS), "making a mount namespace")
            make_layer(self.own_layer, request["num_bytes"], request["folders"], request["terminals"])
            view = os.path.join(self.layers, request["view"])
            mount_view(view, self.parts[request["view"]], self.own_view, self.empty)
            layer, pid = os.open(self.own_layer, FOLDER), os.getpid()
            self.reply(request["id"], [pidfd_open(pid), layer], pid=pid)
            exec_child(request, fds)

        self.in_own_process(request, start)

    def receive(self) -> bool:
        """Handle one request. False at the end of the control socket."""
        space = socket.CMSG_SPACE(MAX_FDS * FD_BYTES)
        packet, extra, _, _ = self.control.recvmsg(PACKET_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                ends = range(FD_BYTES, len(data) + 1, FD_BYTES)
                fds += [int.from_bytes(data[end - FD_BYTES : end], sys.byteorder) for end in ends]
        try:
            if not packet:
                return False
            request, passed = marshal.loads(packet), list(fds)
            if "long" in request:
                size = os.fstat(passed[0]).st_size
                request = marshal.loads(os.pread(passed[0], size, 0))
                passed = passed[1:]
            self.handle(request, passed)
            return True
        finally:
            for fd in fds:
                os.close(fd)

    def serve(self, wakeup: int) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wakeup in ready:
                os.read(wakeup, 4096)
                self.reap()
            if self.control.fileno() in ready and not self.receive():
                return


def pidfd_open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    fd = int(libc.syscall(434, pid, 0))  # Python 3.8 lacks it
    checked(min(fd, 0), "opening a pidfd")
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return fd


def main() -> None:
    control_fd, layers = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(control_fd, False)
    os.umask(0o022)
    # What is started has no capabilities; this process keeps its own.
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # giving up the keeper kills bwrap
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is meant for the run, which closes its sandboxes
    wakeup, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        Keeper(socket.socket(fileno=control_fd), layers).serve(wakeup)
    except (ConnectionError, BrokenPipeError):
        pass  # the run is gone


if __name__ == "__main__":
    main()

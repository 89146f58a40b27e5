"""The keeper: a small process beside a run that creates the layers of its local sandboxes and starts them. A standalone
program (Python 3.8+, standard library only), run by bwrap in its own user and mount namespaces.

Input: requests on a SEQPACKET control socket, one marshalled dict each, with file descriptors. Output: a JSON reply for
each, with file descriptors where noted. Invariants: a layer is its own tmpfs with a fixed size; a view is a read-only
layer; only this process and the sandboxes it started can reach either, and the contents vanish with them; it follows no
link in an agent's files; when the control socket closes it exits.

    main CONTROL_FD LAYERS slipstream-lease=ID

Requests: `spawn` a sandbox with its own layer (returns the pid and a pidfd of its process 1, and a descriptor of the
layer), `make` a shared layer or `make_view` (returns a descriptor of it), `drop` such a layer, `listen` on a Unix
socket in a layer (returns it), `copy` folders from one layer to another.

A sandbox's layer is mounted where only that sandbox can see it. If all were mounted here, each new sandbox would copy
the mounts of all the others, and take them down again, under the kernel's one mount lock.

Process 1 of a sandbox, its supervisor, is a fork of this process, in which its program is loaded already: no
interpreter has to start. It outlives this process, and ends with its own control socket.
"""

# ruff: noqa: PTH101, PTH102, PTH106, PTH118, SIM105

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import errno
import gc
import marshal
import os
import resource
import select
import sys

from slipstream.sandbox.keeper import process_one
from slipstream.sandbox.keeper.copying import FOLDER, copy_folder
from slipstream.sandbox.keeper.kernel import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_SET_PDEATHSIG,
    fork_into,
    mount,
    pidfd_open,
    prctl,
)
from slipstream.sandbox.keeper.layers import drop_layer, fill_view, make_layer, mount_view, try_overlays
from slipstream.sandbox.keeper.process_one import Places
from slipstream.sandbox.supervisor.program import as_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = Any
    """A dict. `Any`, since this program cannot import the types of the package."""

PACKET_BYTES = 1 << 16
MAX_FDS = 32
FD_BYTES = 4
MAX_ENDED = 1024


class Keeper:
    def __init__(self, control: _socket.socket, layers: str) -> None:
        self.control = control
        self.layers = layers
        self.places = Places(layers)
        self.empty = os.path.join(layers, "empty")
        self.parts: dict[str, dict[str, bool]] = {}
        """By the name of a view: its mounts, and which get an overlay."""
        self.answering: dict[int, Request] = {}
        """By pid, the requests handled by a child process."""
        self.ended: dict[int, int] = {}
        """By pid, the wait status of the latest ended children, the oldest first."""
        for place in (*vars(self.places).values(), self.empty):
            os.mkdir(place)

    def reply(self, request_id: int, fds: list[int], **values: int | str) -> None:
        packed = b"".join(fd.to_bytes(FD_BYTES, sys.byteorder) for fd in fds)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)]
        self.control.sendmsg([as_json({"id": request_id, **values})], rights if fds else [])

    def handle(self, request: Request, fds: list[int]) -> None:
        try:
            getattr(self, "do_" + request["op"])(request, fds)
        except OSError as error:
            self.refuse(request, error)

    def refuse(self, request: Request, error: OSError) -> None:
        is_full = error.errno == errno.ENOSPC and request["op"] != "spawn"  # which means: too many namespaces
        kind = "limit" if is_full else "host"
        self.reply(request["id"], [], error=kind, message=f"{request['op']}: {error.strerror or error}")

    def in_own_process(self, request: Request, answer: Callable[[], None], namespaces: int = 0) -> None:
        """Handle a request in a child process, so that other requests do not wait."""
        pid = fork_into(namespaces)
        if pid:
            self.answering[pid] = {"id": request["id"], "op": request["op"]}
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
            self.parts[request["layer"]] = try_overlays(place, self.places.view, self.empty)

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
        listening = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            listening.bind(path)
            os.chmod(path, 0o777)  # anyone who can see it may connect
            listening.listen(64)
            self.reply(request["id"], [listening.fileno()])
        finally:
            listening.close()

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
        """The descriptors: the control socket, stderr, and files of the meter, which are joined by writing to them."""

        def start() -> None:
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            places = self.places
            make_layer(places.layer, request["num_bytes"], request["folders"], request["terminals"])
            for name, content in request["files"].items():
                write_file(os.path.join(places.layer, name), content)
            view = os.path.join(self.layers, request["view"])
            mount_view(view, self.parts[request["view"]], places.view, self.empty)
            pid = int(os.readlink("/proc/self"))  # noqa: PTH115 - the number outside, where it is not 1
            mount("proc", places.proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
            for join_file in fds[2:]:
                os.write(join_file, b"0")
            self.reply(request["id"], [pidfd_open(os.getpid()), os.open(places.layer, FOLDER)], pid=pid)
            process_one.become(request, places, *fds[:2])

        self.in_own_process(request, start, CLONE_NEWNS | CLONE_NEWPID)

    def receive(self) -> bool:
        """Handle one request. False at the end of the control socket."""
        space = _socket.CMSG_SPACE(MAX_FDS * FD_BYTES)
        packet, extra, _, _ = self.control.recvmsg(PACKET_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, data in extra:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
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


def write_file(path: str, content: bytes) -> None:
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(content)
    os.chmod(path, 0o444)


def main() -> None:
    control_fd, layers = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(control_fd, False)
    os.umask(0o022)
    # What is started has no capabilities; this process keeps its own.
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL))  # giving up the keeper kills bwrap
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # ^C is meant for the run, which closes its sandboxes
    wakeup, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    process_one.load_everything()
    gc.freeze()  # what is loaded by now stays as it is, so that forks share its memory
    try:
        Keeper(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, control_fd), layers).serve(wakeup)
    except (ConnectionError, BrokenPipeError):
        pass  # the run is gone

"""The supervisor: process 1 of a local sandbox. A standalone program (Python 3.8+, standard library alone).

Input: requests on a SEQPACKET control socket, one marshalled dict each, with descriptors beside it. Output: replies as
JSON, and one `exit` message for every program it started. Invariants: no request, and nothing done by the programs it
runs, ends it; it reaps every orphan; when the control socket closes it exits, and with it every process of the sandbox.

    program.py CONTROL_FD WORKDIR slipstream-lease=ID LIMIT=VALUE...

Requests that expect a reply carry an `id`. `exec` is answered when the program ends (or could not be started), the
others at once. A request that does not fit a packet comes as `{"long": True}` with its bytes in the first descriptor.

Python's own modules would be two thirds of the time that a sandbox takes to start: json, socket, signal, ctypes,
contextlib, pathlib and typing each bring a train of others. So this program uses the C modules below them, reads
requests with `marshal`, which is safe for what the host sends, and spells its replies by hand, since the host must not
trust what comes out of a sandbox.
"""

# ruff: noqa: PTH103, PTH108, PTH112, PTH116, PTH118, PTH120, PTH123, PTH208, SIM105

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found]
import _socket
import errno
import fcntl
import marshal
import os
import resource
import select
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Request = Any
    """A dict. `Any`, since this program cannot import the types of the package."""

PACKET_BYTES = 1 << 16
MAX_FDS = 16
COPY_BYTES = 1 << 20
FEW_BYTES = 64
SPARE_PROCESSES = 8
"""How many programs may still be started from outside when those inside have used up their number."""
FORK_TRIES = 3
NEARLY = 0.9
"""Of its number of processes: what a sandbox that is at its limit may be seen with, since they come and go."""
HELD_ELSEWHERE = 1 << 14
"""So many processes are allowed where not we hold the sandbox to their number, but its group."""
GROUP_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
FIRST_SPARE_FD = 300
FD_BYTES = 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
LIMIT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class Refused(Exception):
    """A request that cannot be met: `kind` is `file`, `limit` (the sandbox's own) or `host` (whose fault it is)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def from_os_error(path: str, error: OSError) -> Refused:
    kind = "limit" if error.errno in LIMIT_ERRNOS else "file"
    return Refused(kind, f"{path}: {error.strerror}")


# ---------------------------------------------------------------- processes


def processes() -> dict[int, tuple[int, int, int]]:
    """Of every live process in the sandbox: pid -> (parent, session, start time)."""
    found: dict[int, tuple[int, int, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            found[int(name)] = (int(fields[1]), int(fields[3]), int(fields[19]))
    return found


def descendants(
    leader: int, table: dict[int, tuple[int, int, int]], skipped: frozenset[tuple[int, int]] = frozenset()
) -> set[int]:
    """All processes below `leader`, without the branches that start at a (pid, start time) in `skipped`."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, start) in table.items():
        if (pid, start) not in skipped:
            children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [leader]
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(below)
        todo.extend(below)
    return found


def num_tasks() -> int:
    """How many processes the sandbox has, as the kernel counts them: threads count each, and so do the dead that nobody
    has waited for. 0 if it cannot be seen."""
    num = 0
    try:
        names = os.listdir("/proc")
    except OSError:
        return 0
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    num += int(file.read().rpartition(b")")[2].split()[17])
            except (OSError, IndexError):
                pass
    return num


def send_signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def kill_session(leader: int) -> None:
    """Kill a program, its process group, its session and what descends from it."""
    roots = {leader}
    for _ in range(50):
        table = processes()
        found = {pid for pid, (_, session, _) in table.items() if leader in (pid, session)}
        for root in roots:
            found |= descendants(root, table)
        found.discard(1)
        try:
            os.killpg(leader, _signal.SIGKILL)  # the whole group in one step, before it can fork any further
        except ProcessLookupError:
            pass
        if not found:
            return
        send_signal(found, _signal.SIGKILL)
        roots |= found


def set_limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Become the program: by its path, or the first of its name on the environment's PATH. Returns never; raises."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    denied: OSError | None = None
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = denied or error
    raise denied or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def become(request: Request, fds: list[int], limits: dict[str, int]) -> NoReturn:
    """The child's part of starting a program: never returns."""
    status = 126
    try:
        _signal.set_wakeup_fd(-1)
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
        os.setsid()
        spare = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE_FD) for fd in fds]
        for index, target in enumerate(request["targets"]):
            os.dup2(spare[index], target)
        os.chdir(request["cwd"])
        for name, value in limits.items():
            set_limit(getattr(resource, name), value)
        execute(request["argv"], request["env"])
    except (FileNotFoundError, NotADirectoryError) as error:
        status = 127
        os.write(2, f"{request['argv'][0]}: {error.strerror}\n".encode("utf-8", "replace"))
    except (OSError, ValueError, MemoryError) as error:
        os.write(2, f"{request['argv'][0]}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(status)


# ---------------------------------------------------------------- files


def open_regular(path: str, flags: int) -> int:
    """Open what exists as a regular file, and nothing else: neither a FIFO nor a device is ever opened."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise Refused("file", f"{path}: not a regular file")
        return os.open(f"/proc/self/fd/{place}", flags | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place)


def most_tasks(most: int) -> int:
    """How many processes it may have: `most`, or what its group says, where that can be seen. 0 if nobody tells."""
    for path in GROUP_LIMITS:
        try:
            fd = open_regular(path, os.O_RDONLY)
            try:
                most = min(most, int(os.read(fd, FEW_BYTES)))
            finally:
                os.close(fd)
        except (OSError, ValueError, Refused):
            pass
    return most if most < HELD_ELSEWHERE else 0


def read_file(path: str, max_bytes: int, target: int) -> int:
    fd = open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        copied = 0
        while size <= max_bytes:
            piece = os.read(fd, min(COPY_BYTES, max_bytes + 1 - copied))
            if not piece:
                return copied
            copied += len(piece)
            size = max(size, copied)
            if size <= max_bytes:
                write_all(target, piece)
        raise Refused("file", f"{path}: larger than {max_bytes} bytes")
    finally:
        os.close(fd)


def write_all(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def open_for_writing(path: str) -> int:
    """Most are new, so that is tried first."""
    try:
        return create(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return create(path)
    except FileExistsError:
        return open_existing(path)


def create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def open_existing(path: str) -> int:
    """A file that is there; or a new one in its place, where it cannot be written to."""
    try:
        fd = open_regular(path, os.O_WRONLY)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ETXTBSY):
            raise
    else:
        if os.fstat(fd).st_dev == os.stat("/proc").st_dev:  # /proc/self/mem is this very program
            os.close(fd)
            raise Refused("file", f"{path}: not a place for files")
        return fd
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    return create(path)


def write_file(path: str, mode: int, source: int, start: int, size: int) -> None:
    fd = open_for_writing(path)
    try:
        os.ftruncate(fd, 0)
        end = start + size
        while start < end:
            copied = os.sendfile(fd, source, start, end - start)
            if not copied:
                raise Refused("file", f"{path}: its contents ended early")
            start += copied
        os.fchmod(fd, mode)
    except OSError:
        os.ftruncate(fd, 0)
        raise
    finally:
        os.close(fd)


# ---------------------------------------------------------------- requests


def as_json(values: dict[str, int | str]) -> bytes:
    return ("{" + ", ".join(f"{quoted(key)}: {spelt(value)}" for key, value in values.items()) + "}").encode()


def spelt(value: int | str) -> str:
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return (
        '"' + "".join(chr(code) if 31 < code < 127 and code not in b'"\\' else f"\\u{code:04x}" for code in codes) + '"'
    )


class Supervisor:
    def __init__(self, control: _socket.socket, workdir: str, limits: dict[str, int], expendable: int) -> None:
        self.control = control
        self.workdir = workdir
        self.limits = limits
        self.running: dict[int, int] = {}  # the id of an exec request -> pid
        self.ids: dict[int, int] = {}  # and the other way round
        self.terminals: dict[int, list[int]] = {}  # the id of an exec request -> the other side of its terminal
        self.marks: dict[int, frozenset[tuple[int, int]]] = {}  # the id of an exec request -> what ran when marked
        self.expendable = expendable

    def reply(self, request_id: int, **values: int | str) -> None:
        text = as_json({"id": request_id, **values})
        if len(text) > PACKET_BYTES:
            text = as_json({"id": request_id, "error": "file", "message": "the answer is too long"})
        self.control.sendall(text)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            request_id = self.ids.pop(pid, None)
            if request_id is not None:
                del self.running[request_id]
                self.marks.pop(request_id, None)
                for fd in self.terminals.pop(request_id):
                    os.close(fd)
                code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self.reply(request_id, exit=code)

    def handle(self, request: Request, fds: list[int]) -> None:
        operation = getattr(self, "do_" + request["op"])
        try:
            operation(request, fds)
        except Refused as error:
            self.reply(request.get("id"), error=error.kind, message=str(error))

    def do_hello(self, request: Request, fds: list[int]) -> None:
        self.reply(request["id"])

    def do_exec(self, request: Request, fds: list[int]) -> None:
        cwd = request["cwd"] = os.path.join(self.workdir, request["cwd"])
        if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
            raise Refused("file", f"{cwd}: not a folder that can be entered")
        terminal: list[int] = []
        if "terminal" in request:
            try:
                terminal = list(os.openpty())
                request["targets"].append(request["terminal"])
            except OSError:
                pass  # none is left: then the program has none
        try:
            pid = self.fork_surely()
            if pid == 0:
                become(request, fds + terminal[1:], self.limits)
        except Refused:
            for fd in terminal[:1]:
                os.close(fd)
            raise
        finally:
            for fd in terminal[1:]:
                os.close(fd)
        self.running[request["id"]] = pid
        self.ids[pid] = request["id"]
        self.terminals[request["id"]] = terminal[:1]

    def fork_surely(self) -> int:
        """Raises Refused. A sandbox that was at its limit and no more is when it is looked at gets its process the next
        time; one that is refused again and again with room to spare is refused by the host."""
        for _ in range(FORK_TRIES):
            try:
                return self.fork()
            except OSError as error:
                refused = error
            if refused.errno == errno.EAGAIN and num_tasks() >= NEARLY * most_tasks(self.limits["RLIMIT_NPROC"]):
                raise Refused("limit", f"no process could be started: {refused.strerror}")
        raise Refused("host", f"the host could not start a process: {refused.strerror}")

    def fork(self) -> int:
        """Where memory runs out the kernel looks for whom to kill. Files in memory count for no process, so that it
        might be the supervisor: its children are to go first, and a child is born with what its parent has."""
        if self.expendable < 0:
            return os.fork()
        os.pwrite(self.expendable, b"500", 0)
        try:
            return os.fork()
        finally:
            os.pwrite(self.expendable, b"0", 0)

    def do_kill(self, request: Request, fds: list[int]) -> None:
        pid = self.running.get(request["target"])
        if pid is not None:
            kill_session(pid)

    def do_mark(self, request: Request, fds: list[int]) -> None:
        self.marks[request["target"]] = frozenset((pid, start) for pid, (_, _, start) in processes().items())
        self.reply(request["id"])

    def do_signal(self, request: Request, fds: list[int]) -> None:
        """Signal what a program started since it was marked, and the program itself if `leader` is set."""
        leader = self.running.get(request["target"])
        if leader is None:
            return
        pids = descendants(leader, processes(), self.marks.get(request["target"], frozenset()))
        if request["leader"]:
            pids.add(leader)
        send_signal(pids, request["signal"])

    def do_read(self, request: Request, fds: list[int]) -> None:
        path = os.path.join(self.workdir, request["path"])
        try:
            self.reply(request["id"], size=read_file(path, request["max_bytes"], fds[0]))
        except OSError as error:
            raise from_os_error(path, error) from error
        except ValueError as error:
            raise Refused("file", f"{path!r}: {error}") from error

    def do_write(self, request: Request, fds: list[int]) -> None:
        start = 0
        for path, mode, size in request["files"]:
            path = os.path.join(self.workdir, path)
            if size > self.limits["RLIMIT_FSIZE"]:
                most = self.limits["RLIMIT_FSIZE"]
                raise Refused("limit", f"{path}: {size} bytes, where a file may have {most}")
            try:
                write_file(path, mode, fds[0], start, size)
            except OSError as error:
                raise from_os_error(path, error) from error
            except ValueError as error:
                raise Refused("file", f"{path!r}: {error}") from error
            start += size
        self.reply(request["id"])

    def receive(self) -> bool:
        """Take one request. False at the end of the control socket."""
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


def settle(control_fd: int) -> int:
    """Hold nothing but the control socket, and be out of reach of the programs to come. A descriptor comes back by
    which it is said how readily this process is to be killed; -1 if there is none."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control_fd:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself is gone by now
    os.set_inheritable(control_fd, False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    try:  # later it may not be opened any more
        expendable = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        expendable = -1
    if prctl(PR_SET_DUMPABLE, 0) or prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL)):
        raise SystemExit("the supervisor could not make itself untraceable, or die with bwrap")
    return expendable


def prctl(option: int, value: int) -> int:
    """What `ctypes.CDLL(None).prctl` is made of."""
    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    return int(_ctypes.call_cdeclfunction(function, (option, value, 0, 0, 0)))


def main() -> None:
    control_fd, workdir = int(sys.argv[1]), sys.argv[2]
    limits = {name: int(value) for name, _, value in (text.partition("=") for text in sys.argv[4:])}
    expendable = settle(control_fd)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # which, for process 1, means: cannot be sent from inside
    wakeup, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    set_limit(resource.RLIMIT_NPROC, limits["RLIMIT_NPROC"] + SPARE_PROCESSES)
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, control_fd)
    Supervisor(control, workdir, limits, expendable).serve(wakeup)


if __name__ == "__main__":
    main()

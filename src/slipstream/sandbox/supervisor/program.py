"""The supervisor: process 1 of a sandbox. A standalone program (Python 3.8+, standard library only).

Input: requests on a SEQPACKET control socket, one marshalled dict each, with file descriptors. Output: JSON replies,
and one `exit` message for every program it started. Invariants: no request, and nothing the programs do, ends it; it
reaps every orphan; when the control socket closes it exits, and every process of the sandbox with it.

    program.py CONTROL_FD WORKDIR slipstream-lease=ID LIMIT=VALUE...

Requests that expect a reply carry an `id`. `exec` is answered when the program ends (or could not be started), the
others at once. A request too long for a packet arrives as `{"long": True}`, with its bytes in the first descriptor.

Importing json, socket, signal, ctypes, contextlib, pathlib and typing would take two thirds of a sandbox's start. So
this program uses the C modules below them, reads requests with `marshal` (safe, since they come from the host) and
writes JSON replies by hand, since the host must not trust what comes out of a sandbox.
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
"""How many programs the host may still start when those inside have reached the process limit."""
FORK_TRIES = 3
NEAR_LIMIT = 0.9
"""A sandbox with this share of its processes counts as at the limit, since processes come and go."""
CGROUP_ENFORCED = 1 << 14
"""An RLIMIT_NPROC this high means that a cgroup, and not we, enforces the number of processes."""
GROUP_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
FIRST_SPARE_FD = 300
FD_BYTES = 4
PR_SET_DUMPABLE = 4
LIMIT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class RequestError(Exception):
    """A request that failed: `kind` is `file`, `limit` (a limit of the sandbox) or `host` (the host's fault)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def request_error(path: str, error: OSError) -> RequestError:
    kind = "limit" if error.errno in LIMIT_ERRNOS else "file"
    return RequestError(kind, f"{path}: {error.strerror}")


# ---------------------------------------------------------------- processes


def processes() -> dict[int, tuple[int, int, int]]:
    """Every live process in the sandbox: pid -> (parent, session, start time)."""
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
    """All descendants of `leader`, except branches that start at a (pid, start time) in `skipped`."""
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
    """How many processes the sandbox has, as the kernel counts them: each thread, and zombies too. 0 if unknown."""
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
    """Kill a program, its process group, its session and its descendants."""
    roots = {leader}
    for _ in range(50):
        table = processes()
        found = {pid for pid, (_, session, _) in table.items() if leader in (pid, session)}
        for root in roots:
            found |= descendants(root, table)
        found.discard(1)
        try:
            os.killpg(leader, _signal.SIGKILL)  # the whole group at once, before it can fork again
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
    """Exec a program by its path, or the first match on the environment's PATH. Never returns; raises on failure."""
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


def exec_child(request: Request, fds: list[int], limits: dict[str, int]) -> NoReturn:
    """The child's side of starting a program. Never returns."""
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
    """Open an existing regular file; never opens a FIFO or a device."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise RequestError("file", f"{path}: not a regular file")
        return os.open(f"/proc/self/fd/{place}", flags | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place)


def max_tasks(rlimit: int) -> int:
    """The process limit: `rlimit`, or the cgroup's limit if that is visible and lower. 0 if unknown."""
    most = rlimit
    for path in GROUP_LIMITS:
        try:
            fd = open_regular(path, os.O_RDONLY)
            try:
                most = min(most, int(os.read(fd, FEW_BYTES)))
            finally:
                os.close(fd)
        except (OSError, ValueError, RequestError):
            pass
    return most if most < CGROUP_ENFORCED else 0


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
        raise RequestError("file", f"{path}: larger than {max_bytes} bytes")
    finally:
        os.close(fd)


def write_all(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def open_for_writing(path: str) -> int:
    """Open a file for writing; most are new, so creating is tried first."""
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
    """Open an existing file; replace it with a new one if it is not writable."""
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
            raise RequestError("file", f"{path}: files cannot be written here")
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
                raise RequestError("file", f"{path}: its content ended early")
            start += copied
        os.fchmod(fd, mode)
    except OSError:
        os.ftruncate(fd, 0)
        raise
    finally:
        os.close(fd)


# ---------------------------------------------------------------- requests


def as_json(values: dict[str, int | str]) -> bytes:
    return ("{" + ", ".join(f"{json_string(key)}: {json_value(value)}" for key, value in values.items()) + "}").encode()


def json_value(value: int | str) -> str:
    return json_string(value) if isinstance(value, str) else str(value)


def json_string(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return (
        '"' + "".join(chr(code) if 31 < code < 127 and code not in b'"\\' else f"\\u{code:04x}" for code in codes) + '"'
    )


class Supervisor:
    def __init__(self, control: _socket.socket, workdir: str, limits: dict[str, int], oom_score_fd: int) -> None:
        self.control = control
        self.workdir = workdir
        self.limits = limits
        self.running: dict[int, int] = {}  # the id of an exec request -> pid
        self.ids: dict[int, int] = {}  # pid -> the id of its exec request
        self.terminals: dict[int, list[int]] = {}  # the id of an exec request -> the other end of its terminal
        self.marks: dict[int, frozenset[tuple[int, int]]] = {}  # the id of an exec request -> what ran when marked
        self.oom_score_fd = oom_score_fd

    def reply(self, request_id: int, **values: int | str) -> None:
        text = as_json({"id": request_id, **values})
        if len(text) > PACKET_BYTES:
            text = as_json({"id": request_id, "error": "file", "message": "the reply is too long"})
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
        except RequestError as error:
            self.reply(request.get("id"), error=error.kind, message=str(error))

    def do_hello(self, request: Request, fds: list[int]) -> None:
        self.reply(request["id"])

    def do_exec(self, request: Request, fds: list[int]) -> None:
        cwd = request["cwd"] = os.path.join(self.workdir, request["cwd"])
        if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
            raise RequestError("file", f"{cwd}: not a folder that can be entered")
        terminal: list[int] = []
        if "terminal" in request:
            try:
                terminal = list(os.openpty())
                request["targets"].append(request["terminal"])
            except OSError:
                pass  # none is available: the program runs without
        try:
            pid = self.fork_with_retries()
            if pid == 0:
                exec_child(request, fds + terminal[1:], self.limits)
        except RequestError:
            for fd in terminal[:1]:
                os.close(fd)
            raise
        finally:
            for fd in terminal[1:]:
                os.close(fd)
        self.running[request["id"]] = pid
        self.ids[pid] = request["id"]
        self.terminals[request["id"]] = terminal[:1]

    def fork_with_retries(self) -> int:
        """Fork, with retries. Raises RequestError: `limit` if the sandbox is at its process limit, `host` if forking
        fails again and again although it is not."""
        for _ in range(FORK_TRIES):
            try:
                return self.fork()
            except OSError as error:
                refused = error
            if refused.errno == errno.EAGAIN and num_tasks() >= NEAR_LIMIT * max_tasks(self.limits["RLIMIT_NPROC"]):
                raise RequestError("limit", f"no process could be started: {refused.strerror}")
        raise RequestError("host", f"the host could not start a process: {refused.strerror}")

    def fork(self) -> int:
        """Fork so that the OOM killer prefers the child. Files in memory count for no process, so the kernel might
        choose the supervisor; a child inherits oom_score_adj, so it is raised for the moment of the fork."""
        if self.oom_score_fd < 0:
            return os.fork()
        os.pwrite(self.oom_score_fd, b"500", 0)
        try:
            return os.fork()
        finally:
            os.pwrite(self.oom_score_fd, b"0", 0)

    def do_kill(self, request: Request, fds: list[int]) -> None:
        pid = self.running.get(request["target"])
        if pid is not None:
            kill_session(pid)

    def do_mark(self, request: Request, fds: list[int]) -> None:
        self.marks[request["target"]] = frozenset((pid, start) for pid, (_, _, start) in processes().items())
        self.reply(request["id"])

    def do_signal(self, request: Request, fds: list[int]) -> None:
        """Signal the processes a program started since it was marked, and itself if `leader` is set."""
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
            raise request_error(path, error) from error
        except ValueError as error:
            raise RequestError("file", f"{path!r}: {error}") from error

    def do_write(self, request: Request, fds: list[int]) -> None:
        start = 0
        for path, mode, size in request["files"]:
            path = os.path.join(self.workdir, path)
            if size > self.limits["RLIMIT_FSIZE"]:
                most = self.limits["RLIMIT_FSIZE"]
                raise RequestError("limit", f"{path}: {size} bytes exceed the limit of {most} per file")
            try:
                write_file(path, mode, fds[0], start, size)
            except OSError as error:
                raise request_error(path, error) from error
            except ValueError as error:
                raise RequestError("file", f"{path!r}: {error}") from error
            start += size
        self.reply(request["id"])

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


def isolate_self(control_fd: int) -> int:
    """Close everything but the control socket, and become untraceable for the programs to come. Returns a descriptor of
    this process's oom_score_adj; -1 if there is none."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control_fd:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself is already closed
    os.set_inheritable(control_fd, False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    try:  # it cannot be opened later
        oom_score_fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        oom_score_fd = -1
    if prctl(PR_SET_DUMPABLE, 0):
        raise SystemExit("the supervisor could not make itself untraceable")
    return oom_score_fd


def prctl(option: int, value: int) -> int:
    """Like `ctypes.CDLL(None).prctl`."""
    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    return int(_ctypes.call_cdeclfunction(function, (option, value, 0, 0, 0)))


def supervise(control_fd: int, workdir: str, limits: dict[str, int]) -> None:
    """Serve requests until the control socket closes."""
    oom_score_fd = isolate_self(control_fd)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # for process 1 this means: cannot be sent from inside
    wakeup, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    set_limit(resource.RLIMIT_NPROC, limits["RLIMIT_NPROC"] + SPARE_PROCESSES)
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, control_fd)
    Supervisor(control, workdir, limits, oom_score_fd).serve(wakeup)


def main() -> None:
    limits = {name: int(value) for name, _, value in (text.partition("=") for text in sys.argv[4:])}
    supervise(int(sys.argv[1]), sys.argv[2], limits)


if __name__ == "__main__":
    main()

"""What hostile code in a local sandbox tries, and that each attempt fails, leaves the host usable, and is recorded as
what it was.

Reading host files, environments and processes, writing outside and privileges are in `test_local_isolation.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from slipstream.errors import SandboxBroken, SandboxFileError, SandboxLimitError
from slipstream.printable import printable
from slipstream.sandbox import LocalProvider
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.types import File, SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

SMALL = SandboxLimits(memory_mb=128, processes=32, disk_mb=16, file_mb=8, cpu_s=60)
MARK = f"8{os.getpid()}"
PASSWD = Path("/etc/passwd").read_bytes() if Path("/etc/passwd").exists() else b""


@contextlib.asynccontextmanager
async def opened(spec: SandboxSpec) -> AsyncIterator[LocalSandbox]:
    provider = LocalProvider()
    try:
        async with asyncio.timeout(300):
            yield await provider.open(spec)
    finally:
        await provider.aclose()


def within(body: Callable[[LocalSandbox], Awaitable[None]], limits: SandboxLimits = SMALL) -> None:
    async def main() -> None:
        async with opened(SandboxSpec(limits=limits)) as sandbox:
            await body(sandbox)

    asyncio.run(main())


async def bash(sandbox: LocalSandbox, script: str, timeout_s: float = 30) -> tuple[int | None, str]:
    result = await sandbox.exec(["bash", "-c", script], timeout_s=timeout_s)
    return result.exit_code, result.stdout.text() + result.stderr.text()


async def python(sandbox: LocalSandbox, script: str, timeout_s: float = 30) -> tuple[int | None, str]:
    result = await sandbox.exec(["python3", "-c", script], timeout_s=timeout_s)
    return result.exit_code, result.stdout.text() + result.stderr.text()


def host_is_usable() -> bool:
    return subprocess.run(["/bin/true"], timeout=20).returncode == 0


# ---------------------------------------------------------------- out of the sandbox


def test_two_sandboxes_share_nothing() -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            one, two = await asyncio.gather(*(provider.open(SandboxSpec(limits=SMALL)) for _ in range(2)))
            await bash(one, f"echo secret > /work/s; echo secret > /tmp/s; echo secret > /dev/shm/s; sleep {MARK} &")
            await python(
                one,
                "import socket, os, sys\ns = socket.socket(socket.AF_UNIX); s.bind('\\0secret'); s.listen()\n"
                "if os.fork() == 0:\n  os.setsid(); import time; time.sleep(100)\n",
                timeout_s=2,
            )
            _, seen = await bash(two, "cat /work/s /tmp/s /dev/shm/s; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            assert "secret\n" not in seen and MARK not in seen
            code, _ = await python(two, "import socket; socket.socket(socket.AF_UNIX).connect('\\0secret')")
            assert code != 0
            _, shared = await bash(two, "ipcs -m 2>/dev/null | grep -c 0x; readlink /proc/self/ns/*")
            _, other = await bash(one, "ipcs -m 2>/dev/null | grep -c 0x; readlink /proc/self/ns/*")
            same = set(shared.splitlines()[1:]) & set(other.splitlines()[1:])
            assert {name.partition(":")[0] for name in same} <= {"time", "time_for_children"}
        finally:
            await provider.aclose()

    asyncio.run(main())


def test_network_and_sockets_of_the_host() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0slipstream-{MARK}")
        abstract.listen()
        with abstract, socket.create_server(("127.0.0.1", 0)) as server:
            tries = {
                "loopback": f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)",
                "beyond": "socket.create_connection(('1.1.1.1', 53), 2)",
                "a name": "socket.getaddrinfo('example.com', 80)",
                "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
                "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
                "packet": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
                "vsock": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).connect((2, 1024))",
                "crypto": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
                "abstract": f"socket.socket(socket.AF_UNIX).connect('\\0slipstream-{MARK}')",
            }
            for name, attempt in tries.items():
                code, said = await python(sandbox, f"import socket; socket.setdefaulttimeout(2); {attempt}")
                assert code == 1 and "rror: " in said, (name, said)

    within(body)


def test_the_kernels_doors_are_shut() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        for attempt in (
            "unshare -Urmn true",
            "nsenter -t 1 -a true",
            "mount -t tmpfs none /tmp",
            "mount --bind / /tmp",
            "umount /proc",
            "pivot_root . .",
            "mknod /tmp/null c 1 3",
            "mknod /tmp/disk b 8 0",
            "chroot / true",
            "echo 1 > /proc/sys/kernel/core_pattern",
            "echo b > /proc/sysrq-trigger",
            "cat /proc/kcore > /dev/null",
            "cat /proc/1/root/etc/shadow",
            "cat /proc/1/environ",
            "ls -l /proc/1/fd/0",
            "cat /proc/1/mem > /dev/null",
            "dmesg",
            "date -s 2000-01-01",
            "hostname other",
            "swapon /tmp/x",
            "cat /dev/mem",
            "cat /dev/kmsg",
            "ls /sys/kernel",
            "sudo -n true",
            "su -c true",
        ):
            code, said = await bash(sandbox, attempt, timeout_s=10)
            assert code not in (0, None), (attempt, said)
        assert await sandbox.healthy()

    within(body)


CALLS = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
denied = {errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EINVAL, errno.EAFNOSUPPORT}
def refused(number, *args):
    result = libc.syscall(number, *args)
    return result == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)
tries = {
    "ptrace": (101, 0, 0, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 0), "keyctl": (250, 0, -3, 0),
    "io_uring_setup": (425, 1, 0), "open_by_handle_at": (304, 3, 0, 0), "kexec_load": (246, 0, 0, 0, 0),
    "init_module": (175, 0, 0, 0), "unshare a user namespace": (272, 0x10000000),
    "clone into namespaces": (56, 0x10000000 | 17, 0, 0, 0, 0), "clone3": (435, 0, 0), "setns": (308, 3, 0),
    "mount": (165, b"x", b"/tmp", b"tmpfs", 0, 0), "fsopen": (430, b"tmpfs", 0), "reboot": (169, 0xfee1dead, 0, 0, 0),
}
left = [name for name, call in tries.items() if not refused(*call)]
sys.exit(f"not refused: {left}" if left else 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_system_calls_that_no_agent_needs_are_refused() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        assert await python(sandbox, CALLS) == (0, "")
        status = (await bash(sandbox, "grep Seccomp: /proc/self/status"))[1]
        assert status.split() == ["Seccomp:", "2"]

    within(body)


def test_setuid_files_give_nothing() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await bash(sandbox, "cp /bin/bash /work/b && chmod 6755 /work/b")
        assert (await bash(sandbox, "/work/b -p -c 'id -u; id -g'"))[1] == "1000\n1000\n"
        _, found = await bash(sandbox, "find / -xdev -perm -4000 -type f 2>/dev/null | head -3")
        for program in found.split():
            _, said = await bash(sandbox, f"{program} --help; id -u", timeout_s=10)
            assert said.strip().splitlines()[-1] == "1000"

    within(body)


def test_input_cannot_be_pushed_into_a_terminal() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        push = "import fcntl, os, pty; m, s = pty.openpty(); fcntl.ioctl(s, 0x5412, b'x')"
        code, said = await python(sandbox, push)
        assert code == 1 and "Operation not permitted" in said
        assert (await bash(sandbox, "test -t 0 || test -t 1"))[0] == 1

    within(body)


# ---------------------------------------------------------------- eating the host


def test_a_memory_bomb_kills_itself_alone() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        code, said = await python(sandbox, "x = []\nwhile True: x.append(bytearray(1 << 20))", timeout_s=60)
        assert code == 137 or "MemoryError" in said
        forks = "import os\nfor _ in range(8): os.fork()\nx = bytearray(40 << 20)\nimport time; time.sleep(2)"
        await python(sandbox, forks, timeout_s=20)
        assert host_is_usable()
        assert (await bash(sandbox, "echo fine"))[1] == "fine\n"

    within(body)


def test_memory_in_files_is_memory_too() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        code, said = await bash(sandbox, "for n in $(seq 40); do head -c 4M /dev/zero > /dev/shm/$n || exit 3; done")
        assert code != 0, said
        assert (await bash(sandbox, "rm -f /dev/shm/*; echo fine"))[1] == "fine\n"

    within(body)


def test_a_fork_bomb_ends_at_its_deadline() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        started_s = time.monotonic()
        result = await sandbox.exec(["bash", "-c", ":() { : | : & }; :; sleep 1000"], timeout_s=1.0)
        assert result.timed_out and time.monotonic() - started_s < 30
        assert host_is_usable()
        while True:  # what it left in the background goes on until it is told to end
            with contextlib.suppress(SandboxLimitError):
                await bash(sandbox, "kill -9 -1")
                if (await bash(sandbox, "echo fine"))[1] == "fine\n":
                    return

    within(body)


def test_a_full_disk_is_the_sandboxes_own() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        free_before = os.statvfs("/tmp").f_bavail
        script = "for n in $(seq 100); do head -c 7M /dev/zero > /work/f$n || break; done; touch /work/{1..9999}"
        code, said = await bash(sandbox, script)
        assert code != 0 and "No space left" in said
        with pytest.raises(SandboxLimitError):
            await sandbox.write({"more": File(data=b"x" * (8 << 20))})
        assert free_before - os.statvfs("/tmp").f_bavail < (256 << 20) / os.statvfs("/tmp").f_frsize
        assert (await bash(sandbox, "find /work -type f -delete; echo fine"))[1] == "fine\n"
        many = "import os\nn = 0\ntry:\n  while True: os.close(os.open(f'/tmp/{n}', os.O_CREAT)); n += 1\n"
        _, said = await python(sandbox, many + "except OSError as error: print(error.strerror)", timeout_s=60)
        assert said == "No space left on device\n"

    within(body)


def test_endless_output_is_cut_and_never_kept() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["cat", "/dev/zero"], timeout_s=1.0, max_output_bytes=1 << 16)
        assert result.timed_out and len(result.stdout.head) + len(result.stdout.tail) == 1 << 16
        assert result.stdout.num_bytes > 1 << 20
        shell = await sandbox.shell()
        told = await shell.run("yes", timeout_s=1.0, max_output_bytes=1 << 12)
        assert told.timed_out and len(told.output.text()) < 1 << 13

    within(body)


def test_cpu_time_runs_out_for_all_processes_together() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxBroken, match="cpu"):
            for _ in range(60):
                await python(sandbox, "import os\nif os.fork():\n  pass\nwhile True: pass", timeout_s=1.0)
        assert not await sandbox.healthy()

    within(body, SandboxLimits(cpu_s=2))


# ---------------------------------------------------------------- staying on


def test_daemons_do_not_outlive_the_sandbox() -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            sandbox = await provider.open(SandboxSpec(limits=SMALL))
            daemon = (
                "import os, signal, time\nfor n in signal.valid_signals():\n"
                "  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\n"
                "if os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nos.chdir('/')\n"
                "for fd in range(256):\n  try: os.close(fd)\n  except OSError: pass\n"
                f"os.execvp('sleep', ['sleep', '{MARK}7'])"
            )
            await python(sandbox, daemon)
            await sandbox.exec(["bash", "-c", f"(setsid nohup sleep {MARK}8 &) ; exit 0"], timeout_s=10)
            while len(_running(f"sleep\0{MARK}")) != 2:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)
            await sandbox.aclose()
            assert _running(f"sleep\0{MARK}") == []
        finally:
            await provider.aclose()

    asyncio.run(main())


def _running(marker: str) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in (line := path.read_bytes()):
                found.append(line)
    return found


def test_the_supervisor_cannot_be_killed_or_stopped() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await bash(sandbox, "for s in $(seq 1 64); do kill -$s 1; kill -$s -1; done; kill -STOP 1; kill -9 1")
        kills = "import os, signal\nfor n in signal.valid_signals():\n  try: os.kill(1, n)\n  except OSError: pass\n"
        await python(sandbox, kills)
        await bash(
            sandbox, "echo 1000 > /proc/1/oom_score_adj; renice 19 1; taskset -p 1 1; prlimit -p 1 --nofile=1 --cpu=1"
        )
        assert await sandbox.healthy()
        assert (await bash(sandbox, "echo fine"))[1] == "fine\n"

    within(body)


# ---------------------------------------------------------------- traps in files


TRAPS = """
cd /work && echo mine > real && ln -s /etc/passwd host && ln -s /proc/1/root/etc/shadow root && ln -s / up
ln -s ../../../../../../etc/hostname dots && ln -s loop loop && mkfifo fifo && ln real hard
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')" && ln -s /dev/zero zero && mkdir -p d/e
ln -s ../.. d/e/back && printf x > "$(printf 'line\\nend')" && ln -s /dev/stdin stdin && truncate -s 7M sparse
ln -s /proc/self/environ env && ln -s /proc/kcore core && mkdir locked && echo x > locked/x && chmod 0 locked
"""


def test_traps_in_files_lead_nowhere() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        code, said = await bash(sandbox, TRAPS)
        assert code == 0, said
        inside = (await bash(sandbox, "cat /etc/passwd"))[1].encode()
        assert await sandbox.read("host") == inside != PASSWD
        for path in (
            "fifo",
            "sock",
            "zero",
            "loop",
            "root",
            "up",
            "stdin",
            "core",
            "missing",
            "d",
            "\0",
            "",
            "/dev/zero",
        ):
            with pytest.raises(SandboxFileError):
                await sandbox.read(path, max_bytes=1 << 20)
        with pytest.raises(SandboxFileError):
            await sandbox.read("dots")
        async with asyncio.timeout(300):
            tree = await sandbox.read_tree("/work", max_bytes=8 << 20)
            changed = await sandbox.changes(max_bytes=64 << 20)
        assert tree.files["real"].data == b"mine\n" and tree.links["host"] == "/etc/passwd"
        assert set(tree.files) == {"real", "hard", "line\nend", "sparse"}
        assert {"fifo", "sock"} <= set(tree.left_out)
        assert b"root:" not in changed.patch and "host" in changed.paths
        for path in ("/proc", "/dev", "up/proc", "/proc/1/fd", "root", "real"):
            with contextlib.suppress(SandboxFileError):
                told = await sandbox.read_tree(path, max_bytes=1 << 20, max_files=100)
                assert not told.files

    within(body)


def test_writing_never_goes_through_a_trap() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await bash(sandbox, TRAPS + "ln -s /usr/bin away; ln -s /proc/self/mem mem; ln -s /proc/1/mem one")
        for path in ("away/x", "fifo", "/proc/1/mem", "/usr/x", "/dev/sda", "zero/x", "/run/endpoints/x"):
            with pytest.raises(SandboxFileError):
                await sandbox.write({path: File(data=b"x")})
        for path in ("mem", "one", "dots"):  # a link that leads nowhere gives way to the file
            await sandbox.write({path: File(data=b"x")})
            assert await sandbox.read(path) == b"x"
        await sandbox.write({"real": File(data=b"new\n")})
        assert await sandbox.read("hard") == b"new\n"

    within(body)


def test_a_tree_that_changes_while_it_is_read_neither_hangs_nor_leads_out() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        flip = (
            "import os, itertools\nos.mkdir('t')\nopen('t/f', 'w').write('mine')\nos.symlink('/etc', 'l')\n"
            "for n in itertools.count():\n  try:\n    os.rename('t', 'x'); os.rename('l', 't')\n"
            "    os.rename('t', 'l'); os.rename('x', 't')\n  except OSError: pass\n"
        )
        mine = (await sandbox.read_tree("/etc")).files["passwd"]
        running = asyncio.ensure_future(sandbox.exec(["python3", "-c", flip], timeout_s=4))
        for _ in range(50):
            tree = await sandbox.read_tree("/work")
            assert all(file.data in (b"mine", b"") for file in tree.files.values())
            with contextlib.suppress(SandboxFileError):
                seen = (await sandbox.read_tree("t")).files  # the sandbox's own /etc, where the link was met
                assert "shadow" not in seen and seen.get("passwd", mine) == mine
        await running

    within(body)


def test_escape_sequences_are_spelled_out_where_they_are_shown() -> None:
    async def body(sandbox: LocalSandbox) -> None:
        _, said = await bash(sandbox, r"printf '\033]0;owned\007\033[2J\033[1;31mred\r\b\x9b31m'")
        assert "\x1b" in said  # the model may see them
        assert not set(printable(said)) & {"\x1b", "\x07", "\x9b", "\b"}

    within(body)

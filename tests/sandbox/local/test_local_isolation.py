"""What code inside a local sandbox cannot do."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from inside_view import command_lines

from slipstream.errors import SandboxLimitError
from slipstream.sandbox import LocalProvider, Sandbox
from slipstream.types import SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def within(body: Callable[[Sandbox], Awaitable[None]], limits: SandboxLimits | None = None) -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            async with asyncio.timeout(300):
                await body(await provider.open(SandboxSpec(limits=limits or SandboxLimits())))
        finally:
            await provider.aclose()

    asyncio.run(main())


async def bash(sandbox: Sandbox, script: str) -> tuple[int | None, str]:
    result = await sandbox.exec(["bash", "-c", script], timeout_s=30)
    return result.exit_code, result.stdout.text() + result.stderr.text()


def test_no_network() -> None:
    async def body(sandbox: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            code, _ = await bash(sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{port}")
            assert code != 0
        _, devices = await bash(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")
        assert devices.split() == ["lo"]

    within(body)


def test_no_process_of_the_host_is_visible() -> None:
    async def body(sandbox: Sandbox) -> None:
        listed = await command_lines(sandbox)
        assert list(listed) == [1]
        assert (await bash(sandbox, f"kill -0 {os.getpid()}"))[0] != 0

    within(body)


def test_nothing_of_the_host_environment() -> None:
    async def body(sandbox: Sandbox) -> None:
        names = {"PATH", "HOME", "LANG", "TERM", "USER"}
        _, listed = await bash(sandbox, "env")
        assert {line.partition("=")[0] for line in listed.splitlines()} - {"SHLVL", "PWD", "_"} == names
        assert (await bash(sandbox, "hostname || cat /proc/sys/kernel/hostname"))[1] == "sandbox\n"

    within(body)


def test_private_places_of_the_host_are_not_there() -> None:
    async def body(sandbox: Sandbox) -> None:
        for path in ("/root", "/home", "/etc/shadow", __file__, "/sys", "/var/log", "/mnt"):
            assert (await bash(sandbox, f"ls {path}"))[0] != 0, path
        assert "root:x:0:0:root:/root:/usr/sbin/nologin" in (await bash(sandbox, "cat /etc/passwd"))[1]

    within(body)


def test_only_the_workdir_and_tmp_can_be_written() -> None:
    async def body(sandbox: Sandbox) -> None:
        for path in ("/x", "/usr/x", "/etc/x", "/bin/x", "/dev/x", "/proc/x", "/run/x", "/var/x", "/run/endpoints/x"):
            code, said = await bash(sandbox, f"echo > {path}")
            assert code != 0, (path, said)
        for path in ("/work/x", "/tmp/x", "/var/tmp/x", "/dev/shm/x"):
            assert await bash(sandbox, f"echo > {path}") == (0, "")
        _, writable = await bash(sandbox, "find / -xdev -type d -writable 2>/dev/null -exec sh -c 'echo>$0/.x' {} ';'")
        assert writable.count("Read-only") == writable.count("\n")

    within(body)


def test_no_privileges() -> None:
    async def body(sandbox: Sandbox) -> None:
        assert (await bash(sandbox, "id -u; id -g; id -G"))[1] == "1000\n1000\n1000\n"
        _, status = await bash(sandbox, "cat /proc/self/status")
        lines = dict(line.split(":", 1) for line in status.splitlines())
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(lines[name], 16) == 0
        assert lines["NoNewPrivs"].strip() == "1"
        assert (await bash(sandbox, "unshare -U true"))[0] != 0
        assert (await bash(sandbox, "unshare -Ur true"))[0] != 0
        assert (await bash(sandbox, "mount -t tmpfs none /tmp"))[0] != 0
        assert (await bash(sandbox, "echo x > /proc/sys/kernel/hostname"))[0] != 0

    within(body)


def test_the_supervisor_cannot_be_touched() -> None:
    async def body(sandbox: Sandbox) -> None:
        await bash(sandbox, "for s in $(seq 1 64); do kill -$s 1; done; kill -9 -1")
        assert await sandbox.healthy()
        for path in ("fd", "mem", "environ", "cwd/"):
            assert (await bash(sandbox, f"ls /proc/1/{path} && cat /proc/1/{path}"))[0] != 0, path
        attach = "import ctypes; exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0)"
        assert (await sandbox.exec(["python3", "-c", attach], timeout_s=30)).exit_code == 0
        assert await sandbox.healthy()

    within(body)


def test_descriptors_of_the_host_do_not_come_in() -> None:
    async def body(sandbox: Sandbox) -> None:
        _, listed = await bash(sandbox, "exec ls /proc/self/fd")
        assert listed.split() == ["0", "1", "2", "3"]

    within(body)


# ---------------------------------------------------------------- limits


def test_memory_file_and_disk_limits() -> None:
    async def body(sandbox: Sandbox) -> None:
        code, said = await bash(sandbox, "python3 -c 'bytearray(300 << 20)'")
        assert code == 137 or "MemoryError" in said  # by a control group, or by a limit on each process
        code, _ = await bash(sandbox, "head -c 5M /dev/zero > big")
        assert code != 0
        assert (await bash(sandbox, "stat -c %s big"))[1] == f"{4 << 20}\n"
        for folder in ("/work", "/tmp", "/dev/shm"):
            script = f"for n in 1 2 3 4 5 6; do head -c 3M /dev/zero > {folder}/$n; done"
            assert "No space left" in (await bash(sandbox, script))[1], folder
            await bash(sandbox, f"rm -f {folder}/*")
        assert (await bash(sandbox, "rm -f /work/* && echo x > y"))[0] == 0

    within(body, SandboxLimits(memory_mb=256, disk_mb=16, file_mb=4))


def test_the_number_of_processes_is_limited() -> None:
    async def body(sandbox: Sandbox) -> None:
        forks = (
            "import os\nfor n in range(50):\n  try: pid = os.fork()\n  except OSError: print(n, flush=True); break\n"
        )
        forks += "  if not pid: import signal; signal.pause()\n"
        result = await sandbox.exec(["python3", "-c", forks], timeout_s=30)
        assert result.stdout.text() == "11\n"
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0
        crowd = (sandbox.exec(["sleep", "1000"], timeout_s=1.0) for _ in range(30))
        results = await asyncio.gather(*crowd, return_exceptions=True)
        assert any(isinstance(result, SandboxLimitError) for result in results)
        await bash(sandbox, "kill -9 -1")
        assert await bash(sandbox, "echo $(echo works)") == (0, "works\n")

    within(body, SandboxLimits(processes=12))


def test_a_fork_bomb_is_over_at_its_deadline() -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["bash", "-c", "f() { f | f & }; f; sleep 1000"], timeout_s=0.5)
        assert result.timed_out
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0

    within(body, SandboxLimits(processes=64))


# ---------------------------------------------------------------- files that sandboxes share

FILES = ("/usr/bin/tail", "/etc/group", "/work/shared")
FOLDERS = ("/usr/share", "/", "/dev", "/etc", "/run", "/work")

HOLD = """
import fcntl, os, struct, sys
read_lock = struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 0, 0)
for path in sys.argv[1:]:
    fds = [os.open(path, os.O_RDONLY) for _ in range(3)]
    fcntl.flock(fds[0], fcntl.LOCK_EX)
    if os.path.isfile(path):
        fcntl.fcntl(fds[1], fcntl.F_SETLK, read_lock)
        fcntl.fcntl(fds[2], 37, read_lock)  # F_OFD_SETLK
open("/tmp/ready", "w").close()
open("/tmp/go").read()
"""

SEEN = """
import fcntl, os, struct, sys
write_lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("flock", path)
    if os.path.isfile(path):
        for ask in (fcntl.F_GETLK, 36):  # F_OFD_GETLK
            if struct.unpack("hhqqi", fcntl.fcntl(fd, ask, write_lock))[0] != fcntl.F_UNLCK:
                print(ask, path)
"""
"""Prints who is in the way of which lock."""

WATCH = """
import ctypes, fcntl, os, signal, struct, sys
signals = []
signal.signal(signal.SIGIO, lambda *_: signals.append(1))
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
for path in sys.argv[1:]:
    assert libc.inotify_add_watch(watch, path.encode(), 0xFFF) > 0, path
    if os.path.isdir(path):
        fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
def watched():
    found = set()
    try:
        events = os.read(watch, 1 << 16)
    except BlockingIOError:
        return found
    while events:
        number, mask, _, size = struct.unpack_from("iIII", events)
        found.add(sys.argv[number])
        events = events[16 + size:]
    return found
watched(), signals.clear()
open("/tmp/ready", "w").close()
open("/tmp/go").read()
print("others:", *sorted(watched()), *signals)
for path in sys.argv[1:]:
    os.listdir(path) if os.path.isdir(path) else open(path, "rb").read()
print("own:", *sorted(watched()))
"""
USE = """
import os, sys
for path in sys.argv[1:]:
    os.listdir(path) if os.path.isdir(path) else open(path, "rb").read()
"""


async def run(sandbox: Sandbox, script: str, *args: str) -> str:
    result = await sandbox.exec(["python3", "-I", "-c", script, *args], timeout_s=50)
    assert result.exit_code == 0, result.stderr.text()
    return result.stdout.text()


def between_two(
    tmp_path: Path, held: str, meanwhile: Callable[[Sandbox, Sandbox], Awaitable[None]], paths: tuple[str, ...]
) -> str:
    """Two sandboxes that share all that can be shared: what `held` prints in the first, with `meanwhile` done before it
    goes on."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "shared").write_text("shared\n")
    for folder in (tree, *tree.parents):
        if folder.is_relative_to(tmp_path.parents[1]):
            folder.chmod(0o755)

    async def main() -> str:
        provider = LocalProvider()
        try:
            async with asyncio.timeout(60):
                one, other = [await provider.open(SandboxSpec(tree=str(tree))) for _ in range(2)]
                await run(one, "import os; os.mkfifo('/tmp/ready'); os.mkfifo('/tmp/go')")
                async with asyncio.TaskGroup() as tasks:
                    holding = tasks.create_task(run(one, held, *paths))
                    await run(one, "open('/tmp/ready').read()")
                    await meanwhile(one, other)
                    await run(one, "open('/tmp/go', 'w').close()")
                return holding.result()
        finally:
            await provider.aclose()

    return asyncio.run(main())


def test_locks_on_shared_files_stay_inside_a_sandbox(tmp_path: Path) -> None:
    async def meanwhile(one: Sandbox, other: Sandbox) -> None:
        own = await run(one, SEEN, *FILES, *FOLDERS)
        assert len(own.splitlines()) == 3 * len(FILES) + len(FOLDERS)
        assert await run(other, SEEN, *FILES, *FOLDERS) == ""
        fd = os.open("/usr/bin/tail", os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert await run(other, SEEN, "/usr/bin/tail") == ""
        finally:
            os.close(fd)

    assert between_two(tmp_path, HOLD, meanwhile, FILES + FOLDERS) == ""


def test_watches_on_shared_files_see_neither_the_host_nor_another_sandbox(tmp_path: Path) -> None:
    paths = ("/usr/bin/tail", "/etc/group", "/work/shared", "/usr/share", "/run", "/work")

    async def meanwhile(one: Sandbox, other: Sandbox) -> None:
        await run(other, USE, *paths)
        use = [sys.executable, "-I", "-c", USE, "/usr/bin/tail", "/usr/share", str(tmp_path / "tree" / "shared")]
        await asyncio.to_thread(subprocess.run, use, check=True)

    said = between_two(tmp_path, WATCH, meanwhile, paths).splitlines()
    assert said == ["others:", " ".join(["own:", *sorted(paths)])]

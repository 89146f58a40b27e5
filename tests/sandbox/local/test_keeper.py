"""The keeper: what becomes of a request when the process that was to answer it does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_stage import children

from slipstream.errors import SandboxError
from slipstream.sandbox.files.safe_open import acting_as
from slipstream.sandbox.local.bwrap import find_bwrap, own_interpreter
from slipstream.sandbox.local.keeper_client import CODE, IMPORT, PACKAGE, SOURCES, KeeperClient, KeptLayer
from slipstream.sandbox.local.process import NOBODY, readable

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

NUM_FILES = 2_000
"""Enough to be seen at work on."""


@contextlib.asynccontextmanager
async def keeping() -> AsyncIterator[KeeperClient]:
    keeper = KeeperClient(find_bwrap(), own_interpreter(), "")
    try:
        async with asyncio.timeout(300):
            yield keeper
    finally:
        await keeper.aclose()


@contextlib.asynccontextmanager
async def layer(keeper: KeeperClient) -> AsyncIterator[KeptLayer]:
    made = await keeper.make(64 << 20, {"files": 0o777})
    try:
        yield made
    finally:
        await keeper.drop(made)


def names_in(made: KeptLayer) -> list[str]:
    return sorted(path.name for path in Path(f"/proc/self/fd/{made.fd}/files").iterdir())


def fill(made: KeptLayer) -> None:
    with acting_as(NOBODY, NOBODY):
        for number in range(NUM_FILES):
            Path(f"/proc/self/fd/{made.fd}/files/{number}").touch()


def at_work(program: int, copying: asyncio.Future[None]) -> list[int]:
    """Whom the keeper has started, as soon as there is anybody; nobody if the copy is made before they are seen."""
    while not copying.done():
        if found := children(program):
            return found
    return []


async def killed_at_work(keeper: KeeperClient, source: KeptLayer) -> str:
    """Have a copy made, and kill whoever makes it: what the caller is told. One that was done by then is made again."""
    (program,) = children(keeper.pid)
    while True:
        async with layer(keeper) as target:
            copying = asyncio.ensure_future(keeper.copy(source, target, ["files"]))
            await asyncio.sleep(0)  # so that it is asked for
            for pid in await asyncio.to_thread(at_work, program, copying):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                await copying
            except SandboxError as raised:
                return str(raised)


def test_the_keeper_consists_of_the_modules_that_are_passed_to_it(tmp_path: Path) -> None:
    """It runs on a Python that has nothing of ours installed."""
    for name in SOURCES:
        target = tmp_path / "slipstream" / "sandbox" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((PACKAGE / name).read_bytes())
    script = IMPORT.replace(CODE, str(tmp_path)) + "; print(*(name for name in sys.modules if 'slipstream' in name))"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.replace(".", "/") + ".py" for name in ran.stdout.split()}
    assert {f"slipstream/sandbox/{name}" for name in SOURCES} <= loaded


def test_a_request_whose_process_was_killed_is_answered_and_the_keeper_goes_on() -> None:
    async def main() -> None:
        async with keeping() as keeper, layer(keeper) as source:
            fill(source)
            for _ in range(2):
                assert "copy: the process that handled it was killed" in await killed_at_work(keeper, source)
            async with layer(keeper) as target:
                await keeper.copy(source, target, ["files"])
                assert names_in(target) == names_in(source)
            assert not keeper.is_lost

    asyncio.run(main())


COPY = """
import os, resource, sys
from slipstream.sandbox.keeper.copying import FOLDER, copy_folder
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
copy_folder(*(os.open(folder, FOLDER) for folder in sys.argv[1:]))
"""


def test_a_folder_with_more_folders_than_a_process_may_have_open_files_is_copied_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    for number in range(400):
        (source / str(number) / "below").mkdir(parents=True)
    subprocess.run([sys.executable, "-c", COPY, source, target], check=True, timeout=60)
    assert sorted(path.parent.name for path in target.glob("*/below")) == sorted(map(str, range(400)))


def test_folders_that_lie_deep_in_each_other_are_copied_as_far_as_the_hard_limit_goes() -> None:
    async def main() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # the keeper has it of us
        try:
            async with keeping() as keeper:
                deep = ["files" + "/d" * depth for depth in range(400)]
                source = await keeper.make(64 << 20, dict.fromkeys(deep, 0o755))
                async with layer(keeper) as target:
                    await keeper.copy(source, target, ["files"])
                    os.stat(deep[-1], dir_fd=target.fd)
                await keeper.drop(source)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    asyncio.run(main())


@pytest.mark.parametrize("asked", ["make", "copy"])
def test_a_keeper_that_stands_still_is_given_up_and_killed(asked: str) -> None:
    async def main() -> None:
        async with keeping() as keeper:
            one = await keeper.make(1 << 20, {"files": 0o777})
            (program,) = children(keeper.pid)
            pidfd = os.pidfd_open(program)
            os.kill(program, signal.SIGSTOP)
            try:
                keeper.timeout_s = 0.0
                with pytest.raises(SandboxError, match="did not reply within 0 s"):
                    await (keeper.make(1 << 20, {}) if asked == "make" else keeper.copy(one, one, ["files"]))
                assert keeper.is_lost
                await readable(pidfd)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
                await keeper.drop(one)

    asyncio.run(main())

"""The keeper: what becomes of a request when the process that was to answer it does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_stage import children

from slipstream.errors import SandboxError
from slipstream.sandbox.beneath import acting_as
from slipstream.sandbox.bwrap import find_bwrap, own_interpreter
from slipstream.sandbox.keeping import Keeper, Layer
from slipstream.sandbox.launch import NOBODY

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

NUM_FILES = 2_000
"""Enough to be seen at work on."""


@contextlib.asynccontextmanager
async def keeping() -> AsyncIterator[Keeper]:
    keeper = Keeper(find_bwrap(), own_interpreter(), "")
    try:
        async with asyncio.timeout(60):
            yield keeper
    finally:
        await keeper.aclose()


@contextlib.asynccontextmanager
async def layer(keeper: Keeper) -> AsyncIterator[Layer]:
    made = await keeper.make(64 << 20, {"files": 0o777})
    try:
        yield made
    finally:
        await keeper.drop(made)


def names_in(made: Layer) -> list[str]:
    return sorted(path.name for path in Path(f"/proc/self/fd/{made.fd}/files").iterdir())


def fill(made: Layer) -> None:
    with acting_as(NOBODY, NOBODY):
        for number in range(NUM_FILES):
            Path(f"/proc/self/fd/{made.fd}/files/{number}").touch()


def at_work(program: int, copying: asyncio.Future[None]) -> list[int]:
    """Whom the keeper has started, as soon as there is anybody; nobody if the copy is made before they are seen."""
    while not copying.done():
        if found := children(program):
            return found
    return []


async def killed_at_work(keeper: Keeper, source: Layer) -> str:
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


def test_a_request_whose_process_was_killed_is_answered_and_the_keeper_goes_on() -> None:
    async def main() -> None:
        async with keeping() as keeper, layer(keeper) as source:
            fill(source)
            for _ in range(2):
                assert "copy: the process that was to do it was killed" in await killed_at_work(keeper, source)
            async with layer(keeper) as target:
                await keeper.copy(source, target, ["files"])
                assert names_in(target) == names_in(source)
            assert not keeper.is_lost

    asyncio.run(main())


def test_a_folder_with_more_folders_than_a_process_may_have_open_files_is_copied_whole() -> None:
    async def main() -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))  # the keeper has it of us
        try:
            async with keeping() as keeper:
                wide = {"files": 0o755, **{f"files/{number}": 0o755 for number in range(400)}}
                source = await keeper.make(64 << 20, wide)
                async with layer(keeper) as target:
                    await keeper.copy(source, target, ["files"])
                    assert names_in(target) == names_in(source)
                await keeper.drop(source)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)

    asyncio.run(main())

"""What local sandboxes stand on together: how often it is made, how long it is kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from local_stage import children, provided

from slipstream.errors import SandboxError
from slipstream.sandbox.local.bwrap import find_bwrap, own_interpreter
from slipstream.sandbox.local.keeper_client import KeeperClient
from slipstream.sandbox.local.shared_layers import MAX_TREES, SharedLayers
from slipstream.sandbox.local.view import HostView
from slipstream.types import File, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
needs_root = pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root copies trees")


@contextlib.asynccontextmanager
async def sharing() -> AsyncIterator[SharedLayers]:
    shared = SharedLayers(KeeperClient(find_bwrap(), own_interpreter(), ""))
    try:
        async with asyncio.timeout(300):
            yield shared
    finally:
        await shared.aclose()
        assert shared.keeper.is_lost


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened in this process for as long as the context lasts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 8, limits[1]))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)


def layers(shared: SharedLayers) -> list[str]:
    """Those that the keeper holds."""
    (program,) = children(shared.keeper.pid)
    lines = Path(f"/proc/{program}/mountinfo").read_text().splitlines()
    return [place for line in lines if re.fullmatch(r"/slipstream/layers/\d+", place := line.split()[4])]


UNMADE = (OSError, SandboxError)
UNSENT = HostView(files=(("/long", bytes(1 << 16)),))
"""Longer than a packet: it takes a descriptor to ask for it."""


@pytest.mark.parametrize("view", [HostView(), UNSENT], ids=["unreceived", "unsent"])
def test_a_view_for_which_no_descriptor_was_left_is_made_when_there_is_one(view: HostView) -> None:
    async def main() -> None:
        async with sharing() as shared:
            await shared.hold_view(HostView(folders=("/other",)))
            for _ in range(2):
                with no_more_files(), pytest.raises(UNMADE, match=r"Too many open files|limit of open files"):
                    await shared.hold_view(view)
            os.stat("dev", dir_fd=(await shared.hold_view(view)).fd)
            assert len(layers(shared)) == 2
        async with sharing() as shared:
            await shared.hold_view(HostView(folders=("/other",)))
            with no_more_files(), pytest.raises(UNMADE, match=r"Too many open files|limit of open files"):
                await shared.hold_view(view)

    asyncio.run(main())


@needs_root
def test_of_trees_that_nothing_stands_on_only_those_used_last_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(MAX_TREES + 3):
            (tmp_path / str(number)).mkdir()
        async with sharing() as shared:
            used = await shared.hold_tree(str(tmp_path / "0"))
            assert used is not None
            first = None
            for number in range(1, MAX_TREES + 3):
                tree = await shared.hold_tree(str(tmp_path / str(number)))
                assert tree is not None
                first = first or tree
                await shared.release(tree)
            assert first is not None
            assert len(layers(shared)) == MAX_TREES + 1
            assert used.path in layers(shared) and first.path not in layers(shared)
            assert await shared.hold_tree(str(tmp_path / "0")) is used
            for _ in range(2):
                await shared.release(used)
            assert len(layers(shared)) == MAX_TREES
            assert await shared.hold_tree(str(tmp_path / "0")) is used, "the one used last is kept"

    asyncio.run(main())


@needs_root
def test_a_fork_stands_on_a_tree_for_as_long_as_its_snapshot(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(MAX_TREES + 2):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "name").write_text(str(number))
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(tree=str(tmp_path / "0")))
            snapshot = await sandbox.snapshot()
            await sandbox.aclose()
            shared = provider._shared_layers()
            for number in range(1, MAX_TREES + 2):
                tree = await shared.hold_tree(str(tmp_path / str(number)))
                assert tree is not None
                await shared.release(tree)
            fork = await snapshot.open()
            await snapshot.aclose()
            assert await fork.read("name") == b"0"
            await fork.write({"name": File(data=b"new")})
            assert b"-0" in (await fork.changes()).patch
            before = len(layers(shared))
            await fork.aclose()
            assert len(layers(shared)) == before - 2, "its snapshot, and one tree that nothing stands on"

    asyncio.run(main())

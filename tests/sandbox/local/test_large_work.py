"""Work of a size that the agent chooses: the event loop goes on, and too much is the agent's own doing."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from local_stage import provided

from slipstream.errors import SandboxFileError
from slipstream.patches.apply import Entry, apply_patch
from slipstream.sandbox.local.changes import MAX_CHANGED_FILES
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.types import SandboxLimits, SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

MAX_LOOP_CPU_S = 0.5
"""Of the thread of the event loop: starting a sandbox and asking it takes some hundredths."""


def loop_cpu_s(script: str, then: Callable[[LocalSandbox], Awaitable[None]]) -> float:
    """The CPU seconds that the loop's own thread takes for `then`, after a script made the files."""

    async def main() -> float:
        async with provided() as provider:
            sandbox = await provider.open(SandboxSpec(limits=SandboxLimits(disk_mb=128)))
            result = await sandbox.exec(["/bin/sh", "-c", script], timeout_s=50)
            assert result.exit_code == 0, result.stderr.text()
            before_s = time.thread_time()
            await then(sandbox)
            return time.thread_time() - before_s

    return asyncio.run(main())


def test_a_file_of_newlines_alone_is_told_without_holding_up_the_loop() -> None:
    async def then(sandbox: LocalSandbox) -> None:
        changed = await sandbox.changes()
        assert len(changed.patch) < 40_000
        assert apply_patch(changed.patch, lambda path: None) == {"x": Entry(data=b"\n" * 7_800_000)}

    script = "head -c 7800000 /dev/zero | tr '\\0' '\\n' > x"
    assert loop_cpu_s(script, then) < MAX_LOOP_CPU_S


def test_more_files_than_can_be_compared_are_the_agents_own_doing() -> None:
    async def then(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxFileError, match=f"more than {MAX_CHANGED_FILES} files were created"):
            await sandbox.changes()

    script = f"i=0; while [ $i -le {MAX_CHANGED_FILES} ]; do : > f$i; i=$((i+1)); done"
    assert loop_cpu_s(script, then) < MAX_LOOP_CPU_S


def test_what_a_small_look_has_no_room_for_is_told_all_the_same() -> None:
    async def then(sandbox: LocalSandbox) -> None:
        changed = await sandbox.changes()
        assert len(changed.paths) == 500
        assert apply_patch(changed.patch, lambda path: None)["d/499"] == Entry(data=b"499\n")
        with pytest.raises(SandboxFileError, match="exceeds the limit of 1000 bytes"):
            await sandbox.changes(max_bytes=1_000)

    script = "mkdir d; i=0; while [ $i -lt 500 ]; do echo $i > d/$i; i=$((i+1)); done"
    assert loop_cpu_s(script, then) < MAX_LOOP_CPU_S


def test_of_very_many_paths_that_are_left_out_some_are_named() -> None:
    async def then(sandbox: LocalSandbox) -> None:
        changed = await sandbox.changes()
        assert changed.paths == ("work",)
        assert len(changed.left_out) == 101
        assert changed.left_out["200 more"] == "also left out"

    assert (
        loop_cpu_s("i=0; while [ $i -lt 300 ]; do mkfifo p$i; i=$((i+1)); done; echo x > work", then) < MAX_LOOP_CPU_S
    )

"""Large patches are applied without blocking the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

import pytest

from slipstream.graders.testing.work import Refused, Work, accept_work
from slipstream.patches.apply import Entry, make_patch

MAX_LOOP_CPU_S = 0.5


async def nothing_there(paths: Iterable[str]) -> Mapping[str, Entry | None]:
    return {}


def taken(patch: bytes) -> tuple[Work, float]:
    """The work, and the CPU seconds that the event loop's thread took for it."""

    async def main() -> tuple[Work, float]:
        before_s = time.thread_time()
        work = await accept_work(patch, nothing_there)
        return work, time.thread_time() - before_s

    return asyncio.run(main())


def test_a_patch_of_very_many_lines_does_not_hold_up_the_loop() -> None:
    num_lines = 500_000
    patch = b"diff --git a/x b/x\nnew file mode 100644\nindex 0000000..1234567\n--- /dev/null\n+++ b/x\n"
    patch += b"@@ -0,0 +1,%d @@\n" % num_lines + b"+\n" * num_lines
    work, loop_cpu_s = taken(patch)
    assert work.files == {"x": Entry(data=b"\n" * num_lines)}
    assert loop_cpu_s < MAX_LOOP_CPU_S


def test_a_patch_of_very_many_files_does_not_hold_up_the_loop() -> None:
    made: dict[str, Entry | None] = {f"d{number}/f.txt": Entry(data=b"x\n") for number in range(5_000)}
    work, loop_cpu_s = taken(make_patch({}, made))
    assert work.files == made
    assert loop_cpu_s < MAX_LOOP_CPU_S


@pytest.mark.parametrize("num_more", [0, 100_000], ids=["small", "large"])
def test_settings_that_nest_too_deeply_are_refused(num_more: int) -> None:
    nested = b"a = " + b"[" * 3_000 + b"]" * 3_000 + b"\n" + b"#" * num_more
    with pytest.raises(Refused, match="how tests are run"):
        taken(make_patch({}, {"pyproject.toml": Entry(data=nested)}))

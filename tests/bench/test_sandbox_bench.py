"""The benchmark of sandboxes, on a small load."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.bench.sandbox import SandboxBenchLoad, our_processes, run, usage_now
from slipstream.sandbox.cleanup.lease import take_lease
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import SandboxSpec

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
SMALL = SandboxBenchLoad(starts=3, concurrent=4, execs=3, pooled=8)


def test_it_prints_every_figure_and_nothing_is_left(tmp_path: Path) -> None:
    told = run(LocalProvider, SandboxSpec(), SMALL, home=tmp_path)
    for name in ("start_ms", "pool_ms", "exec_ms"):
        middle, high = told[f"{name}_p50"], told[f"{name}_p95"]
        assert isinstance(middle, float) and isinstance(high, float) and 0 < middle <= high
    assert (told["concurrent"], told["failures"], told["starts"]) == (4, [], 3)
    assert told["leaked"] == 0, told["leaked_by"]


class Leaky(LocalProvider):
    """Leaves something behind with every start."""

    def __init__(self, leave: Callable[[], object]) -> None:
        super().__init__()
        self._leave = leave

    def check_spec(self, spec: SandboxSpec) -> None:
        self._leave()


@pytest.mark.parametrize("kind", ["processes", "descriptors", "disk_bytes"])
def test_a_provider_that_leaves_something_behind_is_found_out(tmp_path: Path, kind: str) -> None:
    children: list[subprocess.Popen[bytes]] = []
    descriptors: list[int] = []

    def leave() -> None:
        if kind == "processes":
            children.append(subprocess.Popen(["/bin/sleep", "100"]))
        elif kind == "descriptors":
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
        else:
            with tempfile.NamedTemporaryFile(delete=False) as file:
                file.write(b"left")

    try:
        told = run(lambda: Leaky(leave), SandboxSpec(), SMALL, home=tmp_path)
    finally:
        for child in children:
            child.kill()
            child.wait()
        for descriptor in descriptors:
            os.close(descriptor)
    by_kind = told["leaked_by"]
    assert isinstance(by_kind, dict)
    assert by_kind[kind] == (12 if kind == "disk_bytes" else 3), by_kind


def test_what_is_in_use_is_counted(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    before = usage_now(tmp_path / "temporary", tmp_path)
    lease = take_lease(tmp_path)
    (lease.folder / "file").write_bytes(b"x" * 1000)
    (tmp_path / "temporary" / "file").write_bytes(b"y" * 10)
    with subprocess.Popen(["/bin/sleep", "100"]) as child:
        assert child.pid in our_processes()
        after = usage_now(tmp_path / "temporary", tmp_path)
        child.kill()
    assert after.processes == before.processes + 1
    assert after.disk_bytes >= before.disk_bytes + 1010
    assert after.mounts == before.mounts > 0
    assert after.descriptors > before.descriptors
    lease.release()

"""A run's process may have more open files than it was started with, and programs in its sandboxes may not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
from slipstream.settings import EvalConfig, TasksConfig
from slipstream.types import SandboxSpec
from slipstream.wiring.attempts import SandboxShare, open_resources

async def main():
    config = EvalConfig(name="files", tasks=TasksConfig(source="x:y"))
    async with open_resources(config, {}, SandboxShare(warm=0, live=None)) as resources:
        sandbox = await resources.pool.open(SandboxSpec())
        try:
            said = await sandbox.exec(["/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"], timeout_s=60)
        finally:
            await sandbox.aclose()
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert own[0] > 1000 and own[1] == hard, own
    soft, inside_hard = said.stdout.head.decode().split()
    assert soft == "1000" and inside_hard == ("unlimited" if hard == resource.RLIM_INFINITY else str(hard)), said

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
def test_a_run_may_open_more_files_and_its_sandboxes_as_many_as_it_was_started_with() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr

"""How a base's environment is entered, in real sandboxes: by variables alone, or by a script."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import SandboxError
from slipstream.sandbox.base import Changes, Sandbox, Snapshots
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.pool.pool import Pool
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.jsonl import read_tasks, write_tasks
from slipstream.tasks.source import digest_of
from slipstream.types import Activation, Brief, File, Grading, SandboxSpec, Task

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

PLACED = SandboxSpec(
    files={"env/bin/python": File(data=b"#!/bin/sh\necho this one\n", mode=0o755)},
    activation=Activation(path=("/work/env/bin",), env={"NAME": "plain", "KEPT": "yes"}, python="/work/env/bin/python"),
    env={"NAME": "the task's"},
)
BY_SCRIPT = replace(
    PLACED,
    activation=Activation(
        script="echo loud; export PATH=/work/env/bin:$PATH LINES_OF='one\ntwo'; unset LANG; touch left",
        python="/work/env/bin/python",
    ),
)


async def said(sandbox: Sandbox, script: str) -> str:
    shell = await sandbox.shell()
    by_shell = (await shell.run(script, timeout_s=30)).output.text()
    result = await sandbox.exec(["bash", "-c", script], timeout_s=30)
    assert by_shell == result.stdout.text()
    return by_shell


@needs_linux
def test_the_shell_and_programs_find_the_environment_by_its_variables() -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            sandbox = await open_sandbox(provider, PLACED, timeout_s=60)
            assert await said(sandbox, "python; echo $NAME $KEPT") == "this one\nthe task's yes\n"
        finally:
            await provider.aclose()

    asyncio.run(main())


@needs_linux
def test_a_script_enters_it_for_all_programs_and_for_forks_and_changes_nothing() -> None:
    async def main() -> None:
        provider = LocalProvider()
        pool = Pool(provider, max_warm=1, max_live=3)
        try:
            sandbox = await open_sandbox(pool, BY_SCRIPT, timeout_s=60)
            expected = "this one\none\ntwo\nnone\n"
            script = 'python; echo "$LINES_OF"; echo ${LANG:-none}'
            assert await said(sandbox, script) == expected
            assert isinstance(sandbox, Changes) and isinstance(sandbox, Snapshots)
            assert (await sandbox.changes()).paths == ()
            snapshot = await sandbox.snapshot()
            fork = await snapshot.open()
            assert await said(fork, script) == expected
            await snapshot.aclose()
        finally:
            await pool.aclose()
            await provider.aclose()

    asyncio.run(main())


@needs_linux
@pytest.mark.parametrize(
    ("activation", "why"),
    [
        (
            Activation(python="/opt/env/bin/python"),
            r"of host cannot be entered: `python` should be /opt/env/bin/python",
        ),
        (Activation(path=("/work/env/bin",), python="/x/python"), r"but `python` is /work/env/bin/python. Name an im"),
        (Activation(script="echo no conda; false"), r"failed with exit code 1 in host: no conda; it must"),
        (Activation(script="exit 0"), r"it must leave bash running"),
    ],
)
def test_a_base_without_the_environment_is_named(activation: Activation, why: str) -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            with pytest.raises(SandboxError, match=why):
                await open_sandbox(provider, replace(PLACED, activation=activation), timeout_s=60)
        finally:
            await provider.aclose()

    asyncio.run(main())


def test_a_task_file_keeps_it_and_only_then_does_the_digest_of_tasks_change(tmp_path: Path) -> None:
    place = tmp_path / "tasks.jsonl"
    task = Task(id="a", brief=Brief(instruction="x"), grading=Grading(kind="exact", spec={"expected": "y"}))
    entered = replace(task, sandbox=PLACED)
    write_tasks(place, [entered])
    assert read_tasks(place) == (entered,)
    assert digest_of([entered]) != digest_of([replace(entered, sandbox=replace(PLACED, activation=Activation()))])
    assert "activation" not in repr(task)

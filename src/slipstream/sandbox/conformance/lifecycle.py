"""Conformance cases for starting, losing and closing sandboxes. See `suite.py`."""

from __future__ import annotations

import asyncio

from slipstream.errors import SandboxError, SandboxFileError
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.conformance.case import (
    LONG_S,
    Cases,
    SpecMaker,
    expecting,
    opened,
)
from slipstream.sandbox.ready import open_sandbox
from slipstream.types import File

LIFECYCLE_CASES = Cases()


@LIFECYCLE_CASES.case()
async def closing_twice_is_fine_and_ends_everything(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    sandbox = await provider.open(make_spec())
    shell = await sandbox.shell()
    assert await sandbox.healthy()
    pending = asyncio.gather(
        sandbox.exec(["sleep", "1000"], timeout_s=500),
        shell.run("sleep 1000", timeout_s=500),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    await sandbox.aclose()
    await sandbox.aclose()
    assert [type(error) for error in await pending] == [SandboxError, SandboxError]
    assert not await sandbox.healthy()
    for call in (
        lambda: sandbox.exec(["true"], timeout_s=LONG_S),
        lambda: sandbox.read("x"),
        lambda: sandbox.read_tree("."),
        lambda: sandbox.write({"x": File(data=b"")}),
        lambda: sandbox.shell(),
        lambda: shell.run("true", timeout_s=LONG_S),
    ):
        with expecting(SandboxError):
            await call()


@LIFECYCLE_CASES.case()
async def sandboxes_are_apart(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as one, opened(provider, make_spec()) as other:
        assert one.id != other.id
        await one.write({"x": File(data=b"1"), "/tmp/y": File(data=b"1")})
        for path in ("x", "/tmp/y"):
            with expecting(SandboxFileError):
                await other.read(path)
        await one.aclose()
        assert await other.healthy()
        assert (await other.exec(["true"], timeout_s=LONG_S)).exit_code == 0


@LIFECYCLE_CASES.case()
async def a_start_that_is_cancelled_harms_no_other(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    async with opened(provider, make_spec()) as sandbox:
        for delay_s in (0.0, 0.005, 0.02):
            task = asyncio.ensure_future(provider.open(make_spec()))
            await asyncio.sleep(delay_s)
            if not task.cancel():
                await task.result().aclose()
            await asyncio.gather(task, return_exceptions=True)
        assert await sandbox.healthy()
        async with opened(provider, make_spec()) as another:
            assert await another.healthy()


@LIFECYCLE_CASES.case()
async def open_sandbox_runs_the_setup(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    sandbox = await open_sandbox(provider, make_spec(setup=("true", "echo made")), timeout_s=LONG_S)
    enough_s = 0.5 + 5 * (loop.time() - began)
    assert await sandbox.healthy()
    with expecting(SandboxError, r"'exit 3' failed with exit code 3"):
        await open_sandbox(provider, make_spec(setup=("true", "exit 3")), timeout_s=LONG_S)
    with expecting(SandboxError, r"'sleep 1000' timed out"):
        await open_sandbox(provider, make_spec(setup=("sleep 1000",)), timeout_s=enough_s)
    await sandbox.aclose()


@LIFECYCLE_CASES.case()
async def closing_the_provider_closes_its_sandboxes(provider: SandboxProvider, make_spec: SpecMaker) -> None:
    provider.check()
    provider.check_spec(make_spec())
    sandboxes = [await provider.open(make_spec()) for _ in range(2)]
    await provider.aclose()
    await provider.aclose()
    assert [await sandbox.healthy() for sandbox in sandboxes] == [False, False]

"""What the sandbox in memory adds to the contract: it can be told what to do, and what to suffer."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.errors import SandboxError
from slipstream.sandbox import FakeProvider, open_sandbox
from slipstream.sandbox.fake import Answer, Command, Files
from slipstream.types import File, SandboxSpec


def test_a_function_plays_the_programs() -> None:
    def program(command: Command, files: Files) -> Answer:
        files["/work/seen"] = File(data=str(command).encode())
        return 3, "played"

    async def main() -> None:
        sandbox = await FakeProvider(program).open(SandboxSpec())
        result = await sandbox.exec(["make", "it"], timeout_s=1)
        assert (result.exit_code, result.stdout.text()) == (3, "played")
        assert await sandbox.read("seen") == b"['make', 'it']"
        shell = await sandbox.shell()
        assert (await shell.run("make it", timeout_s=1)).exit_code == 3
        assert sandbox.commands == [["make", "it"], "make it"]

    asyncio.run(main())


def test_a_program_may_be_async_and_its_own_timeout_is_not_the_deadline() -> None:
    async def program(command: Command, files: Files) -> Answer:
        raise TimeoutError("the program's own")

    async def main() -> None:
        sandbox = await FakeProvider(program).open(SandboxSpec())
        with pytest.raises(TimeoutError, match="own"):
            await sandbox.exec(["x"], timeout_s=1)

    asyncio.run(main())


def test_dying_ends_calls_under_way() -> None:
    async def main() -> None:
        sandbox = await FakeProvider().open(SandboxSpec())
        call = asyncio.ensure_future(sandbox.exec(["sleep", "1000"], timeout_s=500))
        await asyncio.sleep(0)
        sandbox.die("struck")
        with pytest.raises(SandboxError, match="gone: struck"):
            await call
        assert not await sandbox.healthy()

    asyncio.run(main())


def test_hanging_runs_into_deadlines() -> None:
    async def main() -> None:
        sandbox = await FakeProvider().open(SandboxSpec(files={"x": File(data=b"")}))
        sandbox.hang()
        assert (await sandbox.exec(["true"], timeout_s=0.01)).timed_out
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await sandbox.read("x")
        assert not await sandbox.healthy()
        await sandbox.aclose()

    asyncio.run(main())


def test_starts_can_fail_and_hang() -> None:
    async def main() -> None:
        provider = FakeProvider(num_failing=1, num_hanging=1)
        with pytest.raises(SandboxError, match="made to fail"):
            await open_sandbox(provider, SandboxSpec(), timeout_s=1)
        with pytest.raises(SandboxError, match="did not start within"):
            await open_sandbox(provider, SandboxSpec(), timeout_s=0.01)
        sandbox = await open_sandbox(provider, SandboxSpec(), timeout_s=1)
        assert provider.sandboxes == [sandbox]

    asyncio.run(main())


def test_a_failed_setup_closes_the_sandbox() -> None:
    async def main() -> None:
        provider = FakeProvider()
        with pytest.raises(SandboxError, match="no-such-thing: not found"):
            await open_sandbox(provider, SandboxSpec(setup=("no-such-thing",)), timeout_s=1)
        assert [sandbox.closed for sandbox in provider.sandboxes] == [True]

    asyncio.run(main())

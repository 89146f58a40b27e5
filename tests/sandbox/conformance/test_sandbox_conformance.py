"""What every sandbox provider promises, of ours: the suite of `sandbox.conformance`, and of the suite itself
that it finds broken promises."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from slipstream.errors import SandboxFileError
from slipstream.sandbox import FakeProvider, FakeSandbox, LocalProvider, Sandbox
from slipstream.sandbox.base import ExecResult
from slipstream.sandbox.conformance.case import all_gone
from slipstream.sandbox.conformance.suite import CASES, Case, Need, applicable, check, when_lost
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.pool.pool import Pool
from slipstream.types import File, SandboxSpec

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


async def die(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, FakeSandbox)
    sandbox.die()


async def kill(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, LocalSandbox)
    os.kill(sandbox.host_pid, signal.SIGKILL)


def on_system_python() -> LocalProvider:
    return LocalProvider()


def on_own_python() -> LocalProvider:
    return LocalProvider(use_system_python=False)


# The fake plays a handful of programs and runs none.
@pytest.mark.parametrize("case", [*applicable(FakeProvider(), without={Need.PROGRAMS}), when_lost(die)], ids=str)
def test_the_fake_keeps_the_contract(case: Case) -> None:
    check(case, FakeProvider)


@on_linux
@pytest.mark.parametrize("case", [*applicable(on_system_python()), when_lost(kill)], ids=str)
def test_local_keeps_the_contract(case: Case) -> None:
    check(case, on_system_python)


@on_linux
@pytest.mark.parametrize("case", applicable(on_own_python()), ids=str)
def test_local_keeps_the_contract_with_its_own_python(case: Case) -> None:
    check(case, on_own_python)


def pooled_fakes() -> Pool:
    return Pool(FakeProvider(), max_warm=2)


def pooled() -> Pool:
    return Pool(LocalProvider(), max_warm=2)


@pytest.mark.parametrize("case", applicable(pooled_fakes(), without={Need.PROGRAMS}), ids=str)
def test_the_pool_keeps_the_contract_of_what_it_hands_out(case: Case) -> None:
    check(case, pooled_fakes)


@on_linux
@pytest.mark.parametrize("case", applicable(pooled()), ids=str)
def test_the_pool_keeps_the_contract_of_local_sandboxes(case: Case) -> None:
    check(case, pooled)


@on_linux
def test_local_goes_beyond_the_contract() -> None:
    async def main() -> None:
        provider = LocalProvider()
        try:
            sandbox = await provider.open(SandboxSpec())
            for path in ("/usr/bin/new", "/proc/self/mem", "/proc/self/comm"):
                with pytest.raises(SandboxFileError, match=path):
                    await sandbox.write({path: File(data=b"x")})
            with pytest.raises(SandboxFileError, match="not a regular file"):
                await sandbox.read("/dev/tty")
            assert (await sandbox.exec(["/etc/passwd/x"], timeout_s=30)).exit_code == 127
            script = "setsid sleep 1002 & sleep 1001"
            assert (await sandbox.exec(["sh", "-c", script], timeout_s=0.5)).timed_out
            await all_gone(sandbox, "sleep 100")
        finally:
            await provider.aclose()

    asyncio.run(main())


# ---------------------------------------------------------------- the suite itself


class Forgetful(FakeSandbox):
    async def write(self, files: object) -> None:
        """Keeps nothing."""

    async def exec(self, *args: object, **options: object) -> ExecResult:
        result = await super().exec(["true"], timeout_s=1)
        return ExecResult(exit_code=0, stdout=result.stdout, stderr=result.stderr)


class ForgetfulProvider(FakeProvider):
    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        sandbox = Forgetful(spec, self._program, "forgetful")
        self.sandboxes.append(sandbox)
        return sandbox


@pytest.mark.parametrize(
    "name", ["files_are_written_and_read", "exec_gives_output_and_exit_code", "the_deadline_ends_a_program"]
)
def test_a_broken_promise_is_an_assertion_error(name: str) -> None:
    (case,) = [case for case in CASES if case.name == name]
    with pytest.raises((AssertionError, SandboxFileError)):
        check(case, ForgetfulProvider)


def test_cases_have_names_of_their_own_and_are_chosen_by_what_a_provider_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    everything = applicable(FakeProvider())
    assert all(case.capabilities <= FakeProvider().capabilities for case in everything)
    few = applicable(FakeProvider(), without={Need.PROGRAMS, Need.DISK_LIMIT})
    assert {case.name for case in everything} > {case.name for case in few}
    assert not any(case.needs for case in few)

"""The conformance suite: whether a sandbox provider keeps the contract of `base.py`.

Input: a provider, ours or yours, and what its base is. Output: nothing, or an AssertionError that says which promise
was broken. Invariants: each case opens its own sandboxes and closes them; capabilities are tested where the provider
names them; what a provider cannot be asked is named by whoever runs the suite, in `without`, and nowhere else. No test
framework is imported. A test file of yours is five lines:

    import pytest
    from slipstream.sandbox.conformance.suite import applicable, check

    @pytest.mark.parametrize("case", applicable(MyProvider()), ids=str)
    def test_my_provider_keeps_the_contract(case):
        check(case, MyProvider)

Where the provider needs an image, give `check` a third argument: `functools.partial(SandboxSpec, base="debian:12")`.
Where there is a way to kill a sandbox from outside, add `when_lost(kill)` to the cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from slipstream.errors import SandboxError
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.conformance.basics import BASICS
from slipstream.sandbox.conformance.capabilities import BESIDE
from slipstream.sandbox.conformance.case import LONG_S, Case, Need, SpecMaker, comes_true, expecting
from slipstream.types import File, SandboxSpec

__all__ = ["CASES", "Case", "Need", "SpecMaker", "applicable", "check", "when_lost"]

CASES: tuple[Case, ...] = (*BASICS.all, *BESIDE.all)
CASE_TIMEOUT_S = 180.0


def applicable(provider: SandboxProvider, *, without: Collection[Need] = ()) -> list[Case]:
    """The cases for what the provider names, but those that need what it goes `without`."""
    return [
        case
        for case in CASES
        if case.capabilities <= frozenset(provider.capabilities) and case.needs.isdisjoint(without)
    ]


def check(case: Case, make_provider: Callable[[], SandboxProvider], make_spec: SpecMaker = SandboxSpec) -> None:
    """Run one case on a provider of its own. Raises AssertionError if the promise is not kept."""

    async def main() -> None:
        provider = make_provider()
        try:
            async with asyncio.timeout(CASE_TIMEOUT_S):
                await case(provider, make_spec)
        finally:
            await provider.aclose()

    asyncio.run(main())


def when_lost(lose: Callable[[Sandbox], Awaitable[None]]) -> Case:
    """The case of a sandbox that is lost from outside, by the means of `lose`."""

    async def a_lost_sandbox_says_so_in_every_call(provider: SandboxProvider, make_spec: SpecMaker) -> None:
        sandbox, other = await provider.open(make_spec()), await provider.open(make_spec())
        shell = await sandbox.shell()
        pending = asyncio.gather(
            sandbox.exec(["sleep", "1000"], timeout_s=500),
            shell.run("sleep 1000", timeout_s=500),
            return_exceptions=True,
        )
        await asyncio.sleep(0.1)
        await lose(sandbox)
        assert all(isinstance(error, SandboxError) for error in await pending), "calls under way end with SandboxError"

        async def is_unhealthy() -> bool:
            return not await sandbox.healthy()

        await comes_true("a lost sandbox is not healthy", is_unhealthy)
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
        assert await other.healthy(), "another sandbox is not harmed"
        await sandbox.aclose()
        await sandbox.aclose()

    body = a_lost_sandbox_says_so_in_every_call
    return Case(name=body.__name__, body=body, needs=frozenset(), capabilities=frozenset())

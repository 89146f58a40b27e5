"""The conformance suite: tests whether a sandbox provider keeps the contract of `base.py`.

Input: a provider and its base. A broken promise raises an AssertionError. Invariants: each case opens and closes its
own sandboxes; the capabilities that a provider lists are tested; only the caller can exclude needs, with `without`. No
test framework is imported. Your test file takes five lines:

    import pytest
    from slipstream.sandbox.conformance.suite import applicable, check

    @pytest.mark.parametrize("case", applicable(MyProvider()), ids=str)
    def test_my_provider_keeps_the_contract(case):
        check(case, MyProvider)

If the provider needs an image, give `check` a third argument: `functools.partial(SandboxSpec, base="debian:12")`.
If a sandbox can be killed from outside, add `when_lost(kill)` to the cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from slipstream.errors import SandboxError
from slipstream.sandbox.base import Sandbox, SandboxProvider
from slipstream.sandbox.conformance.capabilities import CAPABILITY_CASES
from slipstream.sandbox.conformance.case import LONG_S, Case, Need, SpecMaker, comes_true, expecting
from slipstream.sandbox.conformance.files import FILE_CASES
from slipstream.sandbox.conformance.lifecycle import LIFECYCLE_CASES
from slipstream.sandbox.conformance.programs import PROGRAM_CASES
from slipstream.types import File, SandboxSpec

__all__ = ["CASES", "Case", "Need", "SpecMaker", "applicable", "check", "when_lost"]

CASES: tuple[Case, ...] = (*PROGRAM_CASES.all, *FILE_CASES.all, *LIFECYCLE_CASES.all, *CAPABILITY_CASES.all)
CASE_TIMEOUT_S = 180.0


def applicable(provider: SandboxProvider, *, without: Collection[Need] = ()) -> list[Case]:
    """The cases that apply to a provider: those for its capabilities, except those whose needs are in `without`."""
    return [
        case
        for case in CASES
        if case.capabilities <= frozenset(provider.capabilities) and case.needs.isdisjoint(without)
    ]


def check(case: Case, make_provider: Callable[[], SandboxProvider], make_spec: SpecMaker = SandboxSpec) -> None:
    """Run one case on its own provider. Raises AssertionError if the promise is broken."""

    async def main() -> None:
        provider = make_provider()
        try:
            async with asyncio.timeout(CASE_TIMEOUT_S):
                await case(provider, make_spec)
        finally:
            await provider.aclose()

    asyncio.run(main())


def when_lost(lose: Callable[[Sandbox], Awaitable[None]]) -> Case:
    """The case of a sandbox that is lost from outside; `lose` kills it."""

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
        assert all(isinstance(error, SandboxError) for error in await pending), (
            "calls in progress must raise SandboxError"
        )

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
        assert await other.healthy(), "another sandbox must not be affected"
        await sandbox.aclose()
        await sandbox.aclose()

    body = a_lost_sandbox_says_so_in_every_call
    return Case(name=body.__name__, body=body, needs=frozenset(), capabilities=frozenset())

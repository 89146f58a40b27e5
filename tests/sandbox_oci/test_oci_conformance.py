"""The contract that every provider keeps, kept by real containers."""

from __future__ import annotations

import asyncio
import functools

import pytest
from containers import PLAIN, PYTHON, needs_engine

from slipstream.sandbox.base import Sandbox
from slipstream.sandbox.conformance.suite import Case, applicable, check, when_lost
from slipstream.sandbox.oci.engine import find_engine
from slipstream.sandbox.oci.provider import OciProvider
from slipstream.types import SandboxSpec

pytestmark = needs_engine


async def kill(sandbox: Sandbox) -> None:
    await asyncio.to_thread(find_engine(None).call_blocking, ["kill", sandbox.id])


CASES = [*applicable(OciProvider()), when_lost(kill)]
FEWER = applicable(OciProvider(read_only=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_container_keeps_the_contract(case: Case) -> None:
    check(case, OciProvider, functools.partial(SandboxSpec, base=PYTHON))


@pytest.mark.parametrize("case", FEWER, ids=str)
def test_a_read_only_container_with_the_hosts_python_keeps_the_contract(case: Case) -> None:
    check(case, lambda: OciProvider(read_only=True), functools.partial(SandboxSpec, base=PLAIN))

"""What the tests with real containers share. They run where SLIPSTREAM_OCI is set: `make sandboxes`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from slipstream.sandbox.oci.provider import OciProvider, leftovers
from slipstream.types import SandboxSpec

PLAIN = "localhost/slipstream-debian:bookworm"
PYTHON = "localhost/slipstream-debian:bookworm-python"

needs_engine = pytest.mark.skipif(
    not os.environ.get("SLIPSTREAM_OCI"), reason="needs a container engine and two images: `make sandboxes`"
)


def within(
    body: Callable[[Any], Awaitable[None]], spec: SandboxSpec | None = None, provider: OciProvider | None = None
) -> None:
    """Run `body` with a sandbox, and see that nothing is left of it."""

    async def main() -> None:
        made = provider or OciProvider()
        try:
            async with asyncio.timeout(120):
                await body(await made.open(based(spec or SandboxSpec())))
        finally:
            await made.aclose()
        assert leftovers(made.lease_id) == []

    asyncio.run(main())


def based(spec: SandboxSpec) -> SandboxSpec:
    return replace(spec, base=PYTHON) if spec.base == "host" else spec

"""A real provider of local sandboxes, for the length of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from slipstream.sandbox import LocalProvider


@contextlib.asynccontextmanager
async def provided() -> AsyncIterator[LocalProvider]:
    provider = LocalProvider()
    try:
        async with asyncio.timeout(60):
            yield provider
    finally:
        await provider.aclose()

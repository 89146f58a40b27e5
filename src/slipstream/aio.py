"""What asyncio lacks. Standard library only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup whose first error comes out as itself and not in an ExceptionGroup, for callers that catch it."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as raised:
        first = raised.exceptions[0]
    else:
        return
    raise first

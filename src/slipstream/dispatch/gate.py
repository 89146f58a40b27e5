"""The turn gate that lets every turn through at once and counts those under way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slipstream.types import JobKey


class OpenGate:
    def __init__(self) -> None:
        self.num_turns_under_way = 0

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int) -> AsyncIterator[None]:
        self.num_turns_under_way += 1
        try:
            yield
        finally:
            self.num_turns_under_way -= 1

"""The turns of all attempts are written with one flush for many, and a flush that fails ends every attempt."""

import asyncio

import pytest

from slipstream.errors import JournalError
from slipstream.rollout.turn_writer import TurnWriter
from slipstream.seams import Event
from slipstream.simulate.clock import run_virtual


class SlowJournal:
    """A flush takes a second; the one of that number fails."""

    def __init__(self, *, fails: int = 0) -> None:
        self.num_flushes = 0
        self._fails = fails

    def append(self, event: Event) -> None: ...

    async def flush(self) -> None:
        self.num_flushes += 1
        number = self.num_flushes
        await asyncio.sleep(1.0)
        if number == self._fails:
            raise JournalError("the disk is full")


def test_turns_taken_during_a_flush_share_the_next_one() -> None:
    journal = SlowJournal()

    async def main() -> None:
        writer = TurnWriter(journal)
        for _ in range(5):
            writer.took()
        await asyncio.sleep(0.5)
        for _ in range(5):
            writer.took()
        await asyncio.sleep(5.0)

    run_virtual(main())
    assert journal.num_flushes == 2


def test_every_attempt_ends_when_turns_cannot_be_written() -> None:
    writer = TurnWriter(SlowJournal(fails=2))
    cancelled: list[int] = []

    async def attempt(number: int) -> None:
        async with writer.guarded():
            writer.took()
            try:
                await asyncio.sleep(100.0 if number else 1.5)
                writer.took()
                await asyncio.sleep(100.0)
            except asyncio.CancelledError:
                cancelled.append(number)
                raise

    async def main() -> float:
        found = await asyncio.gather(*(attempt(number) for number in range(3)), return_exceptions=True)
        assert [(type(each), str(each)) for each in found] == [(JournalError, "the disk is full")] * 3
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 2.5
    assert cancelled == [0, 1, 2]


def test_a_cancellation_from_outside_stays_one() -> None:
    writer = TurnWriter(SlowJournal(fails=1))

    async def attempt() -> None:
        async with writer.guarded():
            writer.took()
            await asyncio.sleep(100.0)

    async def main() -> None:
        task = asyncio.create_task(attempt())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(5.0)  # the flush fails with nobody there

    run_virtual(main())

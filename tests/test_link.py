"""Calls between two processes, with both ends in one: every call ends once, and in the way it should."""

import asyncio
import logging
import pickle
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import (
    ConfigError,
    ContextOverflow,
    GraderError,
    InfrastructureError,
    JournalError,
    ReplayError,
    SandboxBroken,
    SandboxError,
    SandboxFileError,
)
from slipstream.link import _ANSWER, _HEAD, Link, LinkLost, start_linked

Calls = Mapping[str, Callable[..., Awaitable[Any]]]
Tells = Mapping[str, Callable[..., None]]


class TwoPart(Exception):
    """Pickles, and cannot be made again from what was pickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class OnlyThere:
    """Stands for what only the sender has: it can be written and not be read."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _no_such, ()


def _no_such() -> None:
    raise ModuleNotFoundError("no such module here")


@asynccontextmanager
async def two_ends(calls: Calls, tells: Tells | None = None) -> AsyncIterator[tuple[Link, Link]]:
    """One that calls, and one that offers."""
    first, second = socket.socketpair()
    near, far = Link(calls={}, tells={}, peer="far"), Link(calls=calls, tells=tells or {}, peer="near")
    for link, own in ((near, first), (far, second)):
        own.setblocking(False)
        await link.connect(own)
    try:
        yield near, far
    finally:
        near.close()
        async with asyncio.timeout(300):
            await near.over(grace_s=1)
            await far.over(grace_s=1)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await main()

    asyncio.run(bounded())


async def add(one: int, two: int) -> int:
    return one + two


class Held:
    """Calls that wait until a test lets them go, by number."""

    def __init__(self) -> None:
        self.doors: dict[int, asyncio.Event] = {}
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []

    def door(self, number: int) -> asyncio.Event:
        return self.doors.setdefault(number, asyncio.Event())

    async def hold(self, number: int) -> int:
        self.begun.append(number)
        try:
            await self.door(number).wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.ended.append(number)
        return number

    async def until_begun(self, number: int) -> None:
        while number not in self.begun:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0)


def test_a_call_is_answered() -> None:
    async def main() -> None:
        async with two_ends({"add": add}) as (near, _):
            assert await near.call("add", 1, 2) == 3

    run(main)


def test_each_of_many_calls_gets_its_own_answer_in_whatever_order_they_come() -> None:
    async def main() -> None:
        held = Held()
        async with two_ends({"hold": held.hold}) as (near, _):
            calls = [asyncio.create_task(near.call("hold", number)) for number in range(50)]
            await held.until_begun(49)
            for number in reversed(range(50)):
                held.door(number).set()
                assert await calls[number] == number
            assert held.begun == list(range(50))

    run(main)


def test_both_ends_may_call_at_once() -> None:
    async def main() -> None:
        first, second = socket.socketpair()
        one, two = Link(calls={"add": add}, tells={}), Link(calls={"add": add}, tells={})
        for link, own in ((one, first), (two, second)):
            own.setblocking(False)
            await link.connect(own)
        sums = await asyncio.gather(*(link.call("add", number, 1) for number in range(20) for link in (one, two)))
        assert sums == [number + 1 for number in range(20) for _ in range(2)]
        one.close()
        await two.over(grace_s=1)

    run(main)


@pytest.mark.parametrize(
    "kind",
    [
        SandboxError,
        SandboxFileError,
        SandboxBroken,
        JournalError,
        GraderError,
        ReplayError,
        ConfigError,
        ContextOverflow,
        ZeroDivisionError,
    ],
)
def test_an_error_keeps_its_type_and_its_words(kind: type[Exception]) -> None:
    async def fail() -> None:
        raise kind("as it was said")

    async def main() -> None:
        async with two_ends({"fail": fail}) as (near, _):
            with pytest.raises(kind, match=r"^as it was said$") as raised:
                await near.call("fail")
            assert type(raised.value) is kind

    run(main)


def test_an_error_that_cannot_be_passed_on_is_told() -> None:
    class Local(Exception):
        """Nobody can import it."""

    async def fail(error: str) -> None:
        raise Local("one") if error == "local" else TwoPart("two", "three")

    async def main() -> None:
        async with two_ends({"fail": fail}) as (near, _):
            with pytest.raises(InfrastructureError, match="Local: one"):
                await near.call("fail", "local")
            with pytest.raises(InfrastructureError, match="TwoPart: two and three"):
                await near.call("fail", "two")

    run(main)


def test_an_answer_that_cannot_be_passed_on_is_an_error_and_the_link_goes_on() -> None:
    async def give(what: str) -> Any:
        return {"lambda": lambda: None, "unread": OnlyThere(), "sound": 1}[what]

    async def main() -> None:
        async with two_ends({"give": give}) as (near, _):
            with pytest.raises(InfrastructureError, match="the answer to give"):
                await near.call("give", "lambda")
            with pytest.raises(InfrastructureError, match="far sent cannot be read: ModuleNotFoundError: no such"):
                await near.call("give", "unread")
            assert await near.call("give", "sound") == 1

    run(main)


def test_a_call_that_cannot_be_read_or_is_not_offered_fails_alone() -> None:
    async def main() -> None:
        held = Held()
        async with two_ends({"add": add, "hold": held.hold}) as (near, _):
            other = asyncio.create_task(near.call("hold", 1))
            await held.until_begun(1)
            with pytest.raises(InfrastructureError, match="near sent cannot be read"):
                await near.call("add", OnlyThere(), 2)
            with pytest.raises(KeyError, match="multiply"):
                await near.call("multiply", 1, 2)
            with pytest.raises(Exception, match="pickle"):
                await near.call("add", lambda: None, 2)
            held.door(1).set()
            assert await other == 1

    run(main)


def test_something_told_that_fails_leaves_the_link_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("told")

    async def main() -> None:
        async with two_ends({"add": add}, {"fail": fail}) as (near, _):
            near.tell("fail")
            near.tell("nothing of the kind")
            near.tell("fail", OnlyThere())
            assert await near.call("add", 1, 2) == 3

    with caplog.at_level(logging.ERROR):
        run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "fail, sent by near, failed",
        "nothing of the kind, sent by near, failed",
        "what near sent cannot be read: ModuleNotFoundError: no such module here",
    ]


def test_cancelling_a_call_cancels_what_it_called_and_waits_until_that_has_ended() -> None:
    async def main() -> None:
        slow_to_end = asyncio.Event()
        told: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                told.append("cancelled")
                await slow_to_end.wait()
                told.append("ended")

        async with two_ends({"work": work, "add": add}) as (near, _):
            call = asyncio.create_task(near.call("work"))
            await near.call("add", 1, 2)
            call.cancel()
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(10):
                call.cancel()  # again, while what it called is still alive
                await near.call("add", 1, 2)
                assert not call.done()
            slow_to_end.set()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert told == ["cancelled", "ended"]

    run(main)


@pytest.mark.parametrize("says", ["answers", "raises"])
def test_a_call_that_was_cancelled_ends_so_whatever_what_it_called_makes_of_it(says: str) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if says == "raises":
                raise ValueError("of its own") from None
        return "all the same"

    async def main() -> None:
        async with two_ends({"stubborn": stubborn, "add": add}) as (near, _):
            call = asyncio.create_task(near.call("stubborn"))
            await near.call("add", 1, 2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    run(main)


def test_a_call_cancelled_in_the_tick_it_was_made_ends_and_nothing_is_begun() -> None:
    class Late(Link):
        """Reads when both the call and its cancellation are there."""

        kept = b""
        num = 0

        def data_received(self, data: bytes) -> None:
            self.kept += data
            self.num += 1
            if self.num >= 2:
                kept, self.kept = self.kept, b""
                super().data_received(kept)

    async def main() -> None:
        held = Held()
        first, second = socket.socketpair()
        near, far = Link(calls={}, tells={}), Late(calls={"hold": held.hold, "add": add}, tells={})
        for link, own in ((near, first), (far, second)):
            own.setblocking(False)
            await link.connect(own)
        call = asyncio.create_task(near.call("hold", 1))
        while far.num < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert far.num == 2 and held.begun == []
        assert await near.call("add", 1, 2) == 3
        near.close()
        await far.over(grace_s=1)

    run(main)


def test_a_call_whose_answer_comes_in_the_tick_of_its_cancellation_ends() -> None:
    async def main() -> None:
        first, second = socket.socketpair()
        near = Link(calls={}, tells={})
        first.setblocking(False)
        await near.connect(first)
        call = asyncio.create_task(near.call("add", 1, 2))
        await asyncio.sleep(0)
        call.cancel()
        answer = pickle.dumps((3,))
        near.data_received(_HEAD.pack(len(answer), _ANSWER, 1) + answer)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, timeout=5.0)  # nobody will answer once more
        near.close()
        await near.over(grace_s=1)
        second.close()

    run(main)


def test_what_cancels_itself_or_exits_is_an_error_of_the_call_alone() -> None:
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    async def cancel_its_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async def leave() -> None:
        sys.exit(3)

    async def main() -> None:
        offered: Calls = {
            "cancel_itself": cancel_itself,
            "cancel_its_task": cancel_its_task,
            "leave": leave,
            "add": add,
        }
        async with two_ends(offered) as (near, _):
            for name in ("cancel_itself", "cancel_its_task"):
                with pytest.raises(InfrastructureError, match=f"{name} cancelled itself"):
                    await near.call(name)
            with pytest.raises(InfrastructureError, match=r"sys.exit\(3\) was called"):
                await near.call("leave")
            assert await near.call("add", 1, 2) == 3

    run(main)


@pytest.mark.parametrize("who", ["near", "far"])
def test_when_an_end_goes_all_calls_are_lost_and_what_was_called_is_cancelled(who: str) -> None:
    async def main() -> None:
        held = Held()
        first, second = socket.socketpair()
        lost: list[str] = []
        near = Link(calls={}, tells={}, on_lost=lambda: lost.append("near"), peer="helper process 7")
        far = Link(calls={"hold": held.hold}, tells={}, on_lost=lambda: lost.append("far"))
        for link, own in ((near, first), (far, second)):
            own.setblocking(False)
            await link.connect(own)
        calls = [asyncio.create_task(near.call("hold", number)) for number in range(5)]
        await held.until_begun(4)
        calls[0].cancel()
        {"near": near, "far": far}[who].close()
        late = asyncio.create_task(near.call("hold", 5))
        await far.over(grace_s=5)
        assert held.ended == held.cancelled == list(range(5))
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        for call in (*calls[1:], late):
            with pytest.raises(LinkLost, match="helper process 7 is gone"):
                await call
        with pytest.raises(LinkLost, match="helper process 7 is gone"):
            await near.call("hold", 6)
        near.tell("anything")
        assert near.is_lost and far.is_lost and sorted(lost) == ["far", "near"]

    run(main)


def test_what_is_told_and_called_begins_in_that_order() -> None:
    async def main() -> None:
        began: list[int] = []

        async def called(number: int) -> None:
            began.append(number)

        async with two_ends({"called": called}, {"told": began.append}) as (near, _):
            calls = []
            for number in range(0, 40, 2):
                near.tell("told", number)
                calls.append(asyncio.create_task(near.call("called", number + 1)))
                await calls[-1]
            assert began == list(range(40))
            began.clear()
            for number in range(20):
                near.tell("told", number)
            await near.call("called", 20)
            assert began == list(range(21))

    run(main)


def test_messages_of_many_mebibytes_go_through_among_small_ones() -> None:
    async def main() -> None:
        async def double(data: bytes) -> bytes:
            return data * 2

        async with two_ends({"double": double, "add": add}) as (near, _):
            data = bytes(range(256)) * (5 << 12)
            large = [asyncio.create_task(near.call("double", data)) for _ in range(2)]
            assert await near.call("add", 1, 2) == 3
            for call in large:
                assert await call == data * 2

    run(main)


def test_messages_may_come_byte_by_byte_or_all_at_once() -> None:
    class Bytes(Link):
        """Cuts what comes into bytes."""

        def data_received(self, data: bytes) -> None:
            for number in range(len(data)):
                super().data_received(data[number : number + 1])

    class Blocks(Link):
        """Keeps what comes until it is enough."""

        kept = b""

        def data_received(self, data: bytes) -> None:
            self.kept += data
            if len(self.kept) >= 2_000:
                kept, self.kept = self.kept, b""
                super().data_received(kept)

    async def echo(data: bytes) -> bytes:
        return data

    async def main() -> None:
        first, second = socket.socketpair()
        near, far = Blocks(calls={}, tells={}), Bytes(calls={"echo": echo}, tells={})
        for link, own in ((near, first), (far, second)):
            own.setblocking(False)
            await link.connect(own)
        sent = [bytes([number]) * 500 for number in range(10)]
        assert await asyncio.gather(*(near.call("echo", data) for data in sent[:5])) == sent[:5]
        assert await asyncio.gather(*(near.call("echo", data) for data in sent[5:])) == sent[5:]
        near.close()
        await far.over(grace_s=1)

    run(main)


def test_closing_twice_is_fine_and_so_is_closing_what_was_never_open() -> None:
    async def main() -> None:
        Link(calls={}, tells={}).close()
        async with two_ends({"add": add}) as (near, far):
            near.close()
            near.close()
            await near.over(grace_s=1)
            await far.over(grace_s=1)
            near.close()
            far.close()

    run(main)


DEEDS = st.lists(st.tuples(st.sampled_from(["call", "cancel", "let_go", "pass"]), st.integers(0, 7)), max_size=60)


@given(deeds=DEEDS, breaks=st.booleans())
def test_every_call_ends_once_and_rightly_however_calls_cancels_and_answers_meet(
    deeds: list[tuple[str, int]], breaks: bool
) -> None:
    """Whatever is let go or cancelled, in whatever order: a call that was not cancelled is answered, one that was may
    be either, and nothing that was begun is left."""

    async def main() -> None:
        held = Held()
        calls: list[asyncio.Task[int]] = []
        cancelled: set[int] = set()
        first, second = socket.socketpair()
        near, far = Link(calls={}, tells={}), Link(calls={"hold": held.hold}, tells={})
        for link, own in ((near, first), (far, second)):
            own.setblocking(False)
            await link.connect(own)
        for deed, which in deeds:
            if deed == "call":
                calls.append(asyncio.create_task(near.call("hold", len(calls))))
            elif deed == "pass":
                for _ in range(which):
                    await asyncio.sleep(0)
            elif which < len(calls):
                if deed == "cancel" and calls[which].cancel():
                    cancelled.add(which)
                elif deed == "let_go":
                    held.door(which).set()
        if breaks:
            far.close()
        for number in range(len(calls)):
            held.door(number).set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        for number, end in enumerate(ends):
            if number in cancelled:
                assert isinstance(end, asyncio.CancelledError)
            else:
                assert end == number or (breaks and isinstance(end, LinkLost))
        near.close()
        await near.over(grace_s=1)
        await far.over(grace_s=1)
        assert sorted(held.begun) == sorted(held.ended) and len(set(held.begun)) == len(held.begun)

    run(main)


# ---------------------------------------------------------------- processes


def test_after_a_process_that_could_not_be_started_the_next_link_hears_all() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="too long"):
            await start_linked("m" * (1 << 22), Link(calls={}, tells={}))
        async with two_ends({"add": add}) as (near, _):
            calling = asyncio.create_task(near.call("add", 1, 2))
            await asyncio.wait([calling], timeout=5)
            near.close()  # so that the call ends
            assert await calling == 3

    run(main)

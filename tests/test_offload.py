"""Work in a process of its own: what comes back, what is too much, and that cancelling ends it."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable

import pytest

from slipstream.errors import GraderError, InfrastructureError
from slipstream.offload import SMALL_BYTES, OffloadLimits, WorkTooLarge, apart, by_size


def where() -> int:
    return os.getpid()


def add(one: int, other: int) -> int:
    return one + other


def refuse(why: str) -> None:
    raise GraderError(why)


def spin() -> None:
    while True:
        pass


def grow() -> int:
    return len(b"x" * (4 << 30))


def give_much() -> bytes:
    return b"x" * (8 << 20)


def nest() -> None:
    nest()


def end() -> None:
    os._exit(3)


def tell_and_wait(told: int) -> None:
    os.write(told, b"%d" % os.getpid())
    signal.pause()


def test_a_function_runs_in_another_process_and_its_result_or_error_comes_back() -> None:
    assert asyncio.run(apart(where)) != os.getpid()
    assert asyncio.run(apart(add, 1, 2)) == 3
    with pytest.raises(GraderError, match="no good"):
        asyncio.run(apart(refuse, "no good"))


def test_only_large_work_needs_a_process() -> None:
    assert asyncio.run(by_size(where, num_bytes=SMALL_BYTES)) == os.getpid()
    assert asyncio.run(by_size(where, num_bytes=SMALL_BYTES + 1)) != os.getpid()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (spin, "it takes more than 1 s of CPU time"),
        (grow, "it takes more than 512 MB of memory"),
        (give_much, "its result is larger than 1 MB"),
        (nest, "it is nested too deeply"),
    ],
)
def test_work_that_takes_too_much_is_too_large(function: Callable[[], object], said: str) -> None:
    limits = OffloadLimits(cpu_s=1, memory_bytes=512 << 20, result_bytes=1 << 20)
    with pytest.raises(WorkTooLarge, match=said):
        asyncio.run(apart(function, limits=limits))


def test_small_work_that_nests_too_deeply_is_too_large_as_well() -> None:
    with pytest.raises(WorkTooLarge, match="nested"):
        asyncio.run(by_size(nest, num_bytes=0))


def test_a_process_that_ends_by_itself_or_gets_no_time_is_a_fault_of_the_host() -> None:
    with pytest.raises(InfrastructureError, match=r"test_offload\.end ended with 3"):
        asyncio.run(apart(end))
    with pytest.raises(InfrastructureError, match="no result"):
        asyncio.run(apart(signal.pause, limits=OffloadLimits(timeout_s=0.0)))


def test_cancelling_ends_the_process() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        came = asyncio.Event()
        loop.add_reader(reading, came.set)
        working = asyncio.ensure_future(apart(tell_and_wait, writing, fds=[writing]))
        await came.wait()
        loop.remove_reader(reading)
        pid = int(os.read(reading, 20))
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        os.close(reading)
        os.close(writing)
        return pid

    pid = asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_cannot_be_pickled_is_said_at_once() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        asyncio.run(apart(lambda: sys))

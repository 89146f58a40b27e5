"""Runs a function in a process of its own, which is killed if it exceeds its limits.

For work whose size an agent decides: comparing its files, applying its patch, reading its test log. On the event loop
or in a thread of this process, such work would block every other rollout.

Input: a module-level function with arguments that can be pickled, and descriptors that it may use under the same
numbers. Output: what it returned or raised.
Invariants: a function that exceeds the CPU time, memory or result size of `OffloadLimits` raises WorkTooLarge, which is
the fault of the data; a process that cannot start, or takes longer than `timeout_s`, raises InfrastructureError, which
is not. Cancelling kills the process. At most as many run at once as there are cores, at a lower priority than this
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from slipstream.aio import outlast
from slipstream.errors import InfrastructureError, SlipstreamError
from slipstream.link import child_environment, portable

T = TypeVar("T")

SMALL_BYTES = 32 << 10
"""Work on less data than this takes a few milliseconds, less than starting a process."""
NICENESS = 5
_OUT_OF_MEMORY, _RESULT_TOO_LARGE, _TOO_DEEP = 70, 71, 72


class WorkTooLarge(SlipstreamError):
    """The data takes more work than is allowed. Never a fault of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadLimits:
    cpu_s: int = 30
    memory_bytes: int = 2 << 30
    result_bytes: int = 256 << 20
    timeout_s: float = 600.0
    """Wall-clock time, for a host that gives the process no CPU time."""


DEFAULT_LIMITS = OffloadLimits()

_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def by_size(
    function: Callable[..., T], *args: object, num_bytes: int, limits: OffloadLimits = DEFAULT_LIMITS
) -> T:
    """Call the function here if its data is small, else in a process. Either way it may raise WorkTooLarge."""
    if num_bytes > SMALL_BYTES:
        return await apart(function, *args, limits=limits)
    try:
        return function(*args)
    except RecursionError as raised:
        raise _too_deep() from raised


async def apart(
    function: Callable[..., T], *args: object, fds: Sequence[int] = (), limits: OffloadLimits = DEFAULT_LIMITS
) -> T:
    """Call the function in a process of its own. Raises what it raised, WorkTooLarge or InfrastructureError."""
    loop = asyncio.get_running_loop()
    places = _places.setdefault(loop, asyncio.Semaphore(max(2, len(os.sched_getaffinity(0)))))
    async with places:
        starting = asyncio.ensure_future(asyncio.to_thread(_Running, function, args, fds, limits))
        try:
            await outlast([starting])
            process = starting.result()
            await process.ended(limits.timeout_s)
            outcome = await asyncio.to_thread(process.outcome)
        except OSError as raised:
            raise InfrastructureError(f"no process could be started for {_name(function)}: {raised}") from raised
        finally:
            if starting.exception() is None:
                await outlast([asyncio.ensure_future(asyncio.to_thread(starting.result().close))])
    return _result(function, outcome, limits)


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _too_deep() -> WorkTooLarge:
    return WorkTooLarge("it is nested too deeply")


class _Running:
    """The process, with its input and its output in memory files."""

    def __init__(
        self, function: Callable[..., object], args: Sequence[object], fds: Sequence[int], limits: OffloadLimits
    ) -> None:
        with contextlib.ExitStack() as stack:
            given = stack.enter_context(_memory_file())
            self._output = stack.enter_context(_memory_file())
            pickle.dump((function, args), given, protocol=pickle.HIGHEST_PROTOCOL)
            given.flush()
            os.lseek(given.fileno(), 0, os.SEEK_SET)
            numbers = (given.fileno(), self._output.fileno())
            sizes = (limits.cpu_s, limits.memory_bytes, limits.result_bytes)
            argv = [sys.executable, "-P", "-m", "slipstream.offload", *map(str, (*numbers, *sizes))]
            self._process = subprocess.Popen(
                argv,
                env=child_environment(),
                pass_fds=(*numbers, *fds),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            given.close()
            stack.pop_all()

    async def ended(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(pidfd, over.set)
        try:
            async with asyncio.timeout(timeout_s):
                await over.wait()
        except TimeoutError:
            raise InfrastructureError(f"a process brought no result within {timeout_s:g} s") from None
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def outcome(self) -> tuple[int, Any]:
        """Its exit code, and what it wrote: whether the function returned, and what it returned or raised."""
        code = self._process.wait()
        if code != 0:
            return code, None
        self._output.seek(0)
        return code, pickle.load(self._output)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()


def _memory_file() -> Any:
    """A memory file. Any: the standard library has no simpler type for an open file."""
    return os.fdopen(os.memfd_create("slipstream", os.MFD_CLOEXEC), "w+b")


def _result(function: Callable[..., T], outcome: tuple[int, Any], limits: OffloadLimits) -> T:
    code, came = outcome
    if code == 0:
        is_good, value = came
        if is_good:
            result: T = value
            return result
        raise value
    if code == -signal.SIGXCPU:
        raise WorkTooLarge(f"it takes more than {limits.cpu_s} s of CPU time")
    if code == _OUT_OF_MEMORY:
        raise WorkTooLarge(f"it takes more than {limits.memory_bytes >> 20} MB of memory")
    if code == _RESULT_TOO_LARGE:
        raise WorkTooLarge(f"its result is larger than {limits.result_bytes >> 20} MB")
    if code == _TOO_DEEP:
        raise _too_deep()
    raise InfrastructureError(f"the process of {_name(function)} ended with {code}")


# ---------------------------------------------------------------- in the process


def main(given: int, output: int, cpu_s: int, memory_bytes: int, result_bytes: int) -> int:
    os.nice(NICENESS)
    for which, limit in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, result_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(which, (allowed, hard))
    try:
        with open(given, "rb") as source:
            function, args = pickle.load(source)
        outcome: tuple[bool, object]
        try:
            outcome = True, function(*args)
        except (MemoryError, RecursionError):
            raise
        except Exception as raised:  # passed to the caller
            outcome = False, portable(raised)
        with open(output, "wb") as out:
            pickle.dump(outcome, out, protocol=pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return _OUT_OF_MEMORY
    except RecursionError:
        return _TOO_DEEP
    except OSError as raised:
        if raised.errno != errno.EFBIG:
            raise
        return _RESULT_TOO_LARGE
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

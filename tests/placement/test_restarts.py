"""Helpers that die or cannot be started, on virtual time: both ends of each link are in this process."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import pytest

from slipstream.dispatch.gate import OpenGate
from slipstream.errors import InfrastructureError, is_shortage
from slipstream.link import Link, start_linked
from slipstream.model.scripted import ScriptedChat, replies
from slipstream.placement.processes import HelperSpec, Processes, open_processes
from slipstream.placement.restarts import MAX_DEATHS, MAX_PAUSE_S, Restarts
from slipstream.simulate.clock import run_virtual
from slipstream.types import Job, JobKey

JOB = Job(key=JobKey(phase="test", step=0, task_id="t", sample=0), seed=0)


class Wire(asyncio.Transport):
    """What is written comes out at the protocol that it leads to."""

    def __init__(self, leads_to: Link) -> None:
        super().__init__()
        self._leads_to = leads_to
        self._is_closing = False
        self.back: Wire

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_soon(self._leads_to.data_received, bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._leads_to.connection_lost, None)
            self.back.abort()


class Ended(subprocess.Popen[bytes]):
    """A process that nobody has to wait for."""

    def __init__(self) -> None:
        self.pid, self.returncode = 0, 0

    def __del__(self) -> None: ...

    def poll(self) -> int:
        return 0


class Machine:
    """Starts helpers that do nothing, or fails to."""

    def __init__(self) -> None:
        self.no_process: OSError | None = None
        self.broken: Callable[[int], bool] = lambda place: False
        """Whether a crew cannot be opened there."""
        self.started_at_s: list[float] = []
        self.wires: dict[int, Wire] = {}

    async def launch(self, module: str, link: Link, given: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
        self.started_at_s.append(asyncio.get_running_loop().time())
        if self.no_process is not None:
            raise self.no_process

        async def open_attempt_deps(maker: str, place: int) -> None:
            if self.broken(place):
                raise ImportError("no such module")
            self.wires[place] = wire

        async def stage(number: int, opening: object) -> None: ...

        far = Link(
            calls={"open": open_attempt_deps, "init": stage, "aclose": stage},
            tells={"forget": lambda _: None},
        )
        wire, back = Wire(far), Wire(link)
        wire.back, back.back = back, wire
        link.connection_made(wire)
        far.connection_made(back)
        return Ended()

    def open(self, num: int) -> AbstractAsyncContextManager[Processes]:
        order = HelperSpec(opener="", works=tuple(range(num)))
        model = ScriptedChat(replies())
        return open_processes(
            order, model=model, gate=OpenGate(), grade_weight=lambda job, ended: 0, launch=self.launch
        )

    async def kill(self, place: int) -> None:
        self.wires.pop(place).abort()
        await asyncio.sleep(0.01)


def on_virtual_time(main: Callable[[Machine], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10_000):
            await main(Machine())

    run_virtual(bounded())


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_while_no_process_can_be_started_an_attempt_waits_and_then_goes_on(number: int) -> None:
    async def main(machine: Machine) -> None:
        loop = asyncio.get_running_loop()
        async with machine.open(1) as processes:
            machine.no_process = OSError(number, "not now")
            await machine.kill(0)
            attempt = processes.open(JOB, 1, None)
            waiting = asyncio.create_task(attempt.init())
            await asyncio.sleep(100)
            assert not waiting.done()
            pauses = [after - before for before, after in pairwise(machine.started_at_s[1:])]
            assert pauses[:4] == pytest.approx([0.5, 1.0, 2.0, 4.0]) and pauses[5:] == pytest.approx([MAX_PAUSE_S] * 8)
            machine.no_process = None
            await waiting
            assert loop.time() <= 100 + MAX_PAUSE_S
            await attempt.aclose()

    on_virtual_time(main)


def test_a_second_without_processes_after_a_death_is_soon_over() -> None:
    async def main(machine: Machine) -> None:
        loop = asyncio.get_running_loop()
        async with machine.open(1) as processes:
            machine.no_process = BlockingIOError(errno.EAGAIN, "not now")
            await machine.kill(0)
            await asyncio.sleep(1)
            machine.no_process = None
            await processes.open(JOB, 1, None).init()
            assert loop.time() < 2

    on_virtual_time(main)


def test_where_helpers_die_one_after_another_an_attempt_is_told_what_is_wrong_until_one_lives() -> None:
    async def main(machine: Machine) -> None:
        async with machine.open(2) as processes:
            machine.broken = lambda place: True
            await machine.kill(0)
            await machine.kill(1)
            with pytest.raises(InfrastructureError, match=r"helper processes died .* ImportError: no such module"):
                await processes.open(JOB, 1, None).init()
            assert len(machine.started_at_s) == 2 * MAX_DEATHS
            machine.broken = lambda place: False
            await asyncio.sleep(MAX_PAUSE_S)
            await processes.open(JOB, 2, None).init()

    on_virtual_time(main)


def test_a_place_whose_helpers_died_often_is_filled_again_while_another_goes_on() -> None:
    async def main(machine: Machine) -> None:
        async with machine.open(2) as processes:
            machine.broken = lambda place: place == 1
            await machine.kill(1)
            await asyncio.sleep(60)
            await processes.open(JOB, 1, None).init()
            machine.broken = lambda place: False
            await asyncio.sleep(MAX_PAUSE_S)
            assert set(machine.wires) == {0, 1}

    on_virtual_time(main)


def test_a_helper_that_dies_before_the_others_are_there_is_replaced() -> None:
    class Hasty(Machine):
        async def launch(self, module: str, link: Link, given: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
            if len(self.started_at_s) == 1:
                await asyncio.sleep(5)
                await self.kill(0)
            return await super().launch(module, link, given)

    async def main() -> None:
        machine = Hasty()
        async with machine.open(2):
            await asyncio.sleep(1)
            assert set(machine.wires) == {0, 1}

    run_virtual(main())


def test_helpers_that_wait_to_be_started_again_are_let_go_at_once() -> None:
    async def main(machine: Machine) -> None:
        async with machine.open(1) as processes:
            machine.no_process = BlockingIOError(errno.EAGAIN, "not now")
            await machine.kill(0)
            await asyncio.sleep(60)
            left_at_s, num = asyncio.get_running_loop().time(), len(machine.started_at_s)
        assert asyncio.get_running_loop().time() == left_at_s
        await asyncio.sleep(60)
        assert len(machine.started_at_s) == num
        with pytest.raises(InfrastructureError, match="are closed"):
            await processes.open(JOB, 1, None).init()

    on_virtual_time(main)


def test_what_was_done_between_two_deaths_makes_the_second_a_first() -> None:
    restarts = Restarts(1)
    first = [restarts.pause_s(0) for _ in range(MAX_DEATHS)]
    assert restarts.hopeless() is not None
    restarts.worked(0)
    assert restarts.hopeless() is None
    assert [restarts.pause_s(0) for _ in range(MAX_DEATHS)] == first == sorted(first)


def test_a_program_that_is_not_there_is_no_shortage() -> None:
    assert not is_shortage(FileNotFoundError(errno.ENOENT, "python"))
    assert is_shortage(MemoryError())


def test_where_no_thread_can_be_started_no_process_can() -> None:
    """As with a limit on processes: the pool of threads is closed, so that it takes nothing any more."""

    async def main() -> None:
        await asyncio.to_thread(int)
        await asyncio.get_running_loop().shutdown_default_executor()
        with pytest.raises(BlockingIOError):
            await start_linked("no_module", Link(calls={}, tells={}))

    asyncio.run(main())

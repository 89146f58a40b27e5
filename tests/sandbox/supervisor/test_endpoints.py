"""Endpoints: closing them waits for no program inside."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path

import pytest

from slipstream.sandbox.supervisor.endpoints import MAX_CONNECTIONS, EndpointServers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def listen_in(folder: Path, name: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(folder / name))
    return listening


@pytest.mark.parametrize("waits", [False, True])
def test_a_program_that_does_not_read_holds_up_nobody(tmp_path: Path, waits: bool) -> None:
    async def main() -> None:
        serving = asyncio.Event()

        async def answer(reader: StreamReader, writer: StreamWriter) -> None:
            try:
                writer.write(bytes(8 << 20))
                serving.set()
                await writer.drain()
            finally:
                if waits:
                    writer.close()
                    await writer.wait_closed()

        served = EndpointServers()
        await served.add("it", listen_in(tmp_path, "it"), answer)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "it"))
            async with asyncio.timeout(300):
                await serving.wait()
                await served.aclose()
            client.settimeout(20)
            while client.recv(1 << 20):
                pass

    asyncio.run(main())


def test_a_program_that_connects_without_end_takes_no_more_descriptors_than_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        num_served = 0

        async def answer(reader: StreamReader, writer: StreamWriter) -> None:
            nonlocal num_served
            num_served += 1
            writer.write(b"x")
            await reader.read()

        served = EndpointServers()
        await served.add("it", listen_in(tmp_path, "it"), answer)
        async with asyncio.timeout(300):
            clients = [await asyncio.open_unix_connection(tmp_path / "it") for _ in range(MAX_CONNECTIONS)]
            assert [await reader.read(1) for reader, _ in clients] == [b"x"] * MAX_CONNECTIONS
            refused, end = await asyncio.open_unix_connection(tmp_path / "it")
            assert await refused.read(1) == b"" and num_served == MAX_CONNECTIONS
            clients[0][1].close()
            while num_served == MAX_CONNECTIONS:  # a place is free once the service has seen the end
                another, last = await asyncio.open_unix_connection(tmp_path / "it")
                await another.read(1)
                last.close()
            end.close()
            await served.aclose()
        for _, writer in clients:
            writer.close()

    asyncio.run(main())

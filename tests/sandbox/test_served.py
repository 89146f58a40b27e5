"""Endpoints: closing them waits for no program inside."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path

import pytest

from slipstream.sandbox.served import Served, listen_in

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


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

        served = Served()
        await served.add("it", listen_in(tmp_path, "it"), answer)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "it"))
            async with asyncio.timeout(20):
                await serving.wait()
                await served.aclose()
            client.settimeout(20)
            while client.recv(1 << 20):
                pass

    asyncio.run(main())

"""Host services that programs in a sandbox can reach, each through a Unix socket in a folder they see.

Input: listening sockets, and a callback for each connection.
Invariants: when `aclose` returns, no connection is served any more; a service that fails ends only its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from asyncio import StreamReader, StreamWriter

from slipstream.errors import SandboxFileError
from slipstream.sandbox.base import OnConnect

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""Per sandbox, at once: each takes a descriptor of this process. Further ones are closed at once."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class EndpointServers:
    """The endpoints of one sandbox."""

    def __init__(self) -> None:
        self._servers: dict[str, asyncio.Server] = {}
        self._connections: dict[asyncio.Task[None], StreamWriter] = {}

    def check(self, name: str) -> None:
        """Raise SandboxFileError if no endpoint can have this name."""
        if not NAME.fullmatch(name):
            raise SandboxFileError(f"{name!r} is not a valid endpoint name: use letters, digits, '_', '-' and '.'")
        if name in self._servers:
            raise SandboxFileError(f"the endpoint {name!r} is taken")

    async def add(self, name: str, listening: socket.socket, on_connect: OnConnect) -> None:
        """Serve connections to a socket; takes ownership of it."""

        def connected(reader: StreamReader, writer: StreamWriter) -> None:
            if len(self._connections) >= MAX_CONNECTIONS:
                writer.transport.abort()
                return
            task = asyncio.ensure_future(_serve(name, on_connect, reader, writer))
            self._connections[task] = writer
            task.add_done_callback(self._connections.pop)

        self._servers[name] = await asyncio.start_unix_server(connected, sock=listening)

    async def aclose(self) -> None:
        for server in self._servers.values():
            server.close()
        for task, writer in self._connections.items():
            writer.transport.abort()  # a program that does not read could make `close` wait
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)


async def _serve(name: str, on_connect: OnConnect, reader: StreamReader, writer: StreamWriter) -> None:
    try:
        await on_connect(reader, writer)
    except Exception:
        log.warning("the endpoint %r failed on a connection", name, exc_info=True)
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

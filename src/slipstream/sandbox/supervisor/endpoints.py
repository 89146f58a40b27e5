"""Services of the host that programs in a sandbox can reach, each through a Unix socket in a folder they see.

Input: sockets that listen there, and what to do with a connection. Output: nothing; connections go on.
Invariants: when `aclose` returns no connection is served any more; a service that fails ends its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from asyncio import StreamReader, StreamWriter
from pathlib import Path

from slipstream.errors import SandboxFileError
from slipstream.sandbox.base import OnConnect

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""Of a sandbox at once: each takes a descriptor of this process, and more are closed as they come."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Served:
    """The services of one sandbox."""

    def __init__(self) -> None:
        self._servers: dict[str, asyncio.Server] = {}
        self._connections: dict[asyncio.Task[None], StreamWriter] = {}

    def check(self, name: str) -> None:
        """Raise SandboxFileError if no endpoint can have this name."""
        if not NAME.fullmatch(name):
            raise SandboxFileError(f"{name!r} is no name for an endpoint: use letters, digits, '_', '-' and '.'")
        if name in self._servers:
            raise SandboxFileError(f"the endpoint {name!r} is taken")

    async def add(self, name: str, listening: socket.socket, on_connect: OnConnect) -> None:
        """Serve what connects to a socket, which is ours from now on."""

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
            writer.transport.abort()  # or a program that does not read could make it wait
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)


def listen_in(folder: Path, name: str) -> socket.socket:
    """A socket that listens at a name in a folder of ours."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(folder / name))
        (folder / name).chmod(0o777)  # whoever may see it may connect
    except OSError as error:
        listening.close()
        raise SandboxFileError(f"the endpoint {name!r} cannot be made: {error.strerror}") from error
    return listening


async def _serve(name: str, on_connect: OnConnect, reader: StreamReader, writer: StreamWriter) -> None:
    try:
        await on_connect(reader, writer)
    except Exception:
        log.warning("the endpoint %r failed on a connection", name, exc_info=True)
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

"""The interpreter of the `python` tool, and the client that talks to it. A standalone program: standard library only.

    program.py client < REQUEST > REPLY      {"code": ..., "timeout_s": ..., "max_bytes": ...}
    program.py server

The client starts a server where none is running, hands it the code and waits. The server keeps what the code defines.
Output goes to a file, descriptors 1 and 2 included, so that what a subprocess prints is there too. Code that takes too
long or prints too much is interrupted; if it does not stop, its interpreter is killed and the next call starts another.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

FOLDER = Path("/tmp/.interpreter")
INTERRUPT_GRACE_S = 2.0
START_S = 20.0
MAX_PRINTED_BYTES = 8 << 20
"""Code that prints more is interrupted."""
POLL_S = 0.05


# ---------------------------------------------------------------- the client


def client() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    json.dump(call(asked), sys.stdout)


def call(asked: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + asked["timeout_s"]
    link, is_new = connect()
    output = FOLDER / "output"
    output.write_bytes(b"")
    (pid,) = struct.unpack("i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4])
    send(link, {"code": asked["code"], "output": str(output)})
    reply: dict[str, Any] = {"new": is_new}
    try:
        reply |= wait(link, pid, output, deadline)
    except (EOFError, OSError, ValueError):
        reply["ended"] = True
    shown, num_bytes = read_output(output, asked["max_bytes"])
    if num_bytes > MAX_PRINTED_BYTES and not reply.get("timed_out"):
        reply["printed_too_much"] = True  # a limit of the sandbox may have stopped it before this program did
    return {**reply, "output": shown, "num_bytes": num_bytes}


def connect() -> tuple[socket.socket, bool]:
    """To the server, which is started if there is none. Whether it was."""
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    address = FOLDER / "socket"
    with contextlib.suppress(OSError):
        return connected(address), False
    address.unlink(missing_ok=True)
    subprocess.Popen(
        [sys.executable, "-X", "utf8", str(Path(__file__).resolve()), "server"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + START_S
    while True:
        try:
            return connected(address), True
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def connected(address: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(address))
    except OSError:
        link.close()
        raise
    return link


def wait(link: socket.socket, pid: int, output: Path, deadline: float) -> dict[str, Any]:
    """The server's reply; what happened instead, if it had to be interrupted or killed."""
    link.settimeout(POLL_S)
    received = b""
    why = ""
    kill_at = 0.0
    while True:
        try:
            part = link.recv(1 << 16)
            if not part:
                raise EOFError
            received += part
            if received.endswith(b"\n"):
                return {**json.loads(received), **({why: True} if why else {})}
        except TimeoutError:
            pass
        now = time.monotonic()
        if why:
            if now >= kill_at:
                os.kill(pid, signal.SIGKILL)
                return {why: True, "ended": True}
        elif now >= deadline or output.stat().st_size > MAX_PRINTED_BYTES:
            why = "timed_out" if now >= deadline else "printed_too_much"
            kill_at = now + INTERRUPT_GRACE_S
            os.kill(pid, signal.SIGINT)


def read_output(path: Path, max_bytes: int) -> tuple[str, int]:
    """The beginning and the end of what was printed, and how much it was."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            return file.read().decode("utf-8", "replace"), size
        head = file.read(max_bytes // 2).decode("utf-8", "replace")
        file.seek(size - max_bytes // 2)
        tail = file.read().decode("utf-8", "replace")
    return f"{head}\n[... {size - max_bytes} bytes left out ...]\n{tail}", size


def send(link: socket.socket, value: dict[str, Any]) -> None:
    link.sendall(json.dumps(value).encode() + b"\n")


# ---------------------------------------------------------------- the server


def server() -> None:
    listening = socket.socket(socket.AF_UNIX)
    beside = FOLDER / "socket.new"
    beside.unlink(missing_ok=True)
    listening.bind(str(beside))
    listening.listen(8)
    beside.rename(FOLDER / "socket")
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    sys.argv = [""]
    sys.path[0] = ""
    number = 0
    while True:
        link = accepted(listening)
        number += 1
        with contextlib.suppress(OSError, ValueError, KeyboardInterrupt), link:
            asked = json.loads(link.makefile("rb").readline())
            send(link, {"failed": run(asked, names, number)})


def accepted(listening: socket.socket) -> socket.socket:
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # meant for code that had just ended
            return listening.accept()[0]


def run(asked: dict[str, Any], names: dict[str, Any], number: int) -> bool:
    """Run code with its output in a file. Whether it failed."""
    output = os.open(asked["output"], os.O_WRONLY | os.O_APPEND)
    try:
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
    finally:
        os.close(output)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    sys.stderr = sys.stdout
    try:
        return run_code(asked["code"], names, f"<call {number}>")
    except OSError:  # the sandbox has no room for what it prints
        return True
    finally:
        with contextlib.suppress(Exception, KeyboardInterrupt):
            sys.stdout.flush()


def run_code(code: str, names: dict[str, Any], name: str) -> bool:
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            if value is not None:
                sys.stdout.write(f"{value!r}\n")
        return False
    except SystemExit as raised:
        if raised.code not in (None, 0):
            sys.stdout.write(f"SystemExit: {raised.code}\n")
        return raised.code not in (None, 0)
    except BaseException as raised:
        shown = traceback.TracebackException(type(raised), raised, raised.__traceback__)
        while shown.stack and not shown.stack[0].filename.startswith("<call "):
            shown.stack.pop(0)
        sys.stdout.write("".join(shown.format()))
        return True


if __name__ == "__main__":
    client() if sys.argv[1] == "client" else server()

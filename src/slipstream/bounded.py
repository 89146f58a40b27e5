"""Reads data from outside with a limit on its unpacked size, so that a small file or answer cannot exhaust the memory.

Input: bytes, a file or a stream, the limit in bytes, and a name for error messages. Output: all of its bytes.
Invariants: little more than the limit is ever held; more data raises TooLarge, which names the limit.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable, Iterator
from typing import IO

CHUNK_BYTES = 1 << 20


class TooLarge(ValueError):
    """The data is larger than the limit."""


def too_large(what: str, max_bytes: int) -> TooLarge:
    return TooLarge(f"{what} is larger than the {max_bytes} bytes that are read")


def inflate(packed: bytes, max_bytes: int, what: str) -> bytes:
    """Decompress zlib data. Raises zlib.error if it is damaged or ends early."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(packed, max_bytes + 1)
    if len(data) > max_bytes:
        raise too_large(what, max_bytes)
    if not unpacking.eof:
        raise zlib.error("incomplete or truncated stream")
    return data


def chunks(file: IO[bytes], max_bytes: int, what: str) -> Iterator[bytes]:
    """The rest of a file, piece by piece."""
    num_left = max_bytes
    while chunk := file.read(CHUNK_BYTES):
        num_left -= len(chunk)
        if num_left < 0:
            raise too_large(what, max_bytes)
        yield chunk


def lines(file: IO[bytes], max_bytes: int, what: str) -> Iterator[bytes]:
    """The lines of a file, each within the limit."""
    while line := file.readline(max_bytes + 1):
        if len(line) > max_bytes:
            raise too_large(f"a line of {what}", max_bytes)
        yield line


async def whole(stream: AsyncIterable[bytes], max_bytes: int, what: str) -> bytes:
    """All of a stream that comes in small pieces."""
    pieces: list[bytes] = []
    num_left = max_bytes
    async for piece in stream:
        num_left -= len(piece)
        if num_left < 0:
            raise too_large(what, max_bytes)
        pieces.append(piece)
    return b"".join(pieces)

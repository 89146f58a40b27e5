"""Data from outside that becomes much larger when it is read."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest

from slipstream.bounded import TooLarge, chunks, inflate, lines, whole


def packed_zeros(num_bytes: int) -> bytes:
    packing = zlib.compressobj(1)
    pieces = [packing.compress(bytes(1 << 20)) for _ in range(num_bytes >> 20)]
    return b"".join([*pieces, packing.flush()])


def test_what_is_packed_comes_back_within_the_limit_and_not_beyond() -> None:
    packed = zlib.compress(b"x" * 1000)
    assert inflate(packed, 1000, "it") == b"x" * 1000
    with pytest.raises(TooLarge, match="it is larger than the 999 bytes that are read"):
        inflate(packed, 999, "it")


def test_no_more_is_unpacked_than_the_limit() -> None:
    packed = packed_zeros(64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            inflate(packed, 100, "it")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 * len(packed)


def test_packed_data_that_ends_early_is_damaged() -> None:
    packed = zlib.compress(b"x" * 1000)
    for damaged in (packed[:-1], b"", b"nonsense"):
        with pytest.raises(zlib.error):
            inflate(damaged, 1000, "it")


def test_files_and_streams_are_read_within_the_limit() -> None:
    data = bytes(3 << 20)
    assert b"".join(chunks(io.BytesIO(data), len(data), "it")) == data
    with pytest.raises(TooLarge):
        list(chunks(io.BytesIO(data), len(data) - 1, "it"))
    assert list(lines(io.BytesIO(b"12\n3\n"), 3, "it")) == [b"12\n", b"3\n"]
    with pytest.raises(TooLarge, match="a line of it"):
        list(lines(io.BytesIO(b"123\n"), 3, "it"))

    async def pieces() -> AsyncIterator[bytes]:
        while True:  # without an end
            yield b"12"

    with pytest.raises(TooLarge):
        asyncio.run(whole(pieces(), 5, "it"))

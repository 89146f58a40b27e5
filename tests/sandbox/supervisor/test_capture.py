"""Output capture, against what it should keep."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.sandbox import Captured
from slipstream.sandbox.supervisor.capture import Capture, PipeReader


@given(pieces=st.lists(st.binary(max_size=30), max_size=20), max_bytes=st.integers(min_value=0, max_value=50))
def test_first_and_last_bytes_are_kept(pieces: list[bytes], max_bytes: int) -> None:
    capture, whole = Capture(max_bytes), b"".join(pieces)
    for piece in pieces:
        capture.feed(piece)
    kept = capture.captured()
    assert kept.num_bytes == len(whole)
    assert whole.startswith(kept.head) and whole.endswith(kept.tail)
    assert len(kept.head + kept.tail) == min(len(whole), max_bytes)


def test_memory_stays_bounded_and_the_tail_right() -> None:
    capture = Capture(10)
    for number in range(100):
        capture.feed(bytes([number]) * (1 << 16))
    kept = capture.captured()
    assert (kept.head, kept.tail) == (bytes(5), bytes([99]) * 5)
    assert kept.num_bytes == 100 << 16


@pytest.mark.parametrize(
    ("captured", "text"),
    [
        (Captured(head=b"ab", tail=b"cd", num_bytes=4), "abcd"),
        (Captured(head=b"\xc3", tail=b"\xa9", num_bytes=2), "é"),
        (Captured(head=b"ab", tail=b"cd", num_bytes=10), "ab\n[... 6 bytes left out ...]\ncd"),
    ],
)
def test_text(captured: Captured, text: str) -> None:
    assert captured.text() == text


def test_draining_takes_what_is_there_and_waits_for_nobody() -> None:
    async def main() -> None:
        read_fd, write_fd = os.pipe()
        reader = PipeReader(read_fd, Capture(100))
        reader.drain()
        os.write(write_fd, b"written")
        reader.drain()
        assert reader.capture.captured().head == b"written"
        reader.close()
        reader.close()
        reader.drain()
        os.close(write_fd)

    asyncio.run(main())

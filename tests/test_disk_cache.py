"""The cache keeps what was used last, within its limit, and never fails its caller."""

import asyncio
from pathlib import Path

from slipstream.disk_cache import DiskCache, key_of


def test_what_was_put_is_there_for_others_too(tmp_path: Path) -> None:
    async def main() -> None:
        await DiskCache(tmp_path / "sub" / "kept", max_bytes=100).put(key_of("a", 1), b"one")
        other = DiskCache(tmp_path / "sub" / "kept", max_bytes=100)
        assert await other.get(key_of("a", 1)) == b"one"
        assert await other.get(key_of("a", 2)) is None

    asyncio.run(main())


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        cache = DiskCache(tmp_path / "kept", max_bytes=10)
        await cache.put("first", b"1234")
        await cache.put("second", b"1234")
        assert await cache.get("first") == b"1234"
        await cache.put("third", b"1234")
        assert [await cache.get(name) for name in ("first", "second", "third")] == [b"1234", None, b"1234"]
        await cache.put("huge", b"x" * 11)
        assert await cache.get("huge") is None
        assert await cache.get("third") == b"1234"

    asyncio.run(main())


def test_a_damaged_file_is_replaced_and_a_place_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"not a database, " * 1000)
    (tmp_path / "file").touch()

    async def main() -> None:
        damaged = DiskCache(tmp_path / "damaged", max_bytes=100)
        assert await damaged.get("a") is None
        await damaged.put("a", b"one")
        assert await damaged.get("a") == b"one"
        nowhere = DiskCache(tmp_path / "file" / "kept", max_bytes=100)
        await nowhere.put("a", b"one")
        assert await nowhere.get("a") is None

    asyncio.run(main())

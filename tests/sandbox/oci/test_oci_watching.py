"""The watch over containers, without an engine: one that cannot be looked at costs the others nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from slipstream.sandbox.oci.provider import OciProvider
from slipstream.sandbox.oci.watch import folder_bytes
from slipstream.simulate.clock import run_virtual


class Looked:
    """A container that raises `error` at every look."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.id = name
        self.num_looks = 0
        self._error = error

    async def look_at_limits(self) -> None:
        self.num_looks += 1
        if self._error is not None:
            raise self._error


def test_a_layer_that_is_gone_has_no_size(tmp_path: Path) -> None:
    assert folder_bytes(tmp_path / "gone") is None


def test_a_container_that_cannot_be_looked_at_keeps_nobody_from_looking_at_the_others() -> None:
    lost, others = Looked("lost", FileNotFoundError(2, "No such file or directory")), [Looked("a"), Looked("b")]

    async def main() -> None:
        provider = OciProvider()
        provider._open = cast("Any", {lost, *others})
        provider._watch()
        await asyncio.sleep(5.5)
        provider._open.clear()
        await asyncio.sleep(2)
        assert provider._watching is not None and provider._watching.done()

    run_virtual(main())
    assert [one.num_looks for one in (lost, *others)] == [5, 5, 5]

"""A learner that learns nothing, for trying a training set-up and for tests.

It counts versions, keeps the batches it was given, and saves and loads a number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.model.base import Completer
from slipstream.types import Batch, UpdateResult


class NullLearner:
    """`NullLearner(completer, on_version=...)`: `on_version` is called with each new version."""

    def __init__(self, completer: Completer, *, on_version: Callable[[int], None] = lambda version: None) -> None:
        self.completer = completer
        self.version = 0
        self.batches: list[Batch] = []
        self._on_version = on_version

    async def update(self, batch: Batch) -> UpdateResult:
        self.batches.append(batch)
        self._set_version(self.version + 1)
        return UpdateResult(version=self.version)

    async def save(self, folder: Path) -> None:
        self._write(folder)

    async def load(self, folder: Path) -> None:
        try:
            version = _read(folder)
        except (OSError, ValueError) as raised:
            raise ConfigError(f"{folder} is not a checkpoint of this learner: {raised}") from raised
        self._set_version(version)

    async def aclose(self) -> None:
        await self.completer.aclose()

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "version").write_text(str(self.version))

    def _set_version(self, version: int) -> None:
        self.version = version
        self._on_version(version)


def _read(folder: Path) -> int:
    return int((folder / "version").read_text())

"""The checkpoints of a run, by version, in its folder.

What is saved is whole or not there: see Learner.save. The newest few are kept. One that turns out to be damaged is put
aside, so that its version can be saved anew.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Self

from slipstream.errors import LearnerError
from slipstream.training.learner import Learner

_log = logging.getLogger(__name__)

_NAME = re.compile(r"version-(\d{6,})")


class Checkpoints:
    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep

    @classmethod
    def of_run(cls, folder: Path, *, keep: int = 2) -> Self:
        """Those in a run's folder."""
        return cls(folder / "checkpoints", keep=keep)

    def versions(self) -> list[int]:
        """Those that there are, in order."""
        if not self._folder.is_dir():
            return []
        return sorted(int(found[1]) for path in self._folder.iterdir() if (found := _NAME.fullmatch(path.name)))

    def path(self, version: int) -> Path:
        return self._folder / f"version-{version:06d}"

    async def load_newest(self, learner: Learner, *, otherwise: Path | None = None) -> int | None:
        """Go on from the newest that is not damaged, else from the checkpoint `otherwise`. Returns the version, if it
        is one of these. Raises LearnerError, and leaves everything as it is, if nothing can be loaded."""
        places: list[tuple[int | None, Path]] = [(each, self.path(each)) for each in reversed(self.versions())]
        if otherwise is not None:
            places.append((None, otherwise))
        damaged: list[tuple[Path, LearnerError]] = []
        for version, path in places:
            try:
                await learner.load(path)
            except LearnerError as raised:
                damaged.append((path, raised))
                continue
            for lost, why in damaged:
                _log.warning("going on from the checkpoint %s, since a newer one is of no use: %s", path, why)
                _put_aside(lost)
            return version
        if damaged:
            raise damaged[0][1]
        return None

    def prune(self, *, always: int = 0) -> None:
        """Drop all but the newest; `always` is kept too."""
        for version in self.versions()[: -self._keep]:
            if version != always:
                shutil.rmtree(self.path(version), ignore_errors=True)


def _put_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)

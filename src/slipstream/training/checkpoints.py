"""The checkpoints of a run, by version, in its folder.

A checkpoint is complete or absent: see Learner.save. The newest few are kept. A damaged one is set aside, so that its
version can be saved again.
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
        """In order."""
        if not self._folder.is_dir():
            return []
        return sorted(int(found[1]) for path in self._folder.iterdir() if (found := _NAME.fullmatch(path.name)))

    def path(self, version: int) -> Path:
        return self._folder / f"version-{version:06d}"

    async def load_newest(self, learner: Learner, *, otherwise: Path | None = None) -> int | None:
        """Load the newest that is not damaged, else the checkpoint `otherwise`. Returns its version, or None for
        `otherwise` or if there is none. If nothing can be loaded, raises LearnerError and changes nothing."""
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
                _log.warning("resuming from the checkpoint %s, as a newer one is damaged: %s", path, why)
                _put_aside(lost)
            return version
        if damaged:
            raise damaged[0][1]
        return None

    def prune(self, *, always: int = 0) -> None:
        """Delete all but the newest; `always` is kept too."""
        for version in self.versions()[: -self._keep]:
            if version != always:
                shutil.rmtree(self.path(version), ignore_errors=True)


def _put_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)

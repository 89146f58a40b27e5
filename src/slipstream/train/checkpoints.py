"""The checkpoints of a run, by version, in its folder.

What is saved is whole or not there: see Learner.save. The newest few are kept.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_NAME = re.compile(r"version-(\d{6,})")


class Checkpoints:
    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep

    def versions(self) -> list[int]:
        """Those that there are, in order."""
        if not self._folder.is_dir():
            return []
        return sorted(int(found[1]) for path in self._folder.iterdir() if (found := _NAME.fullmatch(path.name)))

    def path(self, version: int) -> Path:
        return self._folder / f"version-{version:06d}"

    def newest(self) -> int | None:
        return max(self.versions(), default=None)

    def prune(self, *, always: int = 0) -> None:
        """Drop all but the newest; `always` is kept too."""
        for version in self.versions()[: -self._keep]:
            if version != always:
                shutil.rmtree(self.path(version), ignore_errors=True)

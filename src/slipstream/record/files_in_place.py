"""Whether the files of a run are still where they were opened.

SQLite keeps writing to a file that was deleted or replaced without an error, and what it writes is lost.
"""

from __future__ import annotations

from pathlib import Path


class FilesInPlace:
    """The database of a run and its write-ahead log, identified by device and inode."""

    def __init__(self, database: Path) -> None:
        """`database` is open for writing. Its write-ahead log appears with the first commit."""
        self._database = database
        self._known: dict[Path, tuple[int, int]] = {}
        self.missing()

    def missing(self) -> str | None:
        """An error message if one of the files was deleted, moved or replaced since it was first seen, else None."""
        for path in (self._database, self._database.with_name(f"{self._database.name}-wal")):
            found = _identity(path)
            known = self._known.get(path)
            if known is None and found is not None:
                self._known[path] = found
            elif known is not None and known != found:
                done = "deleted or moved" if found is None else "replaced"
                return (
                    f"run store {self._database}: {path.name} was {done} while the run was writing it, so nothing "
                    "more can be kept; start a new run, or put the folder back and resume it"
                )
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

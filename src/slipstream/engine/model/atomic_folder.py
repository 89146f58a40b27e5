"""Checkpoints and model folders that appear whole or not at all; a disk that refuses is a LearnerError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.atomic import atomic_folder, recover_folder
from slipstream.errors import LearnerError


@contextmanager
def whole_folder(target: Path, *, what: str) -> Iterator[Path]:
    """An empty folder that becomes `target` when all went well; `what` it is, for the message if the disk refuses."""
    try:
        recover_folder(target)
        with atomic_folder(target) as part:
            yield part
    except OSError as raised:
        reason = raised.strerror or str(raised)
        raise LearnerError(
            f"{what} {target} could not be written ({reason}): free some space, or write to another disk; "
            "what was there before is untouched"
        ) from raised

"""Waits for something to be on record in a run's store, at little cost: a store that was not written to is hardly ever
read."""

import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

READ_EVERY = 40
"""It is also read once in so many looks: two writes may leave the same size and, by a coarse clock, the same time."""


def wait_for_record(process: subprocess.Popen[Any], runs: Path, is_there: Callable[[], bool]) -> None:
    """Until `is_there()`, which reads the store of the only run in `runs`, or until the process has ended."""
    last: object = None
    for look in count():
        if process.poll() is not None:
            return
        now = _written(runs)
        if (now != last or look % READ_EVERY == 0) and is_there():
            return
        last = now
        time.sleep(0.005)


def _written(runs: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(runs.glob("*/run.db*")):
        try:
            status = path.stat()
        except OSError:  # a log that was written back is gone
            continue
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return found

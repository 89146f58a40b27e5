"""Names and finds the folders of runs.

A new folder belongs to one caller, however many start at once. A name or path without a run is a ConfigError that lists
the runs there are.
"""

from __future__ import annotations

import re
from datetime import datetime
from difflib import get_close_matches
from itertools import count
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.record.reader import RunReader
from slipstream.record.schema import DATABASE_NAME, database_path, run_folders

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def new_run_folder(root: Path, name: str, *, now: datetime | None = None) -> Path:
    """A new, empty folder such as `runs/demo-20261115-174530`; the second of one second ends in `-2`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a run: use letters, digits, '.', '_' and '-', a letter or digit first")
    started = f"{name}-{now or datetime.now():%Y%m%d-%H%M%S}"
    for number in count(1):
        folder = root / (started if number == 1 else f"{started}-{number}")
        try:
            root.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            if not root.is_dir():
                raise ConfigError(f"{root} is a file: choose a folder for the runs") from None
        except OSError as raised:
            raise ConfigError(f"{folder} cannot be created ({raised}): choose another folder for the runs") from raised
        else:
            return folder
    raise AssertionError("count() does not end")


def latest_run(root: Path) -> Path:
    """The latest run below `root`; runs that cannot be read are skipped."""
    began: list[tuple[float, str, Path]] = []
    for folder in run_folders(root):
        try:
            began.append((RunReader(folder).created_s(), folder.name, folder))
        except ConfigError:
            continue
    if not began:
        raise ConfigError(f"there is no run in {root}: start one, or name the folder that holds the runs")
    return max(began)[2]


def find_run(root: Path, text: str) -> Path:
    """The folder of the run that `text` names: a run below `root`, or a path to a run's folder or its database."""
    for folder in (root / text, Path(text)):
        if folder.name == DATABASE_NAME and folder.is_file():
            return folder.parent
        if database_path(folder).is_file():
            return folder
    names = [folder.name for folder in run_folders(root)]
    if not names:
        raise ConfigError(f"there is no run {text!r}, and none in {root} at all: start one, or give a path")
    near = get_close_matches(text, names, n=3) or names[-3:]
    raise ConfigError(f"there is no run {text!r} in {root}: did you mean {', '.join(near)}?")

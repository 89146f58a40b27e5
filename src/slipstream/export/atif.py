"""Rollouts as files in the Agent Trajectory Interchange Format, ATIF-v1.8: a folder with one JSON file for each.

The folder also has a `manifest.jsonl`, with a line for each rollout: its file, key, ending and reward. Invariants:
every file passes the `atif` package's validation before the folder appears, and reading one gives its rollout back,
including spans and failures. The package is imported by the functions that need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from slipstream.bounded import too_large
from slipstream.errors import ConfigError
from slipstream.export.files import MANIFEST, exported_folder, reading
from slipstream.export.portable import json_line, read_json
from slipstream.export.trajectories import rollout_of, trajectory_of
from slipstream.messages import ReadFields
from slipstream.types import Rollout

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_CHARS = 100
MAX_FILE_BYTES = 256 << 20


def write_atif(path: Path, rollouts: Iterable[Rollout], *, run: str, agent: ReadFields, force: bool = False) -> None:
    """Write a folder; `agent` is ATIF's object of that name."""
    trajectory = _trajectory_model()
    with exported_folder(path, force=force) as folder, (folder / MANIFEST).open("wb") as manifest:
        for number, rollout in enumerate(rollouts):
            name = _file_name(number, rollout)
            text = json_line(trajectory_of(rollout, run=run, agent=agent))
            trajectory.model_validate_json(text)
            (folder / name).write_bytes(text.encode())
            manifest.write(f"{json_line(_manifest_fields(name, rollout))}\n".encode())


def read_atif(path: str | Path) -> Iterator[Rollout]:
    """The rollouts of a folder that `export_run` wrote, in order, or of one of its files."""
    path = Path(path)
    trajectory = _trajectory_model()
    with reading(path):
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    for file in files:
        with reading(file):
            if file.stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(f"{too_large(str(file), MAX_FILE_BYTES)}: is it an export?")
            text = file.read_text(encoding="utf-8")
        try:
            trajectory.model_validate_json(text)
            document: Any = read_json(text)
            rollout = rollout_of(document)
        except (ValueError, LookupError, TypeError, OverflowError) as raised:
            raise ConfigError(f"{file} is not an exported rollout ({raised}): export the run again") from raised
        yield rollout


def check_installed() -> None:
    """ConfigError if the `atif` package is missing."""
    _trajectory_model()


def _trajectory_model() -> Any:
    """The package's model of a trajectory; Any, since it is imported only here."""
    try:
        from atif import Trajectory
    except ImportError as raised:
        raise ConfigError(f"ATIF needs the atif package ({raised}): pip install 'slipstream[data]'") from raised
    return Trajectory


def _file_name(number: int, rollout: Rollout) -> str:
    """A number in the order of the run, then the rollout's key, as far as a file name can hold it."""
    key = _UNSAFE.sub("-", str(rollout.job.key))[:_MAX_NAME_CHARS]
    return f"{number:06d}-{key}.json"


def _manifest_fields(name: str, rollout: Rollout) -> dict[str, Any]:
    return {
        "file": name,
        "rollout": str(rollout.job.key),
        "attempt": rollout.attempt,
        "end_reason": rollout.ending.reason.value,
        "trust": rollout.trust.value,
        "reward": None if rollout.verdict is None else rollout.verdict.reward,
        "num_turns": len(rollout.turns),
    }

"""The report of an experiment: everything that a page needs, in one JSON value.

Input: the folder of an experiment. Output: its record, its sessions, every step, and every evaluation with a row for
each rollout. Invariants: the model, the run stores and the tasks are not needed to read it; it holds plain figures and
no text of a model.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.atomic import atomic_file
from slipstream.errors import ConfigError
from slipstream.experiment.design import Design
from slipstream.experiment.evaluations import Evaluation, evaluations
from slipstream.experiment.plan import FORMAT, read_record
from slipstream.experiment.rows import COLUMNS
from slipstream.experiment.session import SESSIONS
from slipstream.experiment.start import FACTS, FOLDER
from slipstream.experiment.steps import read_steps
from slipstream.types import Json

NAME = "report.json"
MAX_BYTES = 256 << 20


def experiment_report(out: Path, design: Design) -> dict[str, Json]:
    start = out / FOLDER / FACTS
    sessions = out / SESSIONS
    return {
        "format": FORMAT,
        "experiment": read_record(out),
        "sessions": [json.loads(line) for line in sessions.read_text(encoding="utf-8").splitlines()]
        if sessions.exists()
        else [],
        "start": json.loads(start.read_text(encoding="utf-8")) if start.exists() else None,
        "steps": list[Json](read_steps(out)),
        "evaluations": [_evaluation(each, design) for each in evaluations(out)],
    }


def _evaluation(evaluation: Evaluation, design: Design) -> dict[str, Json]:
    rows = [row.as_json() for _, row in sorted(evaluation.rows().items())]
    tasks = sorted({str(row[0]) for row in rows})
    places = {task: place for place, task in enumerate(tasks)}
    return {
        **evaluation.facts(),
        "tasks": [[task, design.package_of(task), design.level_of(task)] for task in tasks],
        "columns": list[Json](COLUMNS),
        "rows": [[places[str(row[0])], *row[1:]] for row in rows],
    }


def write_report(out: Path, design: Design, path: Path | None = None) -> Path:
    """Into the folder of the experiment, or to `path`, compressed if that ends in `.gz`."""
    path = path or out / NAME
    data = json.dumps(experiment_report(out, design), separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part:
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def find_reports(places: Sequence[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Every report that is one of `places`, or anywhere in a folder that is. Raises ConfigError if there is none."""
    found: list[Path] = []
    for place in places:
        inside = sorted([*place.rglob("*.json"), *place.rglob("*.json.gz")]) if place.is_dir() else [place]
        found += [path for path in inside if not place.is_dir() or path.name.startswith("report")]
    reports = [(path, _read(path)) for path in found]
    if not reports:
        raise ConfigError(f"no report in {', '.join(map(str, places))}: name files or folders with report*.json")
    return reports


def label_of(path: Path, places: Sequence[Path]) -> str:
    """A short name for a report: its folder's, or its own where it was named."""
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return name if path in places or name != "report" else path.parent.name


def _read(path: Path) -> dict[str, Any]:
    """Our own JSON, hence Any."""
    try:
        data = path.read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        known = found["format"]
    except (OSError, ValueError, KeyError, TypeError) as raised:
        raise ConfigError(f"{path} is no report of an experiment ({raised!r}): leave it out") from None
    if known != FORMAT:
        raise ConfigError(f"{path} is a report of format {known}, and this is {FORMAT}")
    return found

"""`metrics.jsonl` beside a run's store: a line of JSON for each training step and each evaluation (`docs/metrics.md`).

Input: what the store already has, then each line as it comes. Output: a file that any tool can read during the run.
Invariants: the store is the truth, so the file is rewritten from it when a run begins or is resumed; no line is written
twice; a disk that refuses ends the writing for this session and not the run.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.types import Json

_LOG = logging.getLogger(__name__)
FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLine:
    """`MetricsLine(kind="train", at={"step": 0, "version": 1}, metrics={"reward/mean": 0.5})`."""

    kind: str
    at: Mapping[str, int]
    """Where in the run; together with the kind it is unique."""
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        return json.dumps({"kind": self.kind, **self.at, **self.metrics})

    @property
    def key(self) -> tuple[str, *tuple[int, ...]]:
        return (self.kind, *self.at.values())


class MetricsFile:
    def __init__(self, folder: Path, lines: Iterable[MetricsLine] = ()) -> None:
        """Begin the file of the run in `folder` with these lines, whatever it had before."""
        self._path = folder / FILE
        self._written: set[tuple[str, *tuple[int, ...]]] = set()
        self._broken = False
        fresh = [line for line in lines if self._is_new(line)]
        beside = self._path.with_suffix(".part")
        try:
            beside.write_text("".join(f"{line}\n" for line in fresh), encoding="utf-8")
            beside.replace(self._path)
        except OSError as raised:
            self._give_up(raised)

    def write(self, line: MetricsLine) -> None:
        if self._broken or not self._is_new(line):
            return
        try:
            # One call, so that a kill leaves whole lines.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, f"{line}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as raised:
            self._give_up(raised)

    def _is_new(self, line: MetricsLine) -> bool:
        is_new = line.key not in self._written
        self._written.add(line.key)
        return is_new

    def _give_up(self, raised: OSError) -> None:
        self._broken = True
        _LOG.warning("%s cannot be written (%s): resuming the run writes it again", self._path, raised)


def read_metrics(folder: Path) -> Iterator[Mapping[str, Json]]:
    """The lines of a run; nothing if it has none. A line that was torn off by a full disk is left out."""
    path = folder / FILE
    if not path.is_file():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line

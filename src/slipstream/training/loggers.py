"""The figures of a training run beside its store: as lines of `metrics.jsonl`, and for TensorBoard on request.

Input: what the store has of the run, then every StepDone and Measured once it is durable. Output: `metrics.jsonl`; and
event files in the folder `tensorboard`, one for each session of the run, with a tag for each metric and the policy's
version as the step.
Invariants: the store is the truth. What it has and the files have not is written when they are opened, and nothing is
written twice. A disk that refuses ends the writing for this session and not the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.errors import ConfigError
from slipstream.record.metrics_file import MetricsFile, MetricsLine
from slipstream.seams import Measured, StepDone
from slipstream.training.grouping import TRAIN
from slipstream.training.held_out import HELD_OUT
from slipstream.training.loop import TrainStore

_LOG = logging.getLogger(__name__)
FOLDER = "tensorboard"
_PATTERN = "events.out.tfevents.*"
_FILE_VERSION = "brain.Event:2"
"""In the first record of an event file, so that TensorBoard can tell it from older formats."""

Figures: TypeAlias = StepDone | Measured


def check_tensorboard() -> None:
    """Raise ConfigError unless TensorBoard's library is installed."""
    try:
        import tensorboard.backend.event_processing.event_file_loader
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as raised:
        raise ConfigError(
            f"tensorboard=true needs TensorBoard ({raised}): pip install 'slipstream[loggers]'"
        ) from raised


@contextmanager
def figures_log(folder: Path, store: TrainStore, *, tensorboard: bool) -> Iterator[Callable[[Figures], None]]:
    """A function that takes a run's figures as they come. It writes them into `metrics.jsonl` and, with `tensorboard`,
    into event files; before them come those of the store."""
    past = _past(store)
    lines = MetricsFile(folder, map(line_of, past))
    if not tensorboard:
        yield lambda figures: lines.write(line_of(figures))
        return
    events = _EventFile(folder / FOLDER)

    def write(figures: Figures) -> None:
        lines.write(line_of(figures))
        events.write(figures)

    try:
        for figures in past:
            events.write(figures)
        yield write
    finally:
        events.close()


def line_of(figures: Figures) -> MetricsLine:
    match figures:
        case StepDone(step=step, version=version, metrics=metrics):
            return MetricsLine(kind=TRAIN, at={"step": step, "version": version}, metrics=metrics)
        case Measured(step=version, kind=kind, metrics=metrics):
            return MetricsLine(kind=kind, at={"version": version}, metrics=metrics)


def _past(store: TrainStore) -> list[Figures]:
    """The figures in the store, in the order of versions."""
    found: list[tuple[int, Figures]] = [
        (record.version, StepDone(step=record.step, version=record.version, metrics=record.metrics))
        for record in store.steps()
        if record.version is not None and record.metrics is not None
    ]
    found += [
        (step, Measured(step=step, kind=kind, metrics=metrics))
        for (step, kind), metrics in store.measured().items()
        if kind == HELD_OUT
    ]
    return [figures for _, figures in sorted(found, key=lambda pair: pair[0])]


def scalars(figures: Figures) -> tuple[int, Mapping[str, float]]:
    """The policy's version, and the values by tag."""
    match figures:
        case StepDone(version=version, metrics=metrics):
            return version, metrics
        case Measured(step=version, kind=kind, metrics=metrics):
            return version, {f"{kind}/{name}": value for name, value in metrics.items()}


class _EventFile:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[tuple[int, str]] | None = None
        """By step and tag, earlier sessions included; None until the first write."""
        self._records: Any = None  # TensorBoard's library has no types
        self._broken = False

    def write(self, figures: Figures) -> None:
        if self._broken:
            return
        version, values = scalars(figures)
        try:
            self._write(version, values)
        except OSError as raised:
            self._broken = True  # there may be half a record in the file, where readers stop
            _LOG.warning(
                "%s cannot be written (%s): the next session writes what is missing, from the store",
                self._folder,
                raised,
            )

    def _write(self, version: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._written is None:
            self._folder.mkdir(exist_ok=True)
            self._written = set(_written(self._folder))
        new = {tag: value for tag, value in values.items() if (version, tag) not in self._written}
        if not new:
            return
        if self._records is None:
            self._open()
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in new.items()])
        self._put(Event(wall_time=time.time(), step=version, summary=summary))
        self._written |= {(version, tag) for tag in new}

    def _open(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{len(list(self._folder.glob(_PATTERN))):04d}"
        self._records = RecordWriter((self._folder / name).open("xb"))
        self._put(Event(wall_time=time.time(), file_version=_FILE_VERSION))

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        if self._records is not None:
            with suppress(OSError):
                self._records.close()


def _written(folder: Path) -> Iterable[tuple[int, str]]:
    """Step and tag of everything in the event files of a folder, up to where a killed session cut one off."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(folder.glob(_PATTERN)):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield event.step, value.tag

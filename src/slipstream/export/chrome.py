"""A run's spans as a trace in Chrome's format, which Perfetto and chrome://tracing open.

Input: rollouts, read twice, and samples of the machine. Output: one JSON object with an event for every span.
Invariants: two slices in a lane are disjoint or nested; a lane belongs to one job at a time and is reused after it
ends; times are microseconds since the first span, exact to the nanosecond.

There are three processes: `jobs`, with a lane for each concurrent job (and further lanes where a job did several things
at once); `queue`, with the waits before a job's first stage; `in use`, with counters over time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slipstream.export.files import exported_file
from slipstream.export.portable import json_line
from slipstream.record.hardware import HardwareSample
from slipstream.telemetry.levels import machine_lines
from slipstream.telemetry.utilisation import Resource, time_lines
from slipstream.types import Failure, JobKey, Json, Rollout, Span, SpanKind

JOBS, QUEUE, IN_USE = 1, 2, 3
"""The processes of a trace."""

MAX_COUNTER_POINTS = 2_000

_COUNTERS = (
    Resource.INIT, Resource.RUN, Resource.GRADE, Resource.WAIT_TURN, Resource.MODEL, Resource.TOOL, Resource.SANDBOXES,
    Resource.PREFILL_TOKENS, Resource.SAMPLED_TOKENS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a trace contains."""

    num_rollouts: int
    num_spans: int
    num_lanes: int
    """The maximum of jobs alive at once."""


def write_chrome(
    path: Path,
    read: Callable[[], Iterable[Rollout]],
    *,
    run: str,
    samples: Iterable[HardwareSample] = (),
    force: bool = False,
) -> Written:
    """Write a trace of the rollouts of `read`, which is called twice: for the lanes, then for the spans.

    Rollouts that the first reading did not see are left out, and so are `samples`, which are in order of time, from
    before the first span.
    """
    plan = _Plan()
    lines = time_lines(plan.watched(read()))
    plan.settle()
    counters = {resource.value: lines[resource] for resource in _COUNTERS}
    if plan.has_spans:
        counters |= machine_lines(samples, from_s=plan.start_s)
    num_rollouts = num_spans = 0
    with exported_file(path, force=force) as beside, beside.open("wb") as stream:
        head: Json = {"run": run, "start_epoch_s": plan.start_s}
        stream.write(f'{{"displayTimeUnit":"ms","otherData":{json_line(head)},"traceEvents":[\n'.encode())
        _write(stream, plan.names(), last="")
        for rollout in read():
            if rollout.job.key in plan.lanes:
                num_rollouts += 1
                num_spans += len(rollout.spans)
                _write(stream, plan.events(rollout))
        for name, whole in counters.items():
            line = whole.resampled(MAX_COUNTER_POINTS)
            for time_s, level in zip(line.times_s, line.levels, strict=True):
                _write(stream, [_counter(name, plan.micros(time_s), level)])
        stream.write(b"\n]}\n")
    return Written(num_rollouts=num_rollouts, num_spans=num_spans, num_lanes=plan.num_lanes)


def _write(stream: BinaryIO, events: Iterable[Json], last: str = ",\n") -> None:
    """Each event but the first of the file comes after a comma."""
    for event in events:
        stream.write(f"{last}{json_line(event)}".encode())
        last = ",\n"


# ---------------------------------------------------------------- lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """The time in which a job needs lanes, and how many side by side."""

    key: JobKey
    start_s: float
    end_s: float
    num_tracks: int = 1


class _Plan:
    """Which lane each job has."""

    def __init__(self) -> None:
        self.start_s = 0.0
        self.has_spans = False
        self.num_lanes = 0
        self.lanes: dict[JobKey, int | None] = {}
        """The lane of a job; None for one that never reached a stage."""
        self._queue_lanes: dict[JobKey, int] = {}
        self._jobs: list[_Stretch] = []
        self._waits: list[_Stretch] = []
        self._num_tracks = 1

    def watched(self, rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
        """The rollouts, unchanged; notes what lanes they need on the way."""
        for rollout in rollouts:
            key, (waits, stages) = rollout.job.key, _parts(rollout.spans)
            self.lanes[key] = None
            if waits:
                self._waits.append(_stretch(key, waits))
            if stages:
                self._jobs.append(_stretch(key, stages, num_tracks=max(track for track, _ in _tracked(stages)) + 1))
            yield rollout

    def settle(self) -> None:
        stretches = [*self._waits, *self._jobs]
        self.has_spans = bool(stretches)
        self.start_s = min((stretch.start_s for stretch in stretches), default=0.0)
        self._num_tracks = max((stretch.num_tracks for stretch in self._jobs), default=1)
        found = _lanes(self._jobs)
        self.lanes |= found
        self.num_lanes = max(found.values(), default=-1) + 1
        self._queue_lanes = _lanes(self._waits)
        self._jobs, self._waits = [], []

    def names(self) -> Iterator[Json]:
        """The names of processes and lanes."""
        for process, name in ((JOBS, "jobs"), (QUEUE, "queue"), (IN_USE, "in use")):
            yield _name("process_name", process, 0, name)
        for lane in range(self.num_lanes):
            for track in range(self._num_tracks):
                beside = f", beside {track}" if track else ""
                yield _name("thread_name", JOBS, self._thread(lane, track), f"lane {lane + 1}{beside}")

    def events(self, rollout: Rollout) -> Iterator[Json]:
        """A slice for the job, and one for every span."""
        key, lane = rollout.job.key, self.lanes[rollout.job.key]
        waits, stages = _parts(rollout.spans)
        for span in waits:
            yield self._slice(span, QUEUE, self._queue_lanes[key] + 1, key)
        if lane is None:
            return
        start_s, end_s = _bounds(stages)
        yield {
            **self._times(start_s, end_s),
            "name": str(key),
            "cat": "job",
            "pid": JOBS,
            "tid": self._thread(lane, 0),
            "args": _job_args(rollout),
        }
        for track, span in _tracked(stages):
            yield self._slice(span, JOBS, self._thread(lane, track), key)

    def micros(self, time_s: float) -> float:
        return self._nanos(time_s) / 1_000

    def _nanos(self, time_s: float) -> int:
        return round((time_s - self.start_s) * 1e9)

    def _thread(self, lane: int, track: int) -> int:
        return 1 + lane * self._num_tracks + track

    def _times(self, start_s: float, end_s: float) -> dict[str, Json]:
        start_ns = self._nanos(start_s)
        return {"ph": "X", "ts": start_ns / 1_000, "dur": (self._nanos(end_s) - start_ns) / 1_000}

    def _slice(self, span: Span, process: int, thread: int, key: JobKey) -> Json:
        return {
            **self._times(span.start_s, span.end_s),
            "name": span.name or span.kind.value,
            "cat": span.kind.value,
            "pid": process,
            "tid": thread,
            "args": {"job": str(key), "attempt": span.attempt, **span.counts},
        }


def _stretch(key: JobKey, spans: Sequence[Span], num_tracks: int = 1) -> _Stretch:
    start_s, end_s = _bounds(spans)
    return _Stretch(key=key, start_s=start_s, end_s=end_s, num_tracks=num_tracks)


def _bounds(spans: Sequence[Span]) -> tuple[float, float]:
    return min(span.start_s for span in spans), max(span.end_s for span in spans)


def _parts(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """The wait before a job's first stage, and its spans from then on, each before those that it contains."""
    ordered = sorted(spans, key=lambda span: (span.start_s, -span.end_s))
    first = min(ordered, key=lambda span: (span.start_s, span.end_s), default=None)
    if first is None or first.kind is not SpanKind.WAIT_INIT:
        return [], ordered
    return [first], [span for span in ordered if span is not first]


def _tracked(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Each span with the first track in which it overlaps no other, except by nesting. In order of start."""
    tracks: list[list[float]] = []
    """For every track, the ends of its open slices, innermost last."""
    for span in spans:
        track = next((number for number, ends_s in enumerate(tracks) if _has_room(ends_s, span)), len(tracks))
        if track == len(tracks):
            tracks.append([])
        tracks[track].append(span.end_s)
        yield track, span


def _has_room(ends_s: list[float], span: Span) -> bool:
    """Whether a span, which starts after all earlier ones, fits a track; closes slices that are over by then."""
    while ends_s and ends_s[-1] <= span.start_s:
        ends_s.pop()
    return not ends_s or span.end_s <= ends_s[-1]


def _lanes(stretches: Iterable[_Stretch]) -> dict[JobKey, int]:
    """The lowest lane that is free at the start of an interval."""
    found: dict[JobKey, int] = {}
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for stretch in sorted(stretches, key=lambda stretch: (stretch.start_s, stretch.end_s, stretch.key)):
        while busy and busy[0][0] <= stretch.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (stretch.end_s, lane))
        found[stretch.key] = lane
    return found


# ---------------------------------------------------------------- events


def _job_args(rollout: Rollout) -> dict[str, Json]:
    return {
        "end_reason": rollout.ending.reason.value,
        "attempts": rollout.attempt,
        "turns": sum(span.kind is SpanKind.MODEL and span.attempt == rollout.attempt for span in rollout.spans),
        "reward": None if rollout.verdict is None else rollout.verdict.reward,
        "failures": [_failure_text(failure) for failure in rollout.failures],
    }


def _failure_text(failure: Failure) -> str:
    return f"attempt {failure.attempt}, {failure.stage}: {failure.error}: {failure.message}"


def _name(kind: str, process: int, thread: int, name: str) -> Json:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _counter(name: str, micros: float, level: float) -> Json:
    return {"ph": "C", "name": name, "pid": IN_USE, "tid": 0, "ts": micros, "args": {"value": round(level, 3)}}

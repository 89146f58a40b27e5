"""Samples of the machine as time lines, one for each GPU and for the CPU.

Pure. Samples come in order of time. A line has a sample's level for the period that the sample covers, and 0 where
there is no sample.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from slipstream.record.hardware import HardwareSample
from slipstream.telemetry.utilisation import TimeLine

APART_S = 1e-3
"""Consecutive samples may differ in the last bits of their times; a gap above this is a pause."""


def machine_lines(samples: Iterable[HardwareSample], *, from_s: float) -> dict[str, TimeLine]:
    """By name: `gpu0_percent` and `gpu0_memory_mb` of each GPU, `cores_busy` of those that the run may use, and
    `run_cores`, which the run's own processes used of them. What is before `from_s` is left out."""
    found: dict[str, _Line] = {}
    for sample in samples:
        start_s = max(from_s, sample.at_s - sample.seconds)
        if start_s < sample.at_s:
            for name, level in _levels(sample):
                found.setdefault(name, _Line()).add(start_s, sample.at_s, level)
    return {name: found[name].line() for name in sorted(found)}


def _levels(sample: HardwareSample) -> Iterable[tuple[str, float]]:
    for gpu in sample.gpus:
        yield f"gpu{gpu.gpu}_percent", gpu.percent
        yield f"gpu{gpu.gpu}_memory_mb", gpu.memory_mb
    if sample.cpu is not None:
        yield "cores_busy", sample.cpu.cores * sample.cpu.percent / 100
        yield "run_cores", sample.cpu.own_cores + sample.cpu.helper_cores


class _Line:
    def __init__(self) -> None:
        self._times_s, self._levels = array("d"), array("d")
        self._end_s: float | None = None

    def add(self, start_s: float, end_s: float, level: float) -> None:
        if self._end_s is not None:
            if start_s > self._end_s + APART_S:
                self._step(self._end_s, 0.0)
            else:
                start_s = self._end_s
        self._step(start_s, level)
        self._end_s = end_s

    def line(self) -> TimeLine:
        if self._end_s is not None:
            self._step(self._end_s, 0.0)
        return TimeLine(times_s=self._times_s, levels=self._levels)

    def _step(self, time_s: float, level: float) -> None:
        self._times_s.append(time_s)
        self._levels.append(level)

"""A log of the time the engine's steps took, read and emptied by `take`.

Steps of similar size are summed, so the log stays small however long a run is. A fit loses almost nothing by it, since
the sums are exact.
"""

from __future__ import annotations

import threading
import time

from slipstream.types import EngineWork

_KEPT_BITS = 3
"""Sizes that agree in this many leading bits are summed."""


class WorkLog:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[int, int, bool], EngineWork] = {}
        self._num_prompt = 0
        self._prompt_s = 0.0
        """Seconds of the steps that computed prompts."""

    def add(self, work: EngineWork) -> None:
        steps = max(1, work.num_steps)
        size = _size(work.num_rows // steps), _size(work.num_prompt // steps), work.num_steps > 0
        with self._lock:
            before = self._sums.get(size)
            self._sums[size] = work if before is None else _sum(before, work)
            if work.num_prompt:
                self._num_prompt += work.num_prompt
                self._prompt_s += work.seconds

    @property
    def prefill_tokens_s(self) -> float | None:
        """Prompt tokens computed in a second of doing so, ever since; None before the first."""
        with self._lock:
            return self._num_prompt / self._prompt_s if self._prompt_s > 0 else None

    def take(self) -> tuple[EngineWork, ...]:
        """All that was added since the last call."""
        with self._lock:
            taken, self._sums = self._sums, {}
        return tuple(taken.values())


class Stopwatch:
    """Measures wall time and CPU time of the calling thread; to be used by one thread only."""

    def __init__(self) -> None:
        self._last_s = self._last_cpu_s = 0.0

    def start(self) -> None:
        self._last_s, self._last_cpu_s = time.monotonic(), time.thread_time()

    def lap(self) -> tuple[float, float]:
        """Seconds since `start` or the last lap, and the thread's CPU seconds in that time."""
        last_s, last_cpu_s = self._last_s, self._last_cpu_s
        self.start()
        return self._last_s - last_s, self._last_cpu_s - last_cpu_s


def _size(number: int) -> int:
    dropped = max(0, number.bit_length() - _KEPT_BITS)
    return number >> dropped << dropped


def _sum(one: EngineWork, other: EngineWork) -> EngineWork:
    return EngineWork(
        num_steps=one.num_steps + other.num_steps,
        num_rows=one.num_rows + other.num_rows,
        num_held=one.num_held + other.num_held,
        num_prompt=one.num_prompt + other.num_prompt,
        seconds=one.seconds + other.seconds,
        cpu_s=one.cpu_s + other.cpu_s,
    )

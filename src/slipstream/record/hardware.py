"""Samples of the machine: made by samplers, kept by the store, and what utilisation is computed from.

A sample covers the `seconds` that end at `at_s`. Like spans, it is on the event loop's clock when it is taken and in
epoch seconds when it is read from a store.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.types import EngineWork


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    gpu: int
    """Its number in the driver's order."""
    percent: float
    """The share of the driver's last window (1/6 s to 1 s) in which any kernel ran, however little of the GPU it
    used."""
    memory_mb: float
    """In use by all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSample:
    percent: float
    """Of `cores`, by all processes, including sandboxes."""
    cores: float
    """Available to this process: its affinity mask, or the quota of its cgroup if that is smaller."""
    own_cores: float
    """Cores kept busy by this process alone, over all its threads."""
    helper_cores: float = 0.0
    """Cores kept busy by the run's other processes: its helpers, and the learner's if it has one. What those started,
    such as sandboxes, is in neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSample:
    at_s: float
    seconds: float
    cpu: CpuSample | None = None
    gpus: tuple[GpuSample, ...] = ()
    work: tuple[EngineWork, ...] = ()
    """Of the engine, if it reports it: one entry for each size of its steps."""

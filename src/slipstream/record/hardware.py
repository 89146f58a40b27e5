"""What the machine was doing, sample by sample: the values that samplers make, the store keeps and figures are made of.

A sample stands for a stretch of time, `seconds` that end at `at_s`. From a sampler it is on the clock of the event
loop, as spans are; read from a store it is in epoch seconds, as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.types import EngineWork


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    gpu: int
    """Its number, as the driver counts."""
    percent: float
    """Of the driver's last window of 1/6 s to 1 s, the share in which a kernel ran, however little of the GPU it
    filled."""
    memory_mb: float
    """In use, by whoever uses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSample:
    percent: float
    """Of `cores`, by all processes: sandboxes are among them."""
    cores: float
    """That this process may use: its affinity mask, or the quota of its cgroup where that is less."""
    own_cores: float
    """Cores that this process alone kept busy, all its threads together."""
    helper_cores: float = 0.0
    """Cores that the run's other processes kept busy: its helpers, and the learner's where it has one. What any of
    them started, sandboxes among it, is in neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSample:
    at_s: float
    seconds: float
    cpu: CpuSample | None = None
    gpus: tuple[GpuSample, ...] = ()
    work: tuple[EngineWork, ...] = ()
    """Of the engine, where it tells: one for each size of its steps."""

"""Measures the CPU time that a run needed in its own process, in which one Python thread runs at a time, and in others.

Input: samples of the machine and of the engine, and a recorded run. Output: a CpuUse, or None if that was not recorded.
CPU time of the process that is not the engine thread's belongs to the event loop; the rest of the machine's CPU time is
the work of sandboxes and helpers, without that of an engine in a process of its own. CPU time hardly depends on other
load, so it predicts other ways to dispatch better than the durations of calls and tools do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.record.hardware import HardwareSample
from slipstream.simulate.recorded_run.mean_level import Level
from slipstream.simulate.recorded_run.recorded import Recorded

MIN_CALLS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    front_s: float
    """Of the run's own process, per call: the call itself, and what its agent needs until the next one."""
    rest_s: float
    """Of all other processes, per call."""
    duty: float
    """The share of its time in which the engine's thread needs the run's own process, without contention; 0 if it is in
    another one."""
    alone: float
    """The share of the engine's step times that they would have taken without contention."""


def cpu_use(
    run: Recorded,
    samples: Sequence[HardwareSample],
    *,
    engine_cores: float,
    engine_apart: bool = False,
    learning: Sequence[tuple[float, float]] = (),
) -> CpuUse | None:
    """`engine_cores`: of this machine, while the engine works; 0 if it computes on another device. `engine_apart`: it
    has a process of its own. `learning`: when a learner was at work in the run's own process, of which the samples then
    say nothing."""
    first_s, last_s = min(rollout.first_s for rollout in run.rollouts), max(rollout.last_s for rollout in run.rollouts)
    ends_s = sorted(call.end_s for call in run.calls)
    learner = Level((start_s, end_s, 1.0) for start_s, end_s in learning)
    num_calls, own_s, all_s, engine_s, steps_s = 0, 0.0, 0.0, 0.0, 0.0
    for sample in samples:
        start_s, end_s = sample.at_s - sample.seconds, sample.at_s
        if sample.cpu is None or end_s <= first_s or start_s >= last_s or learner.mean(start_s, end_s) > 0:
            continue
        num_calls += bisect_left(ends_s, end_s) - bisect_left(ends_s, start_s)
        own_s += sample.cpu.own_cores * sample.seconds
        all_s += sample.cpu.percent / 100 * sample.cpu.cores * sample.seconds
        engine_s += sum(each.cpu_s for each in sample.work)
        steps_s += sum(each.seconds for each in sample.work)
    with_engine_s = engine_s * max(1.0, engine_cores)
    if engine_apart:
        own_s += with_engine_s
    event_loop_s = own_s - with_engine_s
    if num_calls < MIN_CALLS or engine_s <= 0 or event_loop_s <= 0:
        return None
    contended_s = 0.0 if engine_apart else event_loop_s
    alone_s = engine_s if engine_cores else min(steps_s, max(engine_s, steps_s - contended_s))
    return CpuUse(
        front_s=event_loop_s / num_calls,
        rest_s=max(0.0, all_s - own_s) / num_calls,
        duty=0.0 if engine_apart else min(1.0, engine_s / alone_s),
        alone=alone_s / steps_s,
    )

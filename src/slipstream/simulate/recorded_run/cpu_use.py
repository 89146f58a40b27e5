"""What a run needed of its own process, in which one thread of Python at a time goes on, and of all others.

Input: samples of the machine and of the engine in that process, and a recorded run. Output: a CpuUse, or None where
that is not on record. Of the time that the process had a core, what the engine's thread did not have is the event
loop's; what the machine did besides is the work of sandboxes and helpers. Time on a core hardly depends on who else
wants one, so it says more of another way to dispatch than the lengths of calls and tools do.
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
    """Of the run's own process, for each call: its way there and back, and what its agent needs until the next."""
    rest_s: float
    """Of all other processes, for each call."""
    duty: float
    """Of its time, how much the engine's thread needs the run's own process, if nobody is in the way."""
    alone: float
    """Of the time that the engine's steps took, what they would have taken with nobody in the way."""


def cpu_use(
    run: Recorded,
    samples: Sequence[HardwareSample],
    *,
    engine_cores: float,
    learning: Sequence[tuple[float, float]] = (),
) -> CpuUse | None:
    """`engine_cores`: of this machine, while the engine works; 0 if it computes on another device. `learning`: when a
    learner was at work in the same process, of which the samples then say nothing."""
    first_s, last_s = min(life.first_s for life in run.lives), max(life.last_s for life in run.lives)
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
    event_loop_s = own_s - engine_s * max(1.0, engine_cores)
    if num_calls < MIN_CALLS or engine_s <= 0 or event_loop_s <= 0:
        return None
    alone_s = engine_s if engine_cores else min(steps_s, max(engine_s, steps_s - event_loop_s))
    return CpuUse(
        front_s=event_loop_s / num_calls,
        rest_s=max(0.0, all_s - own_s) / num_calls,
        duty=min(1.0, engine_s / alone_s),
        alone=alone_s / steps_s,
    )

"""Which resource was the bottleneck of a run, and how busy the machine was.

Input: samples of the machine, time lines and the learner's work. Output: figures. Pure, except `run_usage`, which reads
a run. A run's time goes from its first stage or update to the end of its last, without the pauses in which no process
worked on it. A sample counts for the time it covers, and for a phase as far as they overlap. The bottleneck is the
busier of GPU and CPU if it is busy for at least BOTTLENECK_SHARE of that time; else the learner or the sandbox limit,
by the same measure; else nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from slipstream.record.hardware import HardwareSample
from slipstream.record.reader import RunReader
from slipstream.seams import LearnerWork, LearnerWorked
from slipstream.telemetry.levels import APART_S
from slipstream.telemetry.utilisation import Resource, TimeLine, Utilisation, utilisation_and_lines
from slipstream.types import Json

BOTTLENECK_SHARE = 0.8

Stretch = tuple[float, float]
ALWAYS: Stretch = (-math.inf, math.inf)


class Bottleneck(StrEnum):
    """What can be the bottleneck of a run; of two equally busy ones the first is named."""

    GPU = "gpu"
    """The busiest GPU: the mean of its samples."""
    CPU = "cpu"
    """All cores that the run may use: the mean of their samples."""
    LEARNER = "learner"
    """The share of time in which it was working."""
    SANDBOXES = "sandboxes limit"
    """The share of time in which as many sandboxes were alive as `dispatch.limits.sandboxes` allows."""
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """How busy something was over a period."""

    seconds: float
    """Covered by samples."""
    mean: float
    """From 0 to 1."""
    active_share: float
    """The share of these seconds whose sample is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The same for the phases of a run, which overlap where rollouts continue while the learner works."""

    whole: Busy
    rollouts: Busy | None
    """While at least one job is under way; None if there is no such time."""
    learner: Busy | None
    """While the learner is working."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    gpu: int
    busy: Phases
    peak_memory_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    cores: float
    """The largest number that was available to the run."""
    busy: Phases
    own_cores: float
    """Cores that the run's main process kept busy, on average: sampling, and whatever of the learner and the harness
    runs in it. Without the sandboxes."""
    helper_cores: float = 0.0
    """The same for the run's other processes: its helpers, and the learner's if it has one."""

    @property
    def run_cores(self) -> float:
        """Of all processes of the run, without its sandboxes."""
        return self.own_cores + self.helper_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    seconds: float
    num_updates: int
    update_s: float
    """Mean duration of an update; 0 if there was none."""
    learner_share: float
    """Share of the time in which the learner was working: updates and checkpoints."""
    sandbox_limit: int | None
    at_limit_share: float
    """Share of the time in which no further sandbox was allowed."""
    gpus: tuple[GpuUse, ...]
    cpu: CpuUse | None
    busiest: Bottleneck | None
    """The bottleneck, or what comes closest to one; None if the machine was not sampled."""
    busiest_share: float

    @property
    def bottleneck(self) -> Bottleneck | None:
        if self.busiest is None:
            return None
        return self.busiest if self.busiest_share >= BOTTLENECK_SHARE else Bottleneck.NEITHER


def run_usage(run: RunReader, *, window: Stretch = ALWAYS) -> tuple[Utilisation, MachineUse]:
    """Where the time of a recorded run went, and its bottleneck in a window of it, or in all of it."""
    used, lines = utilisation_and_lines(run.rollouts(with_turns=False))
    limit = sandbox_limit(run.config())
    return used, machine_use(run.hardware(), lines, run.learner_work(), sandbox_limit=limit, window=window)


def sandbox_limit(config: Json) -> int | None:
    """How many sandboxes a run may have at once, according to the settings in its store."""
    found: Json = config
    for key in ("settings", "dispatch"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict) or found.get("policy") == "batch":
        return None
    limits = found.get("limits")
    limit = limits.get("sandboxes") if isinstance(limits, dict) else None
    return limit if isinstance(limit, int) else None


def machine_use(
    samples: Iterable[HardwareSample],
    lines: dict[Resource, TimeLine],
    work: Sequence[LearnerWorked],
    *,
    sandbox_limit: int | None,
    window: Stretch = ALWAYS,
) -> MachineUse:
    """`samples` are in order of time; all times are on one clock. Only what is inside `window` counts."""
    jobs = _within(window, lines[Resource.JOBS].stretches(min_level=1e-9))
    learning = _within(window, ((each.start_s, each.end_s) for each in work))
    first_s = min((start_s for start_s, _ in (*jobs, *learning)), default=0.0)
    last_s = max((end_s for _, end_s in (*jobs, *learning)), default=0.0)
    totals = _UseTotals((first_s, last_s), rollouts=_Cover(jobs), learner=_Cover(learning))
    for sample in samples:
        totals.add(sample)
    seconds = _Cover([*jobs, *learning, *totals.sampled]).total_s
    updates = [
        each.end_s - each.start_s
        for each in work
        if each.work is LearnerWork.UPDATE and window[0] < each.end_s <= window[1]
    ]
    limited = [] if sandbox_limit is None else lines[Resource.SANDBOXES].stretches(min_level=sandbox_limit)
    gpus, cpu = totals.gpu_uses(), totals.cpu_use()
    shares = {
        Bottleneck.GPU: max((use.busy.whole.mean for use in gpus), default=0.0),
        Bottleneck.CPU: 0.0 if cpu is None else cpu.busy.whole.mean,
        Bottleneck.LEARNER: _Cover(learning).total_s / seconds if seconds else 0.0,
        Bottleneck.SANDBOXES: _Cover(_within(window, limited)).total_s / seconds if seconds else 0.0,
    }
    busiest = _busiest(shares) if totals.sampled else None
    return MachineUse(
        seconds=seconds,
        num_updates=len(updates),
        update_s=sum(updates) / len(updates) if updates else 0.0,
        learner_share=shares[Bottleneck.LEARNER],
        sandbox_limit=sandbox_limit,
        at_limit_share=shares[Bottleneck.SANDBOXES],
        gpus=gpus,
        cpu=cpu,
        busiest=busiest,
        busiest_share=0.0 if busiest is None else shares[busiest],
    )


def _busiest(shares: Mapping[Bottleneck, float]) -> Bottleneck:
    """A run that keeps a GPU or the CPU busy is waiting for them: they go before the learner and the limit."""
    hardware = max((Bottleneck.GPU, Bottleneck.CPU), key=lambda each: shares[each])
    return hardware if shares[hardware] >= BOTTLENECK_SHARE else max(shares, key=lambda each: shares[each])


def _within(window: Stretch, stretches: Iterable[Stretch]) -> list[Stretch]:
    """The parts of these that are inside the window."""
    cut = ((max(start_s, window[0]), min(end_s, window[1])) for start_s, end_s in stretches)
    return [(start_s, end_s) for start_s, end_s in cut if start_s < end_s]


class _Cover:
    """Intervals, merged where they touch; says how much of another interval they cover."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self._starts_s: list[float] = []
        self._ends_s: list[float] = []
        for start_s, end_s in sorted(stretches):
            if self._ends_s and start_s <= self._ends_s[-1] + APART_S:
                self._ends_s[-1] = max(self._ends_s[-1], end_s)
            else:
                self._starts_s.append(start_s)
                self._ends_s.append(end_s)
        lengths = [end_s - start_s for start_s, end_s in zip(self._starts_s, self._ends_s, strict=True)]
        self._before_s = list(accumulate(lengths, initial=0.0))

    @property
    def total_s(self) -> float:
        return self._before_s[-1]

    def overlap_s(self, start_s: float, end_s: float) -> float:
        return max(0.0, self._until(end_s) - self._until(start_s))

    def _until(self, time_s: float) -> float:
        """How much of it is before a time."""
        place = bisect_right(self._starts_s, time_s)
        if place == 0:
            return 0.0
        inside_s = min(time_s, self._ends_s[place - 1]) - self._starts_s[place - 1]
        return self._before_s[place - 1] + inside_s


@dataclass(slots=True)
class _Mean:
    seconds: float = 0.0
    busy_s: float = 0.0
    active_s: float = 0.0

    def add(self, seconds: float, busy: float) -> None:
        self.seconds += seconds
        self.busy_s += seconds * busy
        self.active_s += seconds if busy > 0 else 0.0

    def busy(self) -> Busy | None:
        if not self.seconds:
            return None
        return Busy(seconds=self.seconds, mean=self.busy_s / self.seconds, active_share=self.active_s / self.seconds)


@dataclass(slots=True)
class _Unit:
    """One GPU, or all cores, so far."""

    means: dict[str, _Mean] = field(default_factory=dict)
    peak: float = 0.0
    """Of a GPU's memory in use, or of the number of cores."""

    def add(self, overlaps: dict[str, float], busy: float, peak: float) -> None:
        self.peak = max(self.peak, peak)
        for part, seconds in overlaps.items():
            self.means.setdefault(part, _Mean()).add(seconds, busy)

    def phases(self) -> Phases | None:
        found = {part: mean.busy() for part, mean in self.means.items()}
        whole = found.get("whole")
        if whole is None:
            return None
        return Phases(whole=whole, rollouts=found["rollouts"], learner=found["learner"])


class _UseTotals:
    def __init__(self, window: Stretch, **parts: _Cover) -> None:
        """`window`: the run's time, including pauses."""
        self._window = window
        self._parts = parts
        self._gpus: dict[int, _Unit] = {}
        self._cpus = _Unit()
        self._own, self._helpers = _Mean(), _Mean()
        self.sampled: list[Stretch] = []
        """The parts of the run that samples cover."""

    def add(self, sample: HardwareSample) -> None:
        start_s = max(sample.at_s - sample.seconds, self._window[0])
        end_s = min(sample.at_s, self._window[1])
        if start_s >= end_s:
            return
        self._note(start_s, end_s)
        overlaps = {name: cover.overlap_s(start_s, end_s) for name, cover in self._parts.items()}
        overlaps["whole"] = end_s - start_s
        if sample.cpu is not None:
            self._cpus.add(overlaps, sample.cpu.percent / 100, sample.cpu.cores)
            self._own.add(overlaps["whole"], sample.cpu.own_cores)
            self._helpers.add(overlaps["whole"], sample.cpu.helper_cores)
        for each in sample.gpus:
            self._gpus.setdefault(each.gpu, _Unit()).add(overlaps, each.percent / 100, each.memory_mb)

    def gpu_uses(self) -> tuple[GpuUse, ...]:
        return tuple(
            GpuUse(gpu=number, busy=phases, peak_memory_mb=unit.peak)
            for number, unit in sorted(self._gpus.items())
            if (phases := unit.phases()) is not None
        )

    def cpu_use(self) -> CpuUse | None:
        phases, own, helpers = self._cpus.phases(), self._own.busy(), self._helpers.busy()
        if phases is None or own is None or helpers is None:
            return None
        return CpuUse(cores=self._cpus.peak, busy=phases, own_cores=own.mean, helper_cores=helpers.mean)

    def _note(self, start_s: float, end_s: float) -> None:
        if self.sampled and start_s <= self.sampled[-1][1] + APART_S:
            self.sampled[-1] = (self.sampled[-1][0], max(end_s, self.sampled[-1][1]))
        else:
            self.sampled.append((start_s, end_s))

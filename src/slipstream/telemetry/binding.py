"""How busy the machine was over a run, and what the run waited for: samples, time lines and the learner's work enter,
figures leave.

Pure, but for `run_usage`, which reads a run. A run's time here goes from its first stage or update to the end of its
last, without the pauses in which nobody was at it. A sample counts for the time it stands for, and for a part of the
run as far as it lies in it. What binds is the busier of GPU and processors, if it is busy for BINDING_SHARE of that
time or more; else the learner or the limit of sandboxes, by the same measure; else nothing.
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

BINDING_SHARE = 0.8

Stretch = tuple[float, float]
ALWAYS: Stretch = (-math.inf, math.inf)


class Binding(StrEnum):
    """What a run can be held up by; of two that are equally busy the first is named."""

    GPU = "gpu"
    """The busiest GPU: the mean of its samples."""
    CPU = "cpu"
    """All cores that the run may use: the mean of their samples."""
    LEARNER = "learner"
    """The share of time in which it was at work."""
    SANDBOXES = "sandboxes limit"
    """The share of time in which as many sandboxes lived as `dispatch.limits.sandboxes` allows."""
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """How busy something was, over some time."""

    seconds: float
    """That samples tell of."""
    mean: float
    """From 0 to 1."""
    active_share: float
    """Of these seconds, those whose sample is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The same over parts of a run, which overlap where rollouts go on while the learner works."""

    whole: Busy
    rollouts: Busy | None
    """While at least one job is under way; None: there is no such time."""
    learner: Busy | None
    """While the learner is at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    gpu: int
    busy: Phases
    peak_memory_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    cores: float
    """The most there were for the run."""
    busy: Phases
    own_cores: float
    """Cores that the run's own process kept busy, on average: sampling, and of learning and the harness what is not
    in processes of its own. Not the sandboxes."""
    helper_cores: float = 0.0
    """The same of the run's other processes: its helpers, and the learner's where it has one."""

    @property
    def run_cores(self) -> float:
        """Of the whole run, without its sandboxes."""
        return self.own_cores + self.helper_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    seconds: float
    num_updates: int
    update_s: float
    """Of one update, on average; 0 if there was none."""
    learner_share: float
    """Of the time, in which the learner was at work: updates and checkpoints."""
    sandbox_limit: int | None
    at_limit_share: float
    """Of the time, in which no more sandboxes were allowed."""
    gpus: tuple[GpuUse, ...]
    cpu: CpuUse | None
    busiest: Binding | None
    """What binds, or else what comes closest; None: the machine was not sampled."""
    busiest_share: float

    @property
    def binding(self) -> Binding | None:
        if self.busiest is None:
            return None
        return self.busiest if self.busiest_share >= BINDING_SHARE else Binding.NEITHER


def run_usage(run: RunReader, *, window: Stretch = ALWAYS) -> tuple[Utilisation, MachineUse]:
    """Where the time of a recorded run went; and what it waited for in a stretch of it, or in all of it."""
    used, lines = utilisation_and_lines(run.rollouts(with_turns=False))
    limit = sandbox_limit(run.config())
    return used, machine_use(run.hardware(), lines, run.learner_work(), sandbox_limit=limit, window=window)


def sandbox_limit(config: Json) -> int | None:
    """How many sandboxes a run may have at once, as the settings in its store say."""
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
    """`samples` are in order of time. All is on one clock. What lies outside of `window` does not count."""
    jobs = _within(window, lines[Resource.JOBS].stretches(least=1e-9))
    learning = _within(window, ((each.start_s, each.end_s) for each in work))
    first_s = min((start_s for start_s, _ in (*jobs, *learning)), default=0.0)
    last_s = max((end_s for _, end_s in (*jobs, *learning)), default=0.0)
    tally = _Tally((first_s, last_s), rollouts=_Cover(jobs), learner=_Cover(learning))
    for sample in samples:
        tally.add(sample)
    seconds = _Cover([*jobs, *learning, *tally.sampled]).total_s
    updates = [
        each.end_s - each.start_s
        for each in work
        if each.work is LearnerWork.UPDATE and window[0] < each.end_s <= window[1]
    ]
    limited = [] if sandbox_limit is None else lines[Resource.SANDBOXES].stretches(least=sandbox_limit)
    gpus, cpu = tally.gpu_uses(), tally.cpu_use()
    shares = {
        Binding.GPU: max((use.busy.whole.mean for use in gpus), default=0.0),
        Binding.CPU: 0.0 if cpu is None else cpu.busy.whole.mean,
        Binding.LEARNER: _Cover(learning).total_s / seconds if seconds else 0.0,
        Binding.SANDBOXES: _Cover(_within(window, limited)).total_s / seconds if seconds else 0.0,
    }
    busiest = _busiest(shares) if tally.sampled else None
    return MachineUse(
        seconds=seconds,
        num_updates=len(updates),
        update_s=sum(updates) / len(updates) if updates else 0.0,
        learner_share=shares[Binding.LEARNER],
        sandbox_limit=sandbox_limit,
        at_limit_share=shares[Binding.SANDBOXES],
        gpus=gpus,
        cpu=cpu,
        busiest=busiest,
        busiest_share=0.0 if busiest is None else shares[busiest],
    )


def _busiest(shares: Mapping[Binding, float]) -> Binding:
    """Whoever keeps a GPU or the processors busy waits for them: they go before the learner and the limit."""
    hardware = max((Binding.GPU, Binding.CPU), key=lambda binding: shares[binding])
    return hardware if shares[hardware] >= BINDING_SHARE else max(shares, key=lambda binding: shares[binding])


def _within(window: Stretch, stretches: Iterable[Stretch]) -> list[Stretch]:
    """What of these lies in a window."""
    cut = ((max(start_s, window[0]), min(end_s, window[1])) for start_s, end_s in stretches)
    return [(start_s, end_s) for start_s, end_s in cut if start_s < end_s]


class _Cover:
    """Stretches of time, joined where they meet, which can be asked how much of another they cover."""

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
        """How much of it lies before a time."""
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
    """Of a GPU's memory, or of the number of cores."""

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


class _Tally:
    def __init__(self, window: Stretch, **parts: _Cover) -> None:
        """`window`: the run's time, pauses included."""
        self._window = window
        self._parts = parts
        self._gpus: dict[int, _Unit] = {}
        self._cpus = _Unit()
        self._own, self._helpers = _Mean(), _Mean()
        self.sampled: list[Stretch] = []
        """The time of the run that samples tell of."""

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

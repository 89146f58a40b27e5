"""Estimates how long tools, sandboxes and gradings would take on an idle machine, from their times on a busy one.

Input: the pieces of time of a recorded run, and the cores of its machine. Output: for each kind the share that is CPU
work, and each piece as a Chore. A piece with a CPU share takes `1 - share + share * stretch` times as long as alone;
the stretch is the ratio of wanted to available cores, at least 1. The shares are chosen so that pieces of one kind and
task come out most alike and, if the engine runs on the same cores, its calls are explained best.

The agents' own work has one thread in every process of the run: with many agents, most of its time was waiting for
others.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.simulate.recorded_run.mean_level import Interval, Level
from slipstream.simulate.recorded_run.recorded import Piece, Recorded, RecordedRollout, TimeKind
from slipstream.simulate.workload import Chore

GRID = (1.0, 0.75, 0.5, 0.25, 0.0)
"""The candidate shares. The first is the default: a sandbox on the same machine uses its cores."""
WORTH = 0.995
"""Another share than the default must reduce the error at least to this."""
ROUNDS = 2
MIN_ALIKE = 3
SOUGHT = (TimeKind.INIT, TimeKind.TOOL, TimeKind.GRADE)
"""The other kinds are too short to fit."""

QUICKEST = 10
"""One in this many pieces of work is as fast as one that did not wait."""
FULL_PERCENT = 95.0
"""Above this the cores of a machine count as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How busy the machine was in an interval."""

    start_s: float
    end_s: float
    percent: float
    own_cores: float
    """Cores used by the process of the run, its engine included."""


Explain = Callable[[Level], float]
"""The error of an engine's calls, given the stretch of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """How busy the cores of a recorded run were, and the CPU shares of its pieces."""

    stretch: Level
    """1 without contention; 0 outside of the measured time."""
    shares: Mapping[TimeKind, float]
    wanted: Level
    """Cores that the run itself wanted."""
    harness: Level = field(default_factory=lambda: Level(()))
    """Agents doing their own work, between calls and tools."""
    threads: int = 1
    """Threads for that work."""
    own_s: float | None = None
    """The time they need for a piece of that work, if the rest is known to be waiting for the run's own process, which
    a replay simulates."""

    def alone(self, pieces: Sequence[Piece]) -> Chore:
        """These pieces, on an idle machine."""
        wait_s = cpu_s = 0.0
        for piece in pieces:
            share = self.shares[piece.kind]
            if piece.kind is TimeKind.OWN and self.own_s is not None:
                cpu_s += min(self.own_s, piece.seconds)
                continue
            if piece.kind is TimeKind.OWN:
                at_once = max(1.0, self.harness.mean(piece.start_s, piece.end_s))
                share *= min(1.0, self.threads / at_once)
            alone_s = piece.seconds / _slowdown(share, self.stretch_of(piece.start_s, piece.end_s))
            wait_s += (1 - share) * alone_s
            cpu_s += share * alone_s
        return Chore(wait_s=wait_s, cpu_s=cpu_s)

    def stretch_of(self, start_s: float, end_s: float) -> float:
        return max(1.0, self.stretch.mean(start_s, end_s))


def fit_cores(
    run: Recorded,
    *,
    cores: float,
    engine_cores: float,
    explain: Explain | None = None,
    others: float = 0.0,
    threads: int = 1,
    own_s: float | None = None,
) -> Cores:
    """`engine_cores`: what the engine takes of the same machine while it works; 0 if it has one of its own. `others`:
    what somebody else wanted of it all the while. `threads`: those that agents work in. `own_s`: see `Cores`."""
    own = [
        (piece.start_s, piece.end_s, 1.0 if own_s is None else min(1.0, own_s / piece.seconds))
        for rollout in run.rollouts
        for piece in rollout.pieces
        if piece.kind is TimeKind.OWN and piece.seconds > 0
    ]
    harness = Level(own)
    pieces = {kind: _grouped(run.rollouts, kind) for kind in SOUGHT}

    def made(shares: Mapping[TimeKind, float]) -> Cores:
        wanted = _wanted(run, shares, engine_cores, Level(own, lambda level: min(threads, level)))
        stretch = Level(wanted.pieces(), lambda level: max(1.0, (level + others) / cores))
        return Cores(stretch=stretch, shares=shares, wanted=wanted, harness=harness, threads=threads, own_s=own_s)

    def off(found: Cores) -> float:
        spreads = [_spread(groups, kind, found) for kind, groups in pieces.items() if groups]
        calls = explain(found.stretch) if explain is not None and engine_cores else 0.0
        return calls + statistics.fmean(spreads or [0.0])

    best = made(dict.fromkeys(TimeKind, GRID[0]))
    if max((level for _, _, level in best.stretch.pieces()), default=1.0) <= 1.0:
        return best  # there never was contention
    least = off(best)
    for _ in range(ROUNDS):
        for kind in SOUGHT:
            for share in GRID:
                tried = made({**best.shares, kind: share})
                if (found := off(tried)) < WORTH * least:
                    best, least = tried, found
    return best


def own_work(run: Recorded, *, apart: bool) -> float:
    """What agents need for a piece of their own work, where they wait for the run's own process. `apart`: they live in
    others, and the quickest of their pieces tell; else it is all that process's."""
    found = sorted(piece.seconds for rollout in run.rollouts for piece in rollout.pieces if piece.kind is TimeKind.OWN)
    return found[len(found) // QUICKEST] if apart and found else 0.0


def wanted_by_others(samples: Sequence[Sample], found: Cores, *, cores: float, engine: Level) -> float:
    """What somebody else wanted of the cores, on average, by how much less this process got than it asked for.

    While it samples, the engine asks for its cores, `engine`; if it got half of them, twice as much was wanted of the
    machine as there is. What the run itself wanted is taken off that. On a machine that was not full it is 0."""
    full = [sample for sample in samples if sample.percent >= FULL_PERCENT]
    if not full or len(full) < len(samples) / 2:
        return 0.0
    left = []
    for sample in full:
        asked = engine.mean(sample.start_s, sample.end_s)
        if asked > 0 and sample.own_cores > 0:
            stretch = max(1.0, asked / sample.own_cores)
            left.append(max(0.0, stretch * cores - found.wanted.mean(sample.start_s, sample.end_s)))
    return statistics.median(left) if left else 0.0


def engine_level(run: Recorded, engine_cores: float) -> Level:
    """The cores that the engine wanted."""
    calls = ((call.start_s, call.end_s, 1.0) for call in run.calls)
    return Level(calls, lambda level: engine_cores if level else 0.0)


def _wanted(run: Recorded, shares: Mapping[TimeKind, float], engine_cores: float, harness: Level) -> Level:
    intervals: list[Interval] = [
        (piece.start_s, piece.end_s, shares[piece.kind])
        for rollout in run.rollouts
        for piece in rollout.pieces
        if piece.kind is not TimeKind.OWN
    ]
    intervals += harness.pieces()
    if engine_cores:
        intervals += engine_level(run, engine_cores).pieces()
    return Level(intervals)


def _slowdown(share: float, stretch: float) -> float:
    return 1.0 - share + share * stretch


def _grouped(rollouts: Sequence[RecordedRollout], kind: TimeKind) -> list[list[Piece]]:
    """Pieces that would take about equally long without contention: of one kind, task and position."""
    groups: defaultdict[tuple[str, int], list[Piece]] = defaultdict(list)
    for rollout in rollouts:
        of_kind = [piece for piece in rollout.pieces if piece.kind is kind and piece.seconds > 0]
        for place, piece in enumerate(of_kind):
            groups[rollout.key.task_id, place].append(piece)
    large = [pieces for pieces in groups.values() if len(pieces) >= MIN_ALIKE]
    pooled = [piece for pieces in groups.values() for piece in pieces]
    return large if 2 * sum(map(len, large)) >= len(pooled) else [pooled]


def _spread(groups: Sequence[Sequence[Piece]], kind: TimeKind, found: Cores) -> float:
    """The mean deviation of pieces from the median of their group, without the effect of contention."""
    apart: list[float] = []
    for pieces in groups:
        logs = [
            math.log(piece.seconds / _slowdown(found.shares[kind], found.stretch_of(piece.start_s, piece.end_s)))
            for piece in pieces
        ]
        middle = statistics.median(logs)
        apart += [abs(log - middle) for log in logs]
    return statistics.fmean(apart)

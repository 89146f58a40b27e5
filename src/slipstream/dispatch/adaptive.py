"""The adaptive scheduling policy. It has no settings: it goes by what it measures.

- Agents start when the turn gate has room for them (`kv_gate`): the engine's cache decides, not a number of slots.
  One may always run.
- Sandboxes are started just far enough ahead: for the room there is, and for the agents that will end in the time
  that an initialisation takes, with all the room in use.
- Initialisations and gradings run side by side as long as that does not slow them down (`Knee`).
- Tasks that took long go first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from statistics import median

from slipstream.dispatch.base import Decision, DispatchLimits, DispatchView, Stage
from slipstream.dispatch.forecast import Mean
from slipstream.types import Job

AHEAD = 1.5
"""Sandboxes started for each one expected to be needed: agents end in bursts."""
REMEMBERED = 256
"""Durations kept per stage."""
RECENT = 15
"""Of these, those that a stage's recent duration is the median of."""
KNOWN = 8
"""Durations after which a mean is relied on."""
NO_LIMIT = 1 << 30


class Knee:
    """How many may be in a stage before more of them only slow each other down.

    The stage's recent duration is compared with that of its fastest quarter. While they are similar the limit grows
    by its square root; if the stage takes more than `TOLERANCE` times as long, the limit shrinks in proportion. If
    more jobs wait for the stage than it admits, it is the bottleneck, and other stages may be what slows it down: then
    it may take `BEHIND` times as long again.
    """

    TOLERANCE = 2.0
    BEHIND = 2.0

    def __init__(self) -> None:
        self.limit = math.inf
        self.waiting = 0
        """How many are waiting to enter."""
        self._times: deque[float] = deque()
        self._in_order: list[float] = []
        """The same, shortest first."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.seconds = 0.0
        """Recent duration of the stage: the median, as one that hangs says nothing of the others."""

    @property
    def num_seen(self) -> int:
        return len(self._times)

    def note(self, seconds: float, inside: int) -> None:
        self._times.append(seconds)
        insort(self._in_order, seconds)
        if len(self._times) > REMEMBERED:
            del self._in_order[bisect_left(self._in_order, self._times.popleft())]
        self._recent.append(seconds)
        self.seconds = median(self._recent)
        if len(self._times) < KNOWN:
            return
        if self.limit == math.inf:
            self.limit = float(max(inside, KNOWN))
        if inside < self.limit / 2:
            return  # the limit is not what binds here
        fast = self._in_order[: max(2, len(self._times) // 4)]
        tolerance = self.TOLERANCE * (self.BEHIND if self.waiting > self.limit else 1.0)
        wanted = tolerance * sum(fast) / len(fast)
        slowdown = min(1.0, max(0.5, wanted / self.seconds)) if self.seconds > 0 else 1.0
        self.limit += 0.1 * (self.limit * slowdown + math.sqrt(self.limit) - self.limit)

    def below(self, inside: int) -> int:
        """How many more may enter."""
        return NO_LIMIT if self.limit == math.inf else max(0, int(self.limit) - inside)


class AdaptiveMemory:
    """The policy's memory."""

    def __init__(self) -> None:
        self.init = Knee()
        self.grade = Knee()
        self.run_s = Mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    def start(self, limits: DispatchLimits) -> AdaptiveMemory:
        return AdaptiveMemory()

    def observe(
        self, stage: Stage, seconds: float, inside: int, memory: AdaptiveMemory, *, failed: bool = False
    ) -> AdaptiveMemory:
        match stage:
            case Stage.RUN:
                if not failed:
                    memory.run_s.add(seconds)
            case Stage.INIT | Stage.GRADE:
                knee = memory.init if stage is Stage.INIT else memory.grade
                if not failed or seconds > knee.seconds:  # it would have taken so long at least
                    knee.note(seconds, inside)
        return memory

    def decide(self, view: DispatchView, memory: AdaptiveMemory) -> tuple[Decision, AdaptiveMemory]:
        ahead = max(0, self._ahead(view, memory))
        memory.init.waiting, memory.grade.waiting = min(ahead, view.waiting), view.ended
        decision = Decision(
            init=min(ahead, memory.init.below(view.initialising)),
            run=view.ready if view.room is None else max(view.room, 0 if view.running else 1),
            grade=memory.grade.below(view.grading),
        )
        return decision, memory

    def _ahead(self, view: DispatchView, memory: AdaptiveMemory) -> int:
        """How many sandboxes to start."""
        known = memory.init.num_seen > 0 and memory.run_s.num >= KNOWN and memory.run_s.mean > 0
        if view.room is None or not known:
            return view.waiting
        leaving = (view.running + view.room) * memory.init.seconds / memory.run_s.mean
        wanted = view.room + AHEAD * leaving + 2
        return math.ceil(wanted) - view.ready - view.initialising

    def rank(self, job: Job, seen_s: float | None, mean_s: float) -> float:
        return 0.0 if seen_s is None else mean_s - seen_s

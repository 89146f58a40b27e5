"""What dispatch schedules, and what it promises. It knows attempts and times, never prompts or tokens.

The promises, each tested on virtual time under injected faults:

1. Every submitted job leaves exactly once, whatever raises, hangs or is cancelled.
2. Never more live sandboxes, nor more jobs in a stage, than the limits say. An attempt holds at most one sandbox and
   waits for none while it holds one; sandboxes of graders count; ready grades go before new initialisations.
3. A failure in one job never delays another and never ends the run; a mistake in user code that fails every attempt
   of the first jobs does (`common_failure`), before any of them is recorded.
4. Every stage, job and run has a deadline, and cancellation reaches what runs in it.
5. Infrastructure failures are retried, then recorded as untrusted; never as reward 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from slipstream.seams import PastAttempt, TurnGate
from slipstream.types import Ending, EngineLoad, Job, JobKey, Rollout


class Stage(StrEnum):
    INIT = "init"
    RUN = "run"
    GRADE = "grade"


class Attempt(Protocol):
    """One try at a job. It owns its sandbox, wherever it is placed. Called in this order, never concurrently."""

    async def init(self) -> None:
        """Bring up the agent's sandbox."""
        ...

    async def run(self) -> None:
        """Run the agent. Returns when the artifact is out of the sandbox and in the journal."""
        ...

    async def release(self) -> None:
        """Close the agent's sandbox. Always before `grade` may start."""
        ...

    @property
    def grade_weight(self) -> int:
        """Sandbox units that `grade` will take, known once `run` is over; 0 if it needs no sandbox."""
        ...

    async def grade(self) -> Rollout:
        """Grade the artifact, in a sandbox of its own where it needs one. May be called again after it failed."""
        ...

    def as_ended(self, ending: Ending) -> Rollout:
        """What there is so far, as a rollout without verdict. Never raises."""
        ...

    async def aclose(self) -> None:
        """Release everything that is left. Closing twice is fine."""
        ...


class Placement(Protocol):
    """Where attempts live. `open` is cheap and local: bringing things up is `Attempt.init`'s work."""

    def expect(self, job: Job) -> None:
        """An attempt at this job will be opened sooner or later. Called once for each job."""
        ...

    def open(self, job: Job, number: int, past: PastAttempt | None) -> Attempt:
        """`past`: what this attempt resumes from, in a resumed run. If its agent had ended, only `grade` is called."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """What may be in use at once; None is no limit."""

    sandboxes: int | None = None
    """Live sandboxes of agents, from the start of an initialisation to the end of the release, and of graders."""
    memory_mb: int | None = None
    """Memory of live sandboxes, by the limits of their tasks."""
    cpus: float | None = None
    """Cores of live sandboxes, by the limits of their tasks."""
    init: int | None = None
    """Sandboxes being initialised."""
    run: int | None = None
    """Agents running."""
    grade: int | None = None
    """Gradings in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a sandbox takes of the limits: `Need(sandboxes=1, memory_mb=2048, milli_cpus=500)`."""

    sandboxes: int = 0
    memory_mb: int = 0
    milli_cpus: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(
            sandboxes=self.sandboxes + other.sandboxes,
            memory_mb=self.memory_mb + other.memory_mb,
            milli_cpus=self.milli_cpus + other.milli_cpus,
        )

    def __sub__(self, other: Need) -> Need:
        return Need(
            sandboxes=self.sandboxes - other.sandboxes,
            memory_mb=self.memory_mb - other.memory_mb,
            milli_cpus=self.milli_cpus - other.milli_cpus,
        )


NOTHING = Need()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a part is cancelled."""

    init_s: float = 300.0
    """One initialisation of a sandbox."""
    run_s: float = 3_600.0
    """One run of an agent."""
    grade_s: float = 900.0
    """One grading."""
    release_s: float = 60.0
    """One release of a sandbox."""
    job_s: float = 7_200.0
    """A job, from its first admission to its end, retries included."""
    total_s: float = 7 * 86_400.0
    """The whole run."""
    grace_s: float = 10.0
    """How long a cancelled part may take to end before it is abandoned; 0: no time at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often an infrastructure failure is retried."""

    attempts: int = 3
    """Attempts at a job, the first included."""
    grades: int = 3
    """Gradings of one attempt, the first included; the agent is not run again for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchView:
    """What a policy sees: counters, not lists."""

    waiting: int
    initialising: int
    ready: int
    """Initialised, waiting to run."""
    running: int
    ended: int
    """Run and released, waiting to be graded."""
    grading: int
    in_flight: int
    """Jobs between the start of their initialisation and their end."""
    live: int
    """Units of live sandboxes."""
    done: int
    abandoned: int
    """Tasks that ignored their cancellation."""
    load: EngineLoad | None = None
    room: int | None = None
    """New agents that the turn gate has room for; None if it holds nobody back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many more jobs may enter each stage now. The dispatcher cuts it to the limits."""

    init: int
    run: int
    grade: int


Memory = TypeVar("Memory")


class SchedulingPolicy(Protocol[Memory]):
    """Pure: it proposes, the dispatcher enforces."""

    def start(self, limits: DispatchLimits) -> Memory: ...

    def decide(self, view: DispatchView, memory: Memory) -> tuple[Decision, Memory]: ...

    def observe(self, stage: Stage, seconds: float, inside: int, memory: Memory, *, failed: bool = False) -> Memory:
        """A stage of an attempt is over: how long it took, and how many were inside it, itself included. `failed`: it
        would have taken longer, or would have ended otherwise."""
        ...

    def rank(self, job: Job, seen_s: float | None, mean_s: float) -> float:
        """Among the jobs of a step lower goes first, and equals go in the order they came. `seen_s`: how long the same
        task ran on average so far; `mean_s`: all tasks. When a task is seen its jobs that wait to be initialised are
        ranked again, those of a step together: by the first of them, which is the one that is lowest without
        `seen_s`."""
        ...


class PacingGate(TurnGate, Protocol):
    """A turn gate that the dispatcher works with."""

    def room(self) -> int | None:
        """How many new agents could begin now; None: any number."""
        ...

    def held_s(self, key: JobKey) -> float:
        """How long the agent of a job has been held so far. Its run's deadline does not count that."""
        ...

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None:
        """The run stage of a job is over, however it ended. An abandoned one (`left_behind`) may still ask for turns:
        they pass at once, and delay no other agent."""
        ...

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there may be room for new agents."""
        ...

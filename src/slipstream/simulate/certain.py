"""What a job of a workload does for certain, under any policy: the course that its faults give it, if it is alone.

Input: a workload and one of its jobs. Output: its Course, and the times from which a deadline may have cut it short.
Pure. Where something may or may not be done (a stage that hangs until its deadline, say), it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.simulate.workload import Chore, SimFault, SimJob, SimTurn, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A deadline that may end a stage or the job. What it has done before, at least."""

    time_s: float
    """After the job's admission, at the earliest."""
    sandbox_s: float
    cpu_s: float


@dataclass(slots=True, kw_only=True)
class EngineWork:
    """Sums over the calls of a job."""

    sampled: int = 0
    rows_s: float = 0.0
    """For the rows of the sampled tokens, and the reading of their contexts."""
    held: float = 0.0
    """Over the sampled tokens, the context and reply that are in the cache meanwhile."""
    roots: float = 0.0
    """The same of its square root."""
    fresh: float = 0.0
    """Prompt tokens that are computed at least once."""
    prefilled: float = 0.0
    """Over these, the context and reply that are in the cache meanwhile."""
    waits: list[tuple[float, int]] = field(default_factory=list)
    """Between two calls: seconds, and the tokens that the next one needs not compute if they are kept."""


@dataclass(slots=True, kw_only=True)
class Course:
    life_s: float = 0.0
    """From its admission to its end."""
    sandbox_s: float = 0.0
    """Unit-seconds."""
    cpu_s: float = 0.0
    before_s: float | None = None
    """Until its first model call; None if there is none."""
    after_s: float = 0.0
    """From the end of its last model call."""
    engine: EngineWork = field(default_factory=EngineWork)
    cuts: list[Cut] = field(default_factory=list)

    def least_sandbox_s(self, by_s: float) -> float:
        return min([self.sandbox_s, *(cut.sandbox_s for cut in self.cuts if cut.time_s < by_s)])

    def least_cpu_s(self, by_s: float) -> float:
        return min([self.cpu_s, *(cut.cpu_s for cut in self.cuts if cut.time_s < by_s)])

    def is_certain(self, by_s: float) -> bool:
        """Whether nothing can have cut it before this time."""
        return all(cut.time_s >= by_s for cut in self.cuts)


def course_of(workload: Workload, job: SimJob) -> Course:
    return _Walk(workload, job).walk()


class _Walk:
    def __init__(self, workload: Workload, job: SimJob) -> None:
        self._machine = workload.machine
        self._job = job
        self._course = Course()
        deadlines = workload.machine.deadlines
        for seconds in (deadlines.job_s, deadlines.total_s):
            self._course.cuts.append(Cut(time_s=seconds, sandbox_s=0.0, cpu_s=0.0))

    def walk(self) -> Course:
        job, course, machine = self._job, self._course, self._machine
        last_call_s = 0.0
        for number in range(1, machine.retries.attempts + 1):
            inits = self._chore(job.init, self._fault(number, "init"), job.weight, machine.deadlines.init_s)
            fault = self._fault(number, "run")
            if inits:
                last_call_s = self._run(fault) or last_call_s
            self._pass(min(job.release_s, machine.deadlines.release_s), job.weight)
            if inits and fault in (None, "hang"):
                if fault is None and job.verdict:
                    self._grade(self._fault(number, "grade"))
                break
        course.after_s = course.life_s - last_call_s
        return course

    def _fault(self, number: int, stage: str) -> SimFault | None:
        return (self._job.faults or {}).get(f"{number} {stage}")

    def _pass(self, seconds: float, weight: int) -> None:
        self._course.life_s += seconds
        self._course.sandbox_s += weight * seconds

    def _may_be_cut(self, after_s: float, weight: int) -> None:
        """The stage that begins now may be cut after so long."""
        course = self._course
        sandbox_s = course.sandbox_s + weight * after_s
        course.cuts.append(Cut(time_s=course.life_s + after_s, sandbox_s=sandbox_s, cpu_s=course.cpu_s))

    def _chore(self, chore: Chore, fault: SimFault | None, weight: int, deadline_s: float) -> bool:
        """An initialisation or a grading; returns whether it succeeds."""
        if fault == "hang":
            self._pass(deadline_s, weight)
            return False
        share = 0.5 if fault else 1.0
        if chore.cpu_s or share * chore.wait_s >= deadline_s:  # a wait alone takes as long as it takes
            self._may_be_cut(deadline_s, weight)
        self._pass(share * (chore.wait_s + chore.cpu_s), weight)
        self._course.cpu_s += share * chore.cpu_s
        return fault is None

    def _grade(self, fault: SimFault | None) -> None:
        for _ in range(self._machine.retries.grades):
            if self._chore(self._job.grade, fault, self._job.grade_weight, self._machine.deadlines.grade_s):
                break

    def _run(self, fault: SimFault | None) -> float | None:
        """The agent's turns; returns when the last call that is certain ended."""
        job, course, weight = self._job, self._course, self._job.weight
        run_s = self._machine.deadlines.run_s
        if fault == "hang":
            self._pass(run_s, weight)
            return None
        self._may_be_cut(run_s, weight)
        num = len(job.turns) // 2 if fault else len(job.turns)
        self._pass(job.start.wait_s + job.start.cpu_s, weight)
        course.cpu_s += job.start.cpu_s
        ended_s = None
        if num and course.before_s is None:
            course.before_s = course.life_s
        fresh = self._calls(job.turns[:num], job.contexts)
        for turn, context, computed in zip(job.turns[:num], job.contexts, fresh, strict=False):
            self._pass(self._call_s(turn, context, computed), weight)
            ended_s = course.life_s
            self._pass(turn.tool_s + turn.tool_cpu_s + self._machine.front_s / 2, weight)
            course.cpu_s += turn.tool_cpu_s
        return ended_s

    def _call_s(self, turn: SimTurn, context: int, computed: float) -> float:
        """Alone: one token in a step, every prompt token computed once."""
        spec = self._machine.engine
        sampling_s = turn.sampled * (spec.step_s + spec.row_s + (context + turn.sampled) * spec.token_s)
        return self._machine.front_s / 2 + spec.call_s + computed / spec.prefill_tokens_s + sampling_s

    def _calls(self, turns: Sequence[SimTurn], contexts: Sequence[int]) -> list[float]:
        """Adds what the engine does for these turns of one attempt; returns what each has to compute, in tokens."""
        spec, work, shared = self._machine.engine, self._course.engine, self._job.shared
        found, cached = list[float](), 0
        for number, (turn, context) in enumerate(zip(turns, contexts, strict=False)):
            there = context + turn.sampled
            cached = cached if turn.kept is None else min(cached, turn.kept)
            known = max(cached, min(shared, context))
            fresh = 0.0 if context <= known else context - known + spec.prompt_s * spec.prefill_tokens_s
            found.append(fresh)
            work.fresh += fresh
            work.prefilled += there * fresh
            work.sampled += turn.sampled
            work.rows_s += turn.sampled * (spec.row_s + there * spec.token_s)
            work.held += turn.sampled * there
            work.roots += turn.sampled * math.sqrt(there)
            if number:
                before = turns[number - 1]
                useful = max(0, min(cached, context) - shared)
                work.waits.append((before.tool_s + before.tool_cpu_s, useful))
            cached = max(cached, there)
        return found

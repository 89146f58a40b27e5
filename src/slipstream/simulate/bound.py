"""A lower bound on the makespan of a workload, for any policy. `docs/dispatch.md` derives it.

Input: a workload. Output: the bound, by resource. A job counts with what it does for certain (`certain`): what a
deadline may have cut short, or a group that is complete may have cancelled, is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slipstream.simulate.certain import Course, EngineWork, course_of
from slipstream.simulate.workload import HELD_OUT, SimMachine, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    engine_s: float
    cores_s: float
    sandboxes_s: float
    path_s: float
    """The longest job, alone on the machine."""
    deadlines_s: float
    """The earliest time at which deadlines can have cut what the others leave out."""

    @property
    def uncapped_s(self) -> float:
        """Without a cap on sandboxes."""
        return max(self.engine_s, self.cores_s, self.path_s, self.deadlines_s)

    @property
    def lower_bound_s(self) -> float:
        return max(self.uncapped_s, self.sandboxes_s)


Group = tuple[Sequence[Course], int]
"""Jobs, and how many of them may be cancelled as the others are enough."""


def bound(workload: Workload) -> Bound:
    """The bound with the cap on sandboxes; `uncapped` for a policy that has none."""
    return _bound(workload, capped=True)


def uncapped_bound(workload: Workload) -> Bound:
    """The bound of a policy without a cap on sandboxes."""
    return _bound(workload, capped=False)


def _bound(workload: Workload, *, capped: bool) -> Bound:
    """A deadline can have cut a job short only if so much time has passed. So either the run ended before the first
    such time, and all is done that is to be done; or after it, and what may have been cut by the second is not counted;
    and so on. The later, the less is counted: the bound is the earliest time that is consistent."""
    groups = _groups(workload)
    times = sorted({cut.time_s for courses, _ in groups for course in courses for cut in course.cuts} | {0.0})

    def after(place: int) -> Bound:
        """If the run ended after the time at `place`, and not after the next one."""
        until_s = times[place + 1] if place + 1 < len(times) else math.inf
        return _without_cuts(workload, groups, until_s, times[place], capped)

    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if after(middle).lower_bound_s <= times[middle + 1]:
            high = middle
        else:
            low = middle + 1
    return after(low)


def _groups(workload: Workload) -> list[Group]:
    """Of each group as many may be cancelled as are more than enough; other jobs are groups of their own."""
    if workload.keep is None:
        return [([course_of(workload, job) for job in workload.jobs], 0)]
    found: list[Group] = []
    members: defaultdict[tuple[int, str], list[Course]] = defaultdict(list)
    for job in workload.jobs:
        course = course_of(workload, job)
        if job.phase == HELD_OUT:
            found.append(([course], 0))
        else:
            members[job.step, job.task].append(course)
    return found + [(courses, max(0, len(courses) - workload.keep)) for courses in members.values()]


def _without_cuts(workload: Workload, groups: Sequence[Group], by_s: float, since_s: float, capped: bool) -> Bound:
    """What remains if all deadlines that pass before `by_s` have cut what they could."""

    def least(value: Callable[[Course], float]) -> float:
        return sum(_least(map(value, courses), spare) for courses, spare in groups)

    paths = [
        sorted(course.life_s if course.is_certain(by_s) else 0.0 for course in courses)[len(courses) - spare - 1]
        for courses, spare in groups
        if spare < len(courses)
    ]
    sandboxes_s = least(lambda course: course.least_sandbox_s(by_s)) / workload.machine.sandbox_cap
    return Bound(
        engine_s=_engine_s(workload, groups, by_s),
        cores_s=least(lambda course: course.least_cpu_s(by_s)) / workload.machine.cores,
        sandboxes_s=sandboxes_s if capped else 0.0,
        path_s=max(paths, default=0.0),
        deadlines_s=since_s,
    )


def _least(values: Iterable[float], spare: int) -> float:
    """The sum without the `spare` largest."""
    in_order = sorted(values)
    return sum(in_order[: len(in_order) - spare])


def _engine_s(workload: Workload, groups: Sequence[Group], by_s: float) -> float:
    """What the engines take, with the least time before the first call and after the last."""
    nothing = EngineWork()

    def least(value: Callable[[EngineWork], float]) -> float:
        return sum(
            _least((value(one.engine if one.is_certain(by_s) else nothing) for one in courses), spare)
            for courses, spare in groups
        )

    certain = [course for courses, _ in groups for course in courses if course.is_certain(by_s)]
    asking = [course for course in certain if course.before_s is not None]
    if not asking:
        return 0.0
    work = EngineWork(
        sampled=int(least(lambda one: one.sampled)),
        rows_s=least(lambda one: one.rows_s),
        held=least(lambda one: one.held),
        roots=least(lambda one: one.roots),
        fresh=least(lambda one: one.fresh),
        prefilled=least(lambda one: one.prefilled),
        # Which of a group are cancelled is open, and so is whose waits are left: none are counted.
        waits=[
            wait
            for courses, spare in groups
            if not spare
            for one in courses
            if one.is_certain(by_s)
            for wait in one.engine.waits
        ],
    )
    before_s = min(course.before_s for course in asking if course.before_s is not None)
    busy_s = least_busy_s(workload.machine, work) / workload.engines
    return before_s + busy_s + min(course.after_s for course in asking)


def least_busy_s(machine: SimMachine, work: EngineWork) -> float:
    """The shortest time in which one engine can do its work, if it never has to wait; engines that are alike share it.

    Each token that is sampled takes its row and the reading of its context, each step the reading of the weights, each
    prompt its prefill; the engine does one thing at a time. So T >= rows + prefill + N step, where N is the number of
    steps. All the while the cache, of K tokens, holds contexts: those that are sampled for, those that are computed,
    and those that wait for a tool. So K T >= the sum of all three over time. For one that waits and one that is
    computed that is known. A context that is sampled for is held for as long as its steps take, and a step takes longer
    the more others take part in it. With D tokens of n contexts in a step, the sum over all steps of
    D (step_s + n row_s + D token_s) is at least S step_s + (S^2 token_s + Q^2 row_s) / N, where S is the sum over all
    sampled tokens of the context held for them, and Q that of its square root (Cauchy's inequality: n D is at least the
    square of the sum of the n roots).

    More steps make the first larger and the second smaller: the least T is where they meet. But N is at least S / K,
    and at least the sampled tokens divided by the slots.

    An agent's context may also be evicted while it waits, and be computed again: that saves the most where the wait is
    longest. The bound is the smallest T over the number of longest waits that are avoided so, with the next one always
    free, since a part of it might be avoided. After its last turn no context needs to be kept.

    Of several engines, the sums over all obey the same inequalities for the sum of their times, which is at most
    their number times the longest.
    """
    spec = machine.engine
    cache = spec.kv_tokens
    rows = min(spec.slots or math.inf, spec.contexts or math.inf)
    waits = sorted(work.waits, reverse=True)
    kept = sum(seconds * tokens for seconds, tokens in waits)
    crowd = spec.step_s * (work.held * work.held * spec.token_s + work.roots * work.roots * spec.row_s)
    num_steps = max(work.held / cache, work.sampled / rows)
    best_s, fresh = math.inf, work.fresh
    for seconds, tokens in [*waits, (0.0, 0)]:
        kept -= seconds * tokens
        own_s = work.rows_s + fresh / spec.prefill_tokens_s
        token_seconds = max(0.0, kept) + work.prefilled / spec.prefill_tokens_s + work.held * spec.step_s
        meet_s = _solve(own_s, token_seconds, crowd, cache)
        best_s = min(best_s, max(own_s + spec.step_s * num_steps, meet_s))
        fresh += tokens
    return best_s


def _solve(own_s: float, token_seconds: float, crowd: float, cache: float) -> float:
    """The T with cache T = token_seconds + crowd / (T - own): the larger root of a quadratic equation."""
    apart = cache * own_s - token_seconds
    return (cache * own_s + token_seconds + math.sqrt(apart * apart + 4 * cache * crowd)) / (2 * cache)

"""Schedules for the dispatcher: what is drawn, how it is carried out on virtual time, and what has to hold of it.

`POLICIES` is the list of policies that the promises and causality are tested for: a new one is one more entry.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from slipstream.aio import task_group
from slipstream.dispatch.adaptive import Adaptive
from slipstream.dispatch.base import Deadlines, DispatchLimits, PacingGate, Retries, SchedulingPolicy, Stage
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.kv_gate import KvGate
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.errors import JournalError
from slipstream.placement.simulated import Fault, Part, Plan, SimulatedPlacement
from slipstream.record import MemoryJournal
from slipstream.seams import RolloutDone
from slipstream.types import EndReason, EngineLoad, Job, JobKey, Rollout, Span, SpanKind, Trust

# ---------------------------------------------------------------- policies


@dataclass(frozen=True, kw_only=True)
class PolicyCase:
    name: str
    drawn: st.SearchStrategy[SchedulingPolicy[Any]]
    """The policy with any settings that make sense."""
    keeps_nobody_waiting: Callable[[Any, "Moment", Stage], bool] | None = None
    """Whether it would let one more into a stage at a moment; None for a policy that may hold back as it sees fit."""
    kv_tokens: tuple[int, ...] = ()
    """Sizes of the cache that it goes by; none: it goes by no cache."""


def _bounded_lets_in(policy: Bounded, moment: "Moment", stage: Stage) -> bool:
    return stage is not Stage.INIT or moment.in_flight < policy.slots


def _pipeline_lets_in(policy: Pipeline, moment: "Moment", stage: Stage) -> bool:
    pools = {Stage.INIT: policy.init, Stage.RUN: policy.run, Stage.GRADE: policy.grade}
    return moment.inside[stage] < pools[stage]


_few = st.integers(1, 4)

POLICIES = [
    PolicyCase(name="batch", drawn=st.just(Batch()), keeps_nobody_waiting=lambda policy, moment, stage: True),
    PolicyCase(
        name="bounded", drawn=st.builds(Bounded, slots=st.integers(1, 6)), keeps_nobody_waiting=_bounded_lets_in
    ),
    PolicyCase(
        name="pipeline",
        drawn=st.builds(Pipeline, init=_few, run=_few, grade=_few),
        keeps_nobody_waiting=_pipeline_lets_in,
    ),
    PolicyCase(name="adaptive", drawn=st.builds(Adaptive), kv_tokens=(1, 100, 250, 1_000, 1_000_000)),
]

# ---------------------------------------------------------------- schedules

ROUNDING_S = 1e-9
"""Times at which the gate let somebody in are sums of others."""
ROOMY = Deadlines(init_s=50, run_s=500, grade_s=50, release_s=20, job_s=5_000, total_s=1e9, grace_s=5)


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job: what it weighs, when it is submitted, what each of its attempts does."""

    plans: tuple[Plan, ...]
    weight: int = 1
    memory_mb: int = 0
    cpus: float = 0.0
    after_s: float = 0.0
    """Since the one before."""
    cancelled_at_s: float | None = None

    def plan(self, number: int) -> Plan:
        return self.plans[min(number, len(self.plans)) - 1]


class RememberingGate(KvGate):
    """Knows of every job how long its agents were held, all attempts together."""

    def __init__(self, load: Callable[[], EngineLoad | None]) -> None:
        super().__init__(load)
        self.held: dict[JobKey, float] = {}

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None:
        self.held[key] = self.held.get(key, 0.0) + self.held_s(key)
        super().ended(key, left_behind=left_behind)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    orders: tuple[Order, ...]
    policy: SchedulingPolicy[Any] = Batch()
    case: PolicyCase = POLICIES[0]
    limits: DispatchLimits = DispatchLimits()
    deadlines: Deadlines = ROOMY
    retries: Retries = Retries()
    capacity: int = 65_536
    left_at_s: tuple[float, ...] = ()
    """When whoever waits for the run is cancelled, as often as is said."""
    fail_after_flushes: int | None = None
    kv_tokens: int | None = None

    def make_gate(self) -> PacingGate:
        if self.kv_tokens is None:
            return OpenGate()
        load = EngineLoad(running=0, waiting=0, kv_tokens=self.kv_tokens)
        return RememberingGate(lambda: load)

    @property
    def jobs(self) -> list[Job]:
        return [
            Job(
                key=JobKey(phase="eval", step=0, task_id=f"t{index}", sample=0),
                seed=index,
                weight=order.weight,
                memory_mb=order.memory_mb,
                cpus=order.cpus,
            )
            for index, order in enumerate(self.orders)
        ]

    @property
    def is_undisturbed(self) -> bool:
        """Whether nothing but faults of attempts can end a job."""
        return self.deadlines == ROOMY and not any(order.cancelled_at_s is not None for order in self.orders)


@dataclass
class Outcome:
    schedule: Schedule
    gate: PacingGate
    placement: SimulatedPlacement
    journal: MemoryJournal
    out: list[tuple[float, Rollout]] = field(default_factory=list)
    error: str = ""
    asked_to_cancel: set[str] = field(default_factory=set)
    """Tasks whose job was cancelled besides what the schedule says."""
    submitted_s: dict[JobKey, float] = field(default_factory=dict)
    num_alive: int = 0
    """Tasks of the dispatcher that outlived it,"""
    num_abandoned: int = 0
    """and those of them that it had to leave behind."""

    def held_s(self, key: JobKey) -> float:
        return self.gate.held.get(key, 0.0) if isinstance(self.gate, RememberingGate) else 0.0

    @property
    def is_whole(self) -> bool:
        return not self.error

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for _, rollout in self.out]


_CALLED = (Fault.RAISE, Fault.CRASH, Fault.EXIT, Fault.CANCEL)


def faults(num_without: int, kinds: Sequence[Fault] = tuple(Fault)) -> st.SearchStrategy[Fault | None]:
    """A fault, or none: `num_without` to one of each kind; 0 is never one."""
    return st.sampled_from([*[None] * num_without, *kinds]) if num_without else st.none()


def draw_plans(num_without: int) -> st.SearchStrategy[Plan]:
    def part(*seconds: float) -> st.SearchStrategy[Part]:
        return st.builds(Part, seconds=st.sampled_from(seconds), fault=faults(num_without))

    called = faults(num_without, _CALLED)
    return st.builds(
        Plan,
        init=part(0.0, 1.0, 7.0),
        run=part(0.5, 1.0, 7.0, 30.0),
        release=part(0.0, 0.0, 1.0),
        grade=part(0.0, 1.0, 1.0, 7.0),
        close=part(0.0, 0.0, 0.5),
        grade_weight=st.sampled_from([0, 1, 1, 2, 2, 9]),
        turns=st.sampled_from([1, 2, 4]),  # so that times stay exact
        tokens=st.sampled_from([0, 10, 100]),
        open_fault=called,
        weigh_fault=called,
        as_ended_fault=called,
    )


def draw_orders(num_without: int, *, cancels: bool) -> st.SearchStrategy[Order]:
    moments_s = [*[None] * 3, 0.0, 0.25, 1.0, 3.0, 7.5] if cancels else [None]
    return st.builds(
        Order,
        plans=st.lists(draw_plans(num_without), min_size=1, max_size=3 if num_without else 1).map(tuple),
        weight=st.sampled_from([0, 1, 1, 1, 2]),
        memory_mb=st.sampled_from([0, 0, 512, 1024]),
        cpus=st.sampled_from([0.0, 0.25, 1.0]),
        after_s=st.sampled_from([0.0, 0.0, 0.0, 0.5, 7.0]),
        cancelled_at_s=st.sampled_from(moments_s),
    )


limits = st.builds(
    DispatchLimits,
    sandboxes=st.sampled_from([None, 2, 2, 3]),
    memory_mb=st.sampled_from([None, None, None, 1024, 1500]),
    cpus=st.sampled_from([None, None, None, 1.0, 1.5]),
    init=st.sampled_from([None, None, 1, 3]),
    run=st.sampled_from([None, None, 1, 3]),
    grade=st.sampled_from([None, None, 1, 3]),
)

tight_deadlines = st.builds(
    Deadlines,
    init_s=st.sampled_from([0.5, 10.0]),
    run_s=st.sampled_from([0.75, 20.0]),
    grade_s=st.sampled_from([0.5, 10.0]),
    release_s=st.sampled_from([0.25, 5.0]),
    job_s=st.sampled_from([1.0, 9.0, 60.0]),
    total_s=st.sampled_from([3.0, 9.0, 1e9]),
    grace_s=st.sampled_from([0.0, 2.0]),
)


class Theme(StrEnum):
    """What disturbs a schedule besides the faults of its attempts."""

    NOTHING = "nothing"
    DEADLINES = "deadlines"
    CANCELS = "cancels"
    BOTH = "both"
    LEFT = "left"
    JOURNAL = "journal"


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    theme = draw(st.sampled_from([Theme.NOTHING, *Theme]))
    case = draw(st.sampled_from(POLICIES))
    each = draw_orders(draw(st.sampled_from([0, 40, 100])), cancels=theme in (Theme.CANCELS, Theme.BOTH))
    times = st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 11.0]), min_size=1, max_size=3)
    return Schedule(
        orders=tuple(draw(st.lists(each, min_size=1, max_size=8))),
        policy=draw(case.drawn),
        case=case,
        limits=draw(limits),
        deadlines=draw(tight_deadlines) if theme in (Theme.DEADLINES, Theme.BOTH) else ROOMY,
        retries=draw(st.builds(Retries, attempts=st.integers(1, 3), grades=st.integers(1, 3))),
        capacity=draw(st.sampled_from([1, 3, 65_536])),
        left_at_s=tuple(draw(times)) if theme is Theme.LEFT else (),
        fail_after_flushes=draw(st.integers(0, 5)) if theme is Theme.JOURNAL else None,
        kv_tokens=draw(st.sampled_from([None, *case.kv_tokens])),
    )


# ---------------------------------------------------------------- carrying out


@asynccontextmanager
async def opened(outcome: Outcome) -> AsyncIterator[Dispatcher]:
    schedule = outcome.schedule
    dispatcher = Dispatcher(
        outcome.placement,
        policy=schedule.policy,
        gate=outcome.gate,
        journal=outcome.journal,
        limits=schedule.limits,
        deadlines=schedule.deadlines,
        retries=schedule.retries,
        capacity=schedule.capacity,
    )
    before = asyncio.all_tasks()
    try:
        async with dispatcher:
            yield dispatcher
            view = dispatcher.view()
            counts = (view.waiting, view.initialising, view.ready, view.running, view.ended, view.grading)
            assert counts == (0,) * 6, view
            assert (view.in_flight, view.live, view.done) == (0, 0, len(outcome.out)), view
    finally:
        outcome.num_alive = len(asyncio.all_tasks() - before)
        outcome.num_abandoned = dispatcher.view().abandoned


async def attend(outcome: Outcome, on_open: Callable[[Dispatcher], object] = lambda dispatcher: None) -> None:
    """Submit, cancel and take out as the schedule says, until everything is out."""
    loop, schedule = asyncio.get_running_loop(), outcome.schedule

    async def feed(dispatcher: Dispatcher) -> None:
        for order, job in zip(schedule.orders, schedule.jobs, strict=True):
            await asyncio.sleep(order.after_s)
            await dispatcher.submit(job)
            outcome.submitted_s[job.key] = loop.time()
        dispatcher.close()

    async def cancel(dispatcher: Dispatcher, key: JobKey, at_s: float) -> None:
        await asyncio.sleep(at_s)
        dispatcher.cancel(key)

    async with opened(outcome) as dispatcher, task_group() as group:
        on_open(dispatcher)
        for order, job in zip(schedule.orders, schedule.jobs, strict=True):
            if order.cancelled_at_s is not None:
                group.create_task(cancel(dispatcher, job.key, order.cancelled_at_s))
        group.create_task(feed(dispatcher))
        async for rollout in dispatcher.finished():
            outcome.out.append((loop.time(), rollout))


def new_outcome(schedule: Schedule) -> Outcome:
    gate = schedule.make_gate()
    return Outcome(
        schedule=schedule,
        gate=gate,
        placement=SimulatedPlacement(lambda job, number: schedule.orders[job.seed].plan(number), gate=gate),
        journal=MemoryJournal(fail_after_flushes=schedule.fail_after_flushes),
    )


async def carry_out(schedule: Schedule) -> Outcome:
    outcome = new_outcome(schedule)
    attending = asyncio.create_task(attend(outcome))
    for at_s in schedule.left_at_s:
        await asyncio.wait({attending}, timeout=at_s)
        attending.cancel()
    await note_the_end(outcome, attending, may_be_left=bool(schedule.left_at_s))
    return outcome


async def note_the_end(outcome: Outcome, attending: "asyncio.Task[None]", *, may_be_left: bool = True) -> None:
    await asyncio.wait({attending})
    if attending.cancelled() and may_be_left:
        outcome.error = "left"
        return
    try:
        attending.result()
    except JournalError:
        if outcome.schedule.fail_after_flushes is None:
            raise
        outcome.error = "journal"


# ---------------------------------------------------------------- what has to hold


def check(outcome: Outcome) -> None:
    """All promises, of a run that is over."""
    check_everything_left_once(outcome)
    check_nothing_is_alive(outcome)
    check_limits(outcome)
    check_deadlines(outcome)
    check_cancels(outcome)
    check_retries(outcome)
    check_trust(outcome)
    for left_at_s, rollout in outcome.out:
        check_spans(rollout, left_at_s)
    if outcome.is_whole:
        check_grades_go_first(outcome)
        check_nobody_waits_without_reason(outcome)
        if outcome.schedule.is_undisturbed and not outcome.asked_to_cancel:
            check_endings(outcome)


def check_everything_left_once(outcome: Outcome) -> None:
    keys = Counter(rollout.job.key for rollout in outcome.rollouts)
    recorded = Counter(event.rollout.job.key for event in outcome.journal.events() if isinstance(event, RolloutDone))
    assert not keys - recorded, "given out before it was durable"
    assert all(number == 1 for number in (keys + Counter()).values()) and max(recorded.values(), default=1) == 1
    if outcome.is_whole:
        assert keys == recorded == Counter(job.key for job in outcome.schedule.jobs)


def check_nothing_is_alive(outcome: Outcome) -> None:
    usage = outcome.placement.usage
    assert (usage.live, usage.memory_mb, usage.cpus) == (0, 0, 0.0)
    assert outcome.num_alive <= outcome.num_abandoned
    plans = [plan for order in outcome.schedule.orders for plan in order.plans]
    parts = [part for plan in plans for part in (plan.init, plan.run, plan.release, plan.grade, plan.close)]
    if not any(part.fault in (Fault.DEAF, Fault.SLOW_TO_END) for part in parts):
        assert outcome.num_abandoned == 0


def check_limits(outcome: Outcome) -> None:
    asked, usage = outcome.schedule.limits, outcome.placement.usage
    assert asked.sandboxes is None or usage.peak_live <= asked.sandboxes
    assert asked.memory_mb is None or usage.peak_memory_mb <= asked.memory_mb
    assert asked.cpus is None or usage.peak_cpus <= asked.cpus
    for moment in moments(outcome):
        for stage, cap in ((Stage.INIT, asked.init), (Stage.RUN, asked.run), (Stage.GRADE, asked.grade)):
            assert cap is None or moment.inside[stage] <= cap, (stage, moment)


def check_deadlines(outcome: Outcome) -> None:
    asked = outcome.schedule.deadlines
    allowed_s = {SpanKind.INIT: asked.init_s, SpanKind.RUN: asked.run_s, SpanKind.GRADE: asked.grade_s}
    clean_up_s = 3 * (asked.release_s + asked.grace_s)
    for left_at_s, rollout in outcome.out:
        begun_s = min((span.start_s for span in rollout.spans if span.kind is SpanKind.INIT), default=left_at_s)
        ends_s = min(begun_s + asked.job_s, max(asked.total_s, outcome.submitted_s[rollout.job.key]))
        for span in rollout.spans:
            if span.kind in allowed_s:
                held_s = outcome.held_s(rollout.job.key) if span.kind is SpanKind.RUN else 0.0
                assert span.seconds <= allowed_s[span.kind] + held_s + asked.grace_s + ROUNDING_S
                assert span.start_s <= ends_s
        assert left_at_s <= ends_s + asked.grace_s + 2 * clean_up_s
        if rollout.ending.reason is EndReason.WAITED:
            assert rollout.spans[-1].kind in _WAIT.values() or rollout.spans[-1].kind is SpanKind.RELEASE
            assert any(span.seconds > 0 for span in rollout.spans if span.kind in _WAIT.values())


def check_cancels(outcome: Outcome) -> None:
    """Whoever is cancelled comes out as such, soon; unless it was at its end."""
    asked = outcome.schedule.deadlines
    for left_at_s, rollout in outcome.out:
        at_s = outcome.schedule.orders[rollout.job.seed].cancelled_at_s
        if at_s is None:
            continue
        since_s = max(at_s, outcome.submitted_s[rollout.job.key])
        assert left_at_s <= since_s + asked.grace_s + 3 * (asked.release_s + asked.grace_s)
        if left_at_s > at_s or outcome.submitted_s[rollout.job.key] > at_s:
            late = rollout.ending.detail == "the run's deadline passed"
            assert rollout.ending.reason is EndReason.CANCELLED or late, rollout


def check_retries(outcome: Outcome) -> None:
    retries = outcome.schedule.retries
    for key, number in Counter(key for key, _ in outcome.placement.started).items():
        assert number <= retries.attempts, key
    assert len(set(outcome.placement.started)) == len(outcome.placement.started)
    for rollout in outcome.rollouts:
        gradings = Counter(failure.attempt for failure in rollout.failures if failure.stage == "grade")
        assert max(gradings.values(), default=0) <= retries.grades
        assert {failure.attempt for failure in rollout.failures} <= set(range(1, rollout.attempt + 1))


def check_trust(outcome: Outcome) -> None:
    for rollout in outcome.rollouts:
        order = outcome.schedule.orders[rollout.job.seed]
        assert (rollout.verdict is not None) == rollout.trust.graded == (rollout.trust is Trust.TRUSTED)
        if rollout.ending.reason is EndReason.CANCELLED:
            assert order.cancelled_at_s is not None or rollout.job.key.task_id in outcome.asked_to_cancel
        elif rollout.trust is Trust.UNTRUSTED:
            assert rollout.failures or rollout.ending.detail == "the run's deadline passed"
        else:
            assert rollout.ending.reason is EndReason.FINISHED


_ORDER = (
    SpanKind.WAIT_INIT,
    SpanKind.INIT,
    SpanKind.WAIT_RUN,
    SpanKind.RUN,
    SpanKind.RELEASE,
    SpanKind.WAIT_GRADE,
    SpanKind.GRADE,
)


def check_spans(rollout: Rollout, left_at_s: float) -> None:
    for span in rollout.spans:
        assert 0 <= span.start_s <= span.end_s <= left_at_s, span
    for before, after in pairwise(rollout.spans):
        assert before.end_s <= after.start_s, "one thing after the other"
        assert before.attempt <= after.attempt
        if before.attempt == after.attempt:
            graded_again = (before.kind, after.kind) == (SpanKind.GRADE, SpanKind.WAIT_GRADE)
            assert graded_again or _ORDER.index(before.kind) < _ORDER.index(after.kind)


def check_endings(outcome: Outcome) -> None:
    """What every job comes to can be told from its plans alone, however the others fare."""
    for rollout in outcome.rollouts:
        assert (rollout.ending.reason, rollout.attempt) == foretold(outcome.schedule, rollout.job), rollout


_SUDDEN = (Fault.RAISE, Fault.CRASH, Fault.EXIT, Fault.CANCEL, Fault.DIE)


def foretold(schedule: Schedule, job: Job) -> tuple[EndReason, int]:
    """Why a job ends, and with which attempt, if nobody cancels it and its own deadline is far."""
    last = EndReason.INFRASTRUCTURE
    for number in range(1, schedule.retries.attempts + 1):
        plan = schedule.orders[job.seed].plan(number)
        if plan.open_fault is not None or plan.init.fault in _SUDDEN:
            last = EndReason.INFRASTRUCTURE
        elif plan.init.fault is not None:
            last = EndReason.DEADLINE
        elif plan.run.fault in _SUDDEN:
            last = EndReason.INFRASTRUCTURE
        elif plan.run.fault is not None:
            return EndReason.DEADLINE, number
        else:
            cap = schedule.limits.sandboxes
            cannot = plan.weigh_fault or plan.grade.fault or (cap is not None and plan.grade_weight > cap)
            return EndReason.NO_VERDICT if cannot else EndReason.FINISHED, number
    return last, schedule.retries.attempts


# ---------------------------------------------------------------- moments


@dataclass(frozen=True, kw_only=True)
class Waiting:
    since_s: float
    weight: int
    job: Job


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What was the case between two instants at which something happened."""

    from_s: float
    until_s: float
    inside: dict[Stage, int]
    in_flight: int
    sandboxes: int
    memory_mb: int
    cpus: float
    waiting: dict[Stage, list[Waiting]]

    def fits(self, one: Waiting, asked: DispatchLimits) -> bool:
        if one.weight == 0:
            return True
        return (
            (asked.sandboxes is None or self.sandboxes + one.weight <= asked.sandboxes)
            and (
                asked.memory_mb is None
                or not one.job.memory_mb
                or self.memory_mb + one.job.memory_mb <= asked.memory_mb
            )
            and (asked.cpus is None or not one.job.cpus or self.cpus + one.job.cpus <= asked.cpus)
        )


def moments(outcome: Outcome) -> Iterator[Moment]:
    """From the spans of what came out."""
    instants = sorted({instant for rollout in outcome.rollouts for span in rollout.spans for instant in _ends(span)})
    for before, after in pairwise(instants):
        yield _moment(outcome, before, after)


def _ends(span: Span) -> tuple[float, float]:
    return span.start_s, span.end_s


_WORK = {Stage.INIT: SpanKind.INIT, Stage.RUN: SpanKind.RUN, Stage.GRADE: SpanKind.GRADE}
_WAIT = {Stage.INIT: SpanKind.WAIT_INIT, Stage.RUN: SpanKind.WAIT_RUN, Stage.GRADE: SpanKind.WAIT_GRADE}


def _closing(outcome: Outcome, rollout: Rollout, at_s: float, left_at_s: float) -> list[tuple[int, Job]]:
    """What a grading that was cancelled or abandoned may hold until all of the attempt is closed, which has no span."""
    last = rollout.spans[-1] if rollout.spans else None
    if last is None or last.kind is not SpanKind.GRADE or not last.end_s < at_s < left_at_s:
        return []
    plan = outcome.schedule.orders[rollout.job.seed].plan(last.attempt)
    return [(plan.grade_weight, rollout.job)] if rollout.ending.reason is not EndReason.FINISHED else []


def _moment(outcome: Outcome, from_s: float, until_s: float) -> Moment:
    at_s = (from_s + until_s) / 2
    inside, waiting = dict.fromkeys(Stage, 0), {stage: list[Waiting]() for stage in Stage}
    held: list[tuple[int, Job]] = []
    in_flight = 0
    for left_at_s, rollout in outcome.out:
        closing = _closing(outcome, rollout, at_s, left_at_s)
        held += closing
        in_flight += len(closing)
        now = [span for span in rollout.spans if span.start_s < at_s < span.end_s]
        for span in now:
            plan = outcome.schedule.orders[rollout.job.seed].plan(span.attempt)
            for stage in Stage:
                inside[stage] += span.kind is _WORK[stage]
                if span.kind is _WAIT[stage]:
                    weight = {Stage.INIT: rollout.job.weight, Stage.RUN: 0, Stage.GRADE: plan.grade_weight}[stage]
                    waiting[stage].append(Waiting(since_s=span.start_s, weight=weight, job=rollout.job))
            if span.kind in (SpanKind.INIT, SpanKind.WAIT_RUN, SpanKind.RUN, SpanKind.RELEASE):
                held.append((rollout.job.weight, rollout.job))
            if span.kind is SpanKind.GRADE:
                held.append((plan.grade_weight, rollout.job))
            in_flight += span.kind is not SpanKind.WAIT_INIT
    held = [(weight, job) for weight, job in held if weight]
    return Moment(
        from_s=from_s,
        until_s=until_s,
        inside=inside,
        in_flight=in_flight,
        sandboxes=sum(weight for weight, _ in held),
        memory_mb=sum(job.memory_mb for _, job in held),
        cpus=sum(job.cpus for _, job in held),
        waiting=waiting,
    )


def check_nobody_waits_without_reason(outcome: Outcome) -> None:
    """A failure in one job never delays another: whoever waits does so for a limit or for the policy."""
    if outcome.schedule.case.keeps_nobody_waiting is None:
        return
    for moment in moments(outcome):
        for stage in Stage:
            if moment.waiting[stage] and has_room(outcome.schedule, moment, stage):
                lacks = not firsts_fit(outcome.schedule, moment, stage)
                yields = stage is Stage.INIT and not (
                    not moment.waiting[Stage.GRADE]
                    or not has_room_by_limit(outcome.schedule, moment, Stage.GRADE)
                    or firsts_fit(outcome.schedule, moment, Stage.GRADE)
                )
                assert lacks or yields, (stage, moment)


def check_grades_go_first(outcome: Outcome) -> None:
    """No initialisation begins while a grade waits that lacks nothing but a sandbox."""
    if outcome.schedule.case.keeps_nobody_waiting is None:
        return
    spans = [span for rollout in outcome.rollouts for span in rollout.spans]
    begun = {kind: {span.start_s for span in spans if span.kind is kind} for kind in (SpanKind.INIT, SpanKind.GRADE)}
    for before, after in pairwise(moments(outcome)):
        if all(is_starved(outcome.schedule, moment, Stage.GRADE) for moment in (before, after)):
            instant = before.until_s
            assert instant not in begun[SpanKind.INIT] or instant in begun[SpanKind.GRADE], after


def has_room_by_limit(schedule: Schedule, moment: Moment, stage: Stage) -> bool:
    cap = {Stage.INIT: schedule.limits.init, Stage.RUN: schedule.limits.run, Stage.GRADE: schedule.limits.grade}[stage]
    return cap is None or moment.inside[stage] < cap


def has_room(schedule: Schedule, moment: Moment, stage: Stage) -> bool:
    """Whether the stage's own limit and the policy would let one more in."""
    lets_in = schedule.case.keeps_nobody_waiting
    by_policy = lets_in is None or lets_in(schedule.policy, moment, stage)
    return by_policy and has_room_by_limit(schedule, moment, stage)


def firsts_fit(schedule: Schedule, moment: Moment, stage: Stage) -> bool:
    """Whether all that may be the first in the queue have room: among those that came at one instant, any may be."""
    since_s = min(one.since_s for one in moment.waiting[stage])
    return all(moment.fits(one, schedule.limits) for one in moment.waiting[stage] if one.since_s == since_s)


def is_starved(schedule: Schedule, moment: Moment, stage: Stage) -> bool:
    if not moment.waiting[stage] or not has_room(schedule, moment, stage):
        return False
    since_s = min(one.since_s for one in moment.waiting[stage])
    return not any(moment.fits(one, schedule.limits) for one in moment.waiting[stage] if one.since_s == since_s)

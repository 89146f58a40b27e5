import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_stage import MACHINE, Way, capped, job, turns, ways, workload, workloads

from slipstream.dispatch.base import Deadlines, DispatchLimits, PacingGate, SchedulingPolicy
from slipstream.dispatch.policies import Batch, Bounded
from slipstream.errors import ConfigError
from slipstream.seams import TurnPass
from slipstream.simulate.run import Load, Trace, adaptive, key_of, open_gate, simulate, trace
from slipstream.simulate.workload import Chore, SimJob, SimTurn, Workload
from slipstream.types import EndReason, JobKey

# ---------------------------------------------------------------- outcomes


def test_an_outcome_by_hand() -> None:
    """Two jobs in two slots: each 1 s, then 200 tokens of prompt one after the other, 100 of reply, 2 s."""
    jobs = [job(sample=n, prompt=200, turns=(SimTurn(sampled=100),), init=Chore(wait_s=1.0)) for n in range(2)]
    jobs = [replace(one, grade=Chore(wait_s=2.0)) for one in jobs]
    outcome = simulate(workload(*jobs), open_gate(Bounded(slots=2)), DispatchLimits(sandboxes=4))
    # The second's prompt takes 0.4 s, as the first is being answered: it ends at 1.6 s, when 20 tokens are sampled.
    assert outcome.makespan_s == pytest.approx(1 + 0.2 + 0.4 + 1.0 + 2)
    assert outcome.rollouts_per_s == pytest.approx(2 / 4.6)
    assert outcome.engine_use == pytest.approx(1.4 / 4.6)
    assert (outcome.peak_live, outcome.reprefill_tokens, outcome.num_trusted) == (2, 0, 2)


def test_with_one_slot_jobs_go_one_by_one() -> None:
    jobs = [job(sample=n, grade=Chore(cpu_s=3.0), init=Chore(cpu_s=1.0)) for n in range(3)]
    found = trace(workload(*jobs), open_gate(Bounded(slots=1)), DispatchLimits(sandboxes=4))
    assert found.outcome.makespan_s == pytest.approx(3 * 4.2)
    assert [stage for _, _, stage in found.starts] == ["init", "run", "grade"] * 3
    assert found.outcome.peak_live == 1


def test_a_context_that_was_pushed_out_is_paid_again() -> None:
    jobs = [job(sample=n, prompt=600, turns=(SimTurn(sampled=10, tool_s=9.0), SimTurn(sampled=10))) for n in range(2)]
    assert simulate(workload(*jobs), open_gate(Batch()), DispatchLimits()).reprefill_tokens == 2 * 610
    dear = replace(MACHINE, engine=replace(MACHINE.engine, prefill_tokens_s=50.0))
    assert simulate(workload(*jobs, machine=dear), adaptive, DispatchLimits()).reprefill_tokens == 0


def test_adaptive_keeps_no_context_through_a_wait_that_is_dearer_than_to_compute_it_again() -> None:
    """Six agents, of which two fit, whose tools take ten minutes: all wait side by side."""
    plan = (SimTurn(sampled=10, tool_s=600.0),) * 4
    jobs = [job(f"t{n}", prompt=400, turns=plan) for n in range(6)]
    one = workload(*jobs, machine=replace(MACHINE, sandbox_cap=6))
    outcome = simulate(one, adaptive, capped(one))
    assert outcome.reprefill_tokens > 0
    assert outcome.makespan_s < 1.01 * simulate(one, open_gate(Bounded(slots=6)), capped(one)).makespan_s


def test_what_an_agent_that_ended_had_in_the_cache_is_room_at_once() -> None:
    comes_back = job("a", prompt=300, turns=(SimTurn(sampled=10, tool_s=30.0), SimTurn(sampled=10)))
    ends = job("b", prompt=300, init=Chore(wait_s=5.0))
    needs_room = job("c", prompt=500, init=Chore(wait_s=10.0))
    assert simulate(workload(comes_back, ends, needs_room), open_gate(Batch()), DispatchLimits()).reprefill_tokens == 0


def test_jobs_of_a_step_wait_until_the_steps_before_are_back() -> None:
    jobs = [job(step=step, sample=n, grade=Chore(wait_s=10.0 * (1 + n))) for step in range(4) for n in range(2)]
    found = trace(workload(*jobs, staleness=1), open_gate(Batch()), DispatchLimits())
    begun = {step: min(at_s for at_s, key, stage in found.starts if key.step == step) for step in range(4)}
    back = {rollout.job.key.step: rollout.spans[-1].end_s for rollout in found.rollouts}
    assert (begun[0], begun[1]) == (0, 0)
    assert begun[2] == pytest.approx(back[0], abs=0.5) and begun[2] > 20
    assert begun[3] >= begun[2]
    together = trace(workload(*jobs), open_gate(Batch()), DispatchLimits())
    assert {at_s for at_s, _, stage in together.starts if stage == "init"} == {0.0}


@pytest.mark.parametrize("steps", [(0, 1), (0, 3), ()])
def test_a_held_out_job_of_a_step_that_no_update_comes_to_is_run_at_the_next_one(steps: tuple[int, ...]) -> None:
    training = [job(step=step, grade=Chore(wait_s=10.0)) for step in steps]
    asked = [replace(job(f"h{step}", step=step), phase="held_out") for step in (0, 1, 2, 9)]
    one = replace(workload(*training, *asked, staleness=0), update_s=(5.0,) * len(steps))
    found = trace(one, open_gate(Batch()), DispatchLimits())
    assert len(found.rollouts) == len(one.jobs)
    begun = {key.step: at_s for at_s, key, stage in found.starts if stage == "init" and key.phase == "held_out"}
    assert begun[0] == 0.0
    if steps:
        assert begun[1] == begun[steps[1]] if steps[1] in begun else begun[1] > 15.0
        assert begun[9] > 30.0, "after the last update"


def test_two_jobs_with_one_key_are_refused() -> None:
    with pytest.raises(ConfigError, match="the same step, task and sample"):
        simulate(workload(job(), job()), adaptive, DispatchLimits())


def test_faults_come_half_way_and_are_tried_again() -> None:
    machine = replace(MACHINE, deadlines=Deadlines(init_s=30, run_s=40, grade_s=50, job_s=1e6, total_s=1e6))
    slow = Chore(wait_s=8.0)

    def end(faults: dict[str, Any]) -> tuple[float, EndReason, bool]:
        found = trace(workload(job(init=slow, grade=slow, faults=faults), machine=machine), adaptive, DispatchLimits())
        rollout = found.rollouts[0]
        return round(found.outcome.makespan_s, 6), rollout.ending.reason, rollout.verdict is not None

    four = (SimTurn(sampled=10, tool_s=5.0),) * 4
    failing = job(turns=four, faults={"1 run": "raise"})
    found = trace(workload(failing, machine=machine), adaptive, DispatchLimits())
    assert found.outcome.makespan_s == pytest.approx(0.1 + 2 * 5.1 + 0.1 + 4 * 5.1), "two turns, and then all four"
    finished = EndReason.FINISHED
    assert end({}) == (16.2, finished, True)
    assert end({"1 init": "raise"}) == (16.2 + 4, finished, True)
    assert end({"1 init": "hang"}) == (16.2 + 30, finished, True)
    assert end({"1 grade": "lose", "2 grade": "raise"})[2] is False, "an attempt's gradings share its faults"
    assert end({"1 run": "hang"}) == (8 + 40, EndReason.DEADLINE, False)
    assert end({f"{attempt} init": "raise" for attempt in (1, 2, 3)})[1:] == (EndReason.INFRASTRUCTURE, False)


# ---------------------------------------------------------------- anything


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(workloads(with_faults=True), ways)
def test_the_same_workload_takes_the_same_course(drawn: Workload, way: Way) -> None:
    first = trace(drawn, way.make, capped(drawn))
    assert trace(drawn, way.make, capped(drawn)) == first


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(workloads(with_faults=True), ways)
def test_whatever_fails_all_jobs_leave_once_and_never_over_the_cap(drawn: Workload, way: Way) -> None:
    found = trace(drawn, way.make, capped(drawn))
    assert found.outcome.peak_live <= drawn.machine.sandbox_cap
    assert sorted(rollout.job.key for rollout in found.rollouts) == sorted(key_of(one) for one in drawn.jobs)
    for rollout in found.rollouts:
        if not next(one.faults for one in drawn.jobs if key_of(one) == rollout.job.key):
            assert rollout.verdict is not None, rollout


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(workloads())
def test_adaptive_ends_where_the_engine_reports_nothing(drawn: Workload) -> None:
    silent = replace(drawn.machine, engine=replace(drawn.machine.engine, reports=False))
    outcome = simulate(replace(drawn, machine=silent), adaptive, capped(drawn))
    assert outcome.num_trusted == len(drawn.jobs)
    assert outcome.peak_live <= drawn.machine.sandbox_cap


# ---------------------------------------------------------------- causality


@dataclass
class Watched:
    """A gate that notes who asks for a turn, and who gets one."""

    inner: PacingGate
    asked: list[tuple[float, JobKey]] = field(default_factory=list)
    begun: list[tuple[float, JobKey]] = field(default_factory=list)

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        loop = asyncio.get_running_loop()
        self.asked.append((loop.time(), key))
        async with self.inner.turn(key, num_context_tokens, nested=nested) as passed:
            self.begun.append((loop.time(), key))
            yield passed

    def room(self) -> int | None:
        return self.inner.room()

    def held_s(self, key: JobKey) -> float:
        return self.inner.held_s(key)

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None:
        self.inner.ended(key, left_behind=left_behind)

    def on_room(self, told: Callable[[], None]) -> None:
        self.inner.on_room(told)


def watch(of: Workload) -> tuple[Trace, Watched]:
    seen: list[Watched] = []

    def make(load: Load) -> tuple[SchedulingPolicy[Any], PacingGate]:
        policy, gate = adaptive(load)
        seen.append(Watched(gate))
        return policy, seen[0]

    return trace(of, make, capped(of)), seen[0]


def until(fork_s: float, found: Trace, gate: Watched) -> list[tuple[Any, ...]]:
    """What was begun before a time, in order."""
    return [each for each in [*found.starts, *[(at_s, key, "turn") for at_s, key in gate.begun]] if each[0] < fork_s]


@dataclass(frozen=True, kw_only=True)
class Future:
    prompt: int
    turns: tuple[SimTurn, ...]
    chore: Chore


futures = st.builds(
    Future,
    prompt=st.sampled_from([1, 700]),
    turns=st.lists(turns, min_size=1, max_size=3).map(tuple),
    chore=st.builds(Chore, wait_s=st.sampled_from([0.0, 40.0])),
)


def otherwise(one: SimJob, num_asked: int, is_graded: bool, is_begun: bool, future: Future) -> SimJob:
    """The same job up to the fork; what had not begun by then is as in another future."""
    if num_asked == 0:
        one = replace(one, turns=future.turns, prompt=future.prompt)
    elif num_asked < len(one.turns):
        one = replace(one, turns=one.turns[:num_asked] + future.turns[1:])
    if not is_graded:
        one = replace(one, grade=future.chore)
    return one if is_begun else replace(one, init=future.chore)


def forked(of: Workload, fork_s: float, found: Trace, gate: Watched, drawn: Sequence[Future]) -> Workload:
    begun = {(key, stage) for at_s, key, stage in found.starts if at_s < fork_s}
    asked = [key for at_s, key in gate.asked if at_s < fork_s]
    jobs = []
    for index, one in enumerate(of.jobs):
        key = key_of(one)
        future = drawn[index % len(drawn)]
        jobs.append(otherwise(one, asked.count(key), (key, "grade") in begun, (key, "init") in begun, future))
    return replace(of, jobs=tuple(jobs))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(workloads(), st.lists(futures, min_size=1, max_size=4), st.floats(0.05, 0.95))
def test_adaptive_decides_the_same_before_two_workloads_differ(
    drawn: Workload, other: list[Future], share: float
) -> None:
    # In either future all fits: a cache of another size would be another machine.
    roomy = replace(drawn.machine, engine=replace(drawn.machine.engine, kv_tokens=4_000))
    drawn = replace(drawn, machine=roomy)
    found, gate = watch(drawn)
    fork_s = share * found.outcome.makespan_s
    changed = forked(drawn, fork_s, found, gate, other)
    assert until(fork_s, *watch(changed)) == until(fork_s, found, gate)


def test_a_policy_that_looks_ahead_would_be_found_out() -> None:
    """The comparison sees what it has to: with another past, what is begun is not the same."""
    jobs = [job(f"t{n}", init=Chore(wait_s=1.0 + n), turns=(SimTurn(sampled=50, tool_s=2.0),) * 3) for n in range(6)]
    one = workload(*jobs)
    other = workload(replace(jobs[0], turns=(SimTurn(sampled=20, tool_s=2.0),) * 3), *jobs[1:])
    found, gate = watch(one)
    fork_s = 0.5 * found.outcome.makespan_s
    assert len(until(fork_s, found, gate)) > 10
    assert until(fork_s, *watch(other)) != until(fork_s, found, gate)
    same = forked(one, fork_s, found, gate, [Future(prompt=1, turns=(SimTurn(sampled=1),), chore=Chore())])
    assert same != one and until(fork_s, *watch(same)) == until(fork_s, found, gate)

"""No policy beats the bound, on any workload."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from sim_stage import ADAPTIVE, MACHINE, PLAIN, Way, capped, job, odd_workloads, ways, workload, workloads

from slipstream.dispatch.base import Deadlines, DispatchLimits
from slipstream.dispatch.policies import Batch, Bounded
from slipstream.simulate.bound import bound, uncapped_bound
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.run import open_gate, simulate
from slipstream.simulate.workload import Chore, SimTurn, Workload

CLOCK = 1 + 1e-9
"""The simulation's clock is not exact to the last bit."""


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(workloads(), ways)
def test_no_policy_beats_the_bound(drawn: Workload, way: Way) -> None:
    outcome = simulate(drawn, way.make, capped(drawn))
    assert outcome.num_trusted == len(drawn.jobs)
    found = bound(drawn)
    assert found.lower_bound_s <= outcome.makespan_s * CLOCK, found


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(odd_workloads(), ways)
def test_no_policy_beats_the_bound_whatever_fails_is_cut_or_cancelled(drawn: Workload, way: Way) -> None:
    outcome = simulate(drawn, way.make, capped(drawn))
    found = bound(drawn)
    assert found.lower_bound_s <= outcome.makespan_s * CLOCK, found


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(odd_workloads())
def test_nothing_beats_the_bound_without_a_cap(drawn: Workload) -> None:
    outcome = simulate(drawn, open_gate(Batch()), DispatchLimits())
    found = uncapped_bound(drawn)
    assert found.lower_bound_s <= outcome.makespan_s * CLOCK, found


def test_one_job_alone_takes_its_path() -> None:
    turns = (SimTurn(sampled=10, observed=50, tool_s=2.0, tool_cpu_s=1.0), SimTurn(sampled=20))
    alone = workload(job(turns=turns, init=Chore(wait_s=3.0, cpu_s=1.0), grade=Chore(wait_s=4.0)))
    # 4 s; 100 tokens of prompt and 10 of reply, 3 s of the tool, 50 more tokens and 20 of reply; 4 s.
    assert bound(alone).path_s == pytest.approx(4 + 0.1 + 0.1 + 3 + 0.05 + 0.2 + 4)
    assert simulate(alone, ADAPTIVE.make, capped(alone)).makespan_s == pytest.approx(bound(alone).lower_bound_s)


def test_cores_and_sandboxes_bound_what_is_made_of_them() -> None:
    jobs = [job(sample=n, grade=Chore(cpu_s=30.0)) for n in range(16)]
    few_cores = workload(*jobs, machine=replace(MACHINE, cores=2.0, sandbox_cap=16))
    assert bound(few_cores).cores_s == pytest.approx(16 * 30 / 2)
    few_sandboxes = workload(*jobs, machine=replace(MACHINE, cores=16.0, sandbox_cap=2))
    assert bound(few_sandboxes).sandboxes_s == pytest.approx(16 * (30 + 0.2) / 2)
    for one in (few_cores, few_sandboxes):
        assert simulate(one, ADAPTIVE.make, capped(one)).makespan_s < 1.2 * bound(one).lower_bound_s


def test_the_engine_bounds_what_is_sampled_with_a_full_cache() -> None:
    """Ten contexts fit at once and there are fifty, of 100 tokens each: five rounds of 50 steps, and all prompts."""
    jobs = [job(sample=n, prompt=50, turns=(SimTurn(sampled=50),)) for n in range(50)]
    found = bound(workload(*jobs, machine=replace(MACHINE, sandbox_cap=100)))
    assert found.engine_s == pytest.approx(5 * 50 * 0.01 + 50 * 50 / 1000)


def test_before_the_engine_and_after_it_there_is_the_least_of_the_other_stages() -> None:
    turns = (SimTurn(sampled=50),)
    slow = job("slow", prompt=50, turns=turns, init=Chore(wait_s=9.0), grade=Chore(wait_s=2.0, cpu_s=1.0))
    quick = job("quick", prompt=50, turns=turns, init=Chore(wait_s=4.0, cpu_s=1.0), grade=Chore(wait_s=7.0))
    engine_s = 2 * 50 / 1000 + 2 * 50 * 100 / 1000 * 0.01
    assert bound(workload(slow, quick)).engine_s == pytest.approx(5 + engine_s + 3)


def test_who_waits_for_a_last_tool_needs_no_cache_any_more() -> None:
    dear = EngineSpec(kv_tokens=1000, step_s=0.01, row_s=0.0, token_s=0.0, prefill_tokens_s=100.0)
    jobs = [job(f"t{n:02d}", prompt=900, turns=(SimTurn(sampled=100, tool_s=50.0),)) for n in range(20)]
    one = workload(*jobs, machine=replace(MACHINE, engine=dear, sandbox_cap=100))
    outcome = simulate(one, open_gate(Batch()), DispatchLimits())
    assert outcome.makespan_s == pytest.approx(20 * (9 + 1) + 50)
    assert bound(one).lower_bound_s <= outcome.makespan_s * CLOCK


def test_who_waits_while_others_are_prefilled_takes_nothing_from_the_steps() -> None:
    """One of each pair waits for its tool just while the other's prompt is computed; then both sample together."""
    jobs = []
    for pair in range(20):
        first = (SimTurn(sampled=1, tool_s=1.0), SimTurn(sampled=99))
        jobs += [
            job(f"waits {pair:02d}", prompt=1000, turns=first),
            job(f"later {pair:02d}", prompt=1000, turns=(SimTurn(sampled=100),)),
        ]
    machine = replace(MACHINE, engine=replace(PLAIN, kv_tokens=2200), sandbox_cap=8)
    one = workload(*jobs, machine=machine)
    outcome = simulate(one, open_gate(Bounded(slots=2)), capped(one))
    assert bound(one).lower_bound_s <= outcome.makespan_s * CLOCK


def test_engines_that_are_alike_share_the_work() -> None:
    jobs = [job(sample=n, prompt=50, turns=(SimTurn(sampled=50),)) for n in range(50)]
    one = workload(*jobs, machine=replace(MACHINE, sandbox_cap=100))
    assert bound(replace(one, engines=4)).engine_s == pytest.approx(bound(one).engine_s / 4)


def test_an_engine_needs_a_step_for_every_token_of_a_slot() -> None:
    jobs = [job(sample=n, prompt=1, turns=(SimTurn(sampled=50),)) for n in range(12)]
    few = replace(MACHINE, engine=replace(PLAIN, kv_tokens=10_000, slots=3), sandbox_cap=100)
    assert bound(workload(*jobs, machine=few)).engine_s == pytest.approx(12 / 1000 + 12 * 50 / 3 * 0.01)


def test_attempts_that_fail_count_with_what_they_did() -> None:
    slow = Chore(wait_s=8.0, cpu_s=2.0)
    failing = job(init=slow, faults={f"{attempt} init": "raise" for attempt in (1, 2, 3)})
    found = bound(workload(failing))
    assert (found.path_s, found.engine_s) == (3 * 5.0, 0.0), "half of three initialisations, and no call"
    assert found.cores_s == pytest.approx(3 * 1.0 / MACHINE.cores)
    hanging = job(init=Chore(wait_s=10.0), faults={"1 run": "hang"})
    machine = replace(MACHINE, deadlines=Deadlines(init_s=30.0, run_s=40.0, job_s=1e6, total_s=1e6))
    assert bound(workload(hanging, machine=machine)).path_s == 10.0 + 40.0


def test_what_a_deadline_may_have_cut_counts_only_until_then() -> None:
    turns = (SimTurn(sampled=10, tool_s=500.0),)
    long, short = job("long", turns=turns), job("short", turns=(SimTurn(sampled=10, tool_s=60.0),))
    machine = replace(MACHINE, deadlines=Deadlines(run_s=100.0, job_s=1e6, total_s=1e6))
    one = workload(long, short, machine=machine)
    assert bound(one).lower_bound_s == pytest.approx(100.0)
    assert simulate(one, ADAPTIVE.make, capped(one)).makespan_s == pytest.approx(100.0)


def test_of_a_group_those_count_that_must_have_ended() -> None:
    jobs = [job(sample=n, grade=Chore(wait_s=10.0 * (n + 1))) for n in range(4)]
    one = replace(workload(*jobs, machine=replace(MACHINE, sandbox_cap=1)), keep=3)
    assert bound(one).path_s == pytest.approx(30 + 0.2)
    assert bound(one).sandboxes_s == pytest.approx(60 + 3 * 0.2)


def test_a_policy_without_a_cap_is_not_held_to_it() -> None:
    jobs = [job(sample=n, grade=Chore(wait_s=30.0)) for n in range(16)]
    one = workload(*jobs)
    assert bound(one).lower_bound_s > 100 > uncapped_bound(one).lower_bound_s

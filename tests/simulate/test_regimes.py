import pytest
from sim_stage import job

from slipstream.errors import ConfigError
from slipstream.simulate.regimes import REGIMES, final_context, make_workload, mean_context
from slipstream.simulate.workload import SimTurn, Workload


@pytest.fixture(scope="module", params=list(REGIMES))
def of_regime(request: pytest.FixtureRequest) -> Workload:
    return make_workload(str(request.param), 7)


def test_the_same_seed_gives_the_same_workload_and_another_one_another(of_regime: Workload) -> None:
    assert make_workload(of_regime.name, 7) == of_regime
    other = make_workload(of_regime.name, 8)
    assert other.jobs != of_regime.jobs
    assert other.machine == of_regime.machine, "the machine belongs to the regime"


def test_every_job_fits_the_machine_and_is_there_once(of_regime: Workload) -> None:
    largest = max(one.contexts[-1] + one.turns[-1].sampled for one in of_regime.jobs)
    assert largest <= of_regime.machine.engine.kv_tokens
    assert len({(one.step, one.task, one.sample) for one in of_regime.jobs}) == len(of_regime.jobs)


def test_the_cap_is_twice_the_agents_and_the_slots_are_as_many_as_agents(of_regime: Workload) -> None:
    machine = of_regime.machine
    assert machine.sandbox_cap == 2 * machine.agents
    assert machine.slots == machine.agents * (2 if of_regime.name == "kv" else 1)


def test_the_cache_holds_the_agents_at_their_mean_context_but_not_all_at_their_end(of_regime: Workload) -> None:
    jobs, machine = list(of_regime.jobs), of_regime.machine
    assert machine.agents * mean_context(jobs) < machine.engine.kv_tokens < machine.agents * final_context(jobs)


def test_mean_and_final_contexts_by_hand() -> None:
    jobs = [job(prompt=10, turns=(SimTurn(sampled=3, observed=5), SimTurn(sampled=1))), job(prompt=30)]
    # 10 tokens are held for 3, 18 for 1 and 30 for 10.
    assert mean_context(jobs) == pytest.approx((10 * 3 + 18 * 1 + 30 * 10) / 14)
    assert final_context(jobs) == pytest.approx((19 + 40) / 2)


def test_each_regime_has_what_it_is_for() -> None:
    made = {name: make_workload(name, 1) for name in REGIMES}
    faults = [fault for one in made["faults"].jobs for fault in (one.faults or {}).values()]
    assert len(faults) / (9 * len(made["faults"].jobs)) == pytest.approx(0.05, abs=0.01)
    assert set(faults) == {"raise", "hang", "lose"}
    turns = sorted(len(one.turns) for one in made["tail"].jobs)
    assert turns[-1] > 5 * turns[len(turns) // 2]
    assert {one.step for one in made["stream"].jobs} == set(range(8))
    assert made["stream"].staleness is not None
    assert not any(one.faults for name in REGIMES if name != "faults" for one in made[name].jobs)


def test_an_unknown_regime_is_said_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'"papers".*paper'):
        make_workload("papers", 1)

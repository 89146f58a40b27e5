"""How many are worth keeping warm, by the numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.sandbox.pool.demand import Demand, shares


def test_nothing_is_known_and_nothing_is_wanted() -> None:
    assert Demand(idle_s=60).wanted(0.0) == 0


def test_what_is_expected_is_wanted_and_each_arrival_counts_one_off() -> None:
    demand = Demand(idle_s=60)
    demand.expect(3)
    assert demand.wanted(1e9) == 3, "it was said, so time changes nothing"
    demand.arrived(10.0)
    assert demand.wanted(10.0) == 2
    demand.expect(0)
    assert demand.wanted(10.0) == 0 and demand.idle_at_s < 10


def test_arrivals_within_a_start_are_wanted_until_nobody_comes_any_more() -> None:
    demand = Demand(idle_s=60)
    for index in range(11):
        demand.arrived(index * 0.5)
        demand.started(4.0)
    # 11 arrivals in 5 s, of which 8.8 come while one starts; half as many again for bursts
    assert demand.wanted(5.0) == 14
    assert 0 < demand.wanted(50.0) < 14
    assert demand.wanted(65.0) == 0


def test_rare_arrivals_and_quick_starts_are_not_worth_a_warm_one() -> None:
    demand = Demand(idle_s=60)
    for at_s in (0.0, 10.0, 20.0):
        demand.arrived(at_s)
        demand.started(0.02)
    assert demand.wanted(20.0) == 0


def test_a_budget_that_is_too_small_goes_by_demand() -> None:
    assert shares({"a": 3, "b": 1}, 8) == {"a": 3, "b": 1}
    assert shares({"a": 30, "b": 10}, 8) == {"a": 6, "b": 2}
    assert shares({"a": 1, "b": 1, "c": 1}, 2) == {"a": 1, "b": 1, "c": 0}
    assert shares({"a": 5}, 0) == {"a": 0}


@given(st.dictionaries(st.integers(), st.integers(0, 50), max_size=8), st.integers(0, 60))
def test_shares_use_the_budget_and_never_more_than_is_wanted(wanted: dict[int, int], budget: int) -> None:
    given_out = shares(wanted, budget)
    assert sum(given_out.values()) == min(budget, sum(wanted.values()))
    assert all(0 <= given_out[key] <= wanted[key] for key in wanted)

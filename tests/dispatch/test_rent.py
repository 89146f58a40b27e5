from math import inf

import pytest

from slipstream.dispatch.rent import KNOWN, REMEMBERED, Rent


def after(*waits: float, task: str = "t") -> Rent:
    rent = Rent()
    for seconds in waits:
        rent.waited(task, seconds)
    return rent


def test_where_nothing_is_known_a_place_is_kept_for_as_long_as_it_is_worth() -> None:
    assert Rent().stay_s("t", 20.0) == 20.0
    assert after(*[600.0] * (KNOWN - 1)).stay_s("t", 20.0) == 20.0


def test_where_to_compute_again_is_of_unknown_price_a_place_is_kept() -> None:
    assert after(*[600.0] * KNOWN).stay_s("t", inf) == inf


def test_before_long_waits_a_place_is_left_at_once_and_before_short_ones_never() -> None:
    assert after(*[600.0] * KNOWN).stay_s("t", 20.0) == 0.0
    assert after(*[3.0] * KNOWN).stay_s("t", 20.0) == 20.0


def test_among_short_waits_long_ones_are_given_up_when_the_short_ones_are_over() -> None:
    rent = after(1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 300.0)
    # To stay for 2 s costs 12 s; to leave at once 8 times 20 s, after 1 s 4 times 1 s and 4 times 21 s.
    assert rent.stay_s("t", 20.0) == 2.0


@pytest.mark.parametrize(("worth_s", "stay_s"), [(3.0, 0.0), (30.0, 10.0)])
def test_a_wait_that_often_lasts_too_long_is_not_begun_with_a_place(worth_s: float, stay_s: float) -> None:
    # Half of the waits take 10 s. To stay for these: 8 times 10 s, and 4 times the price besides; else 8 times that.
    assert after(*[10.0, 900.0] * 4).stay_s("t", worth_s) == stay_s


def test_a_task_goes_by_its_own_waits_once_there_are_enough() -> None:
    rent = after(*[600.0] * KNOWN, task="slow")
    assert rent.stay_s("new", 20.0) == 0.0
    for _ in range(KNOWN):
        rent.waited("quick", 1.0)
    assert (rent.stay_s("quick", 20.0), rent.stay_s("slow", 20.0)) == (20.0, 0.0)


def test_what_is_long_ago_is_forgotten() -> None:
    assert after(*[600.0] * KNOWN, *[1.0] * REMEMBERED).stay_s("t", 20.0) == 20.0

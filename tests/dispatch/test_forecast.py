import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.dispatch.forecast import Mean, TurnForecast


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_running_mean_is_the_mean(values: list[float]) -> None:
    mean = Mean()
    for value in values:
        mean.add(value)
    assert mean.num == len(values)
    assert mean.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert mean.deviation == pytest.approx(statistics.pstdev(values), abs=1e-3)


def test_of_nothing_the_mean_is_zero() -> None:
    assert (Mean().num, Mean().mean, Mean().deviation) == (0, 0.0, 0.0)


def four_lives() -> TurnForecast:
    """Four agents: one ended after its first turn, one after its second, one after its third, and one is in its
    second."""
    lives = TurnForecast()
    for turns in (1, 2, 3, 2):
        for turn in range(1, turns + 1):
            lives.took(turn)
    for turns in (1, 2, 3):
        lives.ended(turns)
    return lives


@pytest.mark.parametrize(
    ("turn", "ahead", "share"),
    [
        (0, 1, 1.0),
        (0, 2, 3 / 4),
        (1, 1, 3 / 4),
        (0, 3, 3 / 4 * 2 / 3),
        (1, 2, 3 / 4 * 2 / 3),
        (2, 1, 2 / 3),
        (2, 0, 1.0),
        (3, 1, 0.0),
        (1, 50, 0.0),
    ],
)
def test_the_product_limit_of_four_lives(turn: int, ahead: int, share: float) -> None:
    assert four_lives().alive(turn, ahead) == pytest.approx(share)


def test_beyond_what_was_ever_seen_it_is_one_half() -> None:
    assert four_lives().alive(4, 1) == 0.5
    assert four_lives().alive(99, 3) == 0.5
    assert four_lives().longest == 3


def test_who_is_still_alive_raises_the_forecast() -> None:
    lives = four_lives()
    before = lives.alive(0, 3)
    lives.took(3)  # the one that was in its second turn
    assert lives.alive(0, 4) > 0.0
    assert lives.alive(0, 3) == before
    for _ in range(10):
        lives.took(1)
    assert lives.alive(0, 3) == pytest.approx(13 / 14 * 2 / 3)


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=20))
def test_shares_fall_from_one_towards_zero(histories: list[tuple[int, bool]]) -> None:
    lives = TurnForecast()
    for turns, is_over in histories:
        for turn in range(1, turns + 1):
            lives.took(turn)
        if is_over:
            lives.ended(turns)
    shares = [lives.alive(0, ahead) for ahead in range(12)]
    assert shares[0] == shares[1] == 1.0
    assert all(0.0 <= later <= earlier for earlier, later in pairwise(shares))
    if all(is_over for _, is_over in histories):
        for ahead in range(1, 9):
            lasted = sum(turns >= ahead for turns, _ in histories) / len(histories)
            assert math.isclose(lives.alive(0, ahead), lasted, abs_tol=1e-12)

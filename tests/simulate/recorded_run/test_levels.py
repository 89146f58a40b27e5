import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.simulate.recorded_run.mean_level import Level

times = st.integers(0, 20).map(float)
intervals = st.lists(st.tuples(times, times, st.sampled_from([0.5, 1.0, 2.0])), max_size=8)


@given(intervals, times, times)
def test_a_mean_is_the_weights_that_lie_in_the_stretch(
    of: list[tuple[float, float, float]], a: float, b: float
) -> None:
    start_s, end_s = min(a, b), max(a, b) + 1
    area = sum(max(0.0, min(end_s, to) - max(start_s, since)) * weight for since, to, weight in of if to > since)
    assert Level(of).mean(start_s, end_s) == pytest.approx(area / (end_s - start_s))


def test_what_is_made_of_the_level_is_averaged_and_not_the_level() -> None:
    capped = Level([(0, 4, 1.0), (2, 4, 1.0)], lambda level: min(1.0, level))
    assert capped.mean(0, 4) == 1.0
    assert capped.mean(2, 6) == 0.5
    assert list(Level([(0, 4, 1.0), (2, 4, 1.0)]).pieces()) == [(0, 2, 1.0), (2, 4, 2.0)]


def test_the_mean_of_no_time_is_the_level_there() -> None:
    level = Level([(0, 4, 3.0)])
    assert (level.mean(1, 1), level.mean(5, 5), level.mean(-1, -1)) == (3.0, 0.0, 0.0)

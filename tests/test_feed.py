"""Which tasks next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.feed import Feed, SolveRateFilter

TASKS = [f"t{number}" for number in range(10)]


def steps(feed: Feed, num: int) -> list[tuple[str, ...]]:
    return [feed.next_step() for _ in range(num)]


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 100), st.integers(1, 30))
def test_every_epoch_gives_every_task_once_and_no_step_gives_one_twice(width: int, seed: int, num: int) -> None:
    given_out = steps(Feed(TASKS, num_per_step=width, seed=seed), num)
    assert all(len(set(step)) == width for step in given_out)
    flat = [task for step in given_out for task in step]
    times = [flat.count(task) for task in TASKS]
    assert max(times) - min(times) <= 1 + (len(flat) % 10 > 0)


def test_the_order_is_the_seeds_and_differs_by_epoch() -> None:
    first, again, other = (steps(Feed(TASKS, num_per_step=5, seed=seed), 4) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[:2] != first[2:]


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 20), st.integers(0, 100))
def test_a_feed_goes_on_where_another_stopped(width: int, num: int, seed: int) -> None:
    whole = steps(Feed(TASKS, num_per_step=width, seed=seed), num + 5)
    resumed = Feed(TASKS, num_per_step=width, seed=seed)
    for step in whole[:num]:
        resumed.given(step)
    assert steps(resumed, 5) == whole[num:]


def test_tasks_that_taught_nothing_rest() -> None:
    feed = Feed(TASKS, num_per_step=2, seed=0, solve_rate=SolveRateFilter(rest_epochs=2))
    for _ in range(5):
        for task in feed.next_step():
            feed.note(task, [1.0, 1.0] if task == "t3" else [0.0, 0.0] if task == "t4" else [0.0, 1.0])
    second = {task for step in steps(feed, 4) for task in step}
    assert second == set(TASKS) - {"t3", "t4"}
    third = {task for step in steps(feed, 4) for task in step}
    assert third == set(TASKS) - {"t3", "t4"}
    fourth = {task for step in steps(feed, 5) for task in step}
    assert fourth == set(TASKS)


def test_if_nearly_all_rest_all_are_tried_again() -> None:
    feed = Feed(TASKS, num_per_step=5, seed=0, solve_rate=SolveRateFilter())
    for _ in range(2):
        for task in feed.next_step():
            feed.note(task, [1.0])
    assert len({task for step in steps(feed, 2) for task in step}) == 10


def test_too_few_tasks_and_tasks_that_are_gone_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups=11, but there are 10 tasks"):
        Feed(TASKS, num_per_step=11, seed=0)
    with pytest.raises(ConfigError, match="gave out the task 'gone'"):
        Feed(TASKS, num_per_step=2, seed=0).given(["gone"])


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 100), st.integers(0, 4))
def test_fresh_tasks_are_others_than_the_steps_own_and_a_resumed_feed_knows_them(
    width: int, seed: int, num: int
) -> None:
    feed, resumed = (Feed(TASKS, num_per_step=width, seed=seed) for _ in range(2))
    for _ in range(6):
        step = feed.next_step()
        more = feed.fresh(num, step)
        assert len(more) == min(num, 10 - width)
        assert len({*step, *more}) == len(step) + len(more)
        resumed.given((*step, *more))
    assert steps(feed, 5) == steps(resumed, 5)


def test_an_epoch_that_has_nothing_for_a_step_is_not_begun() -> None:
    feed = Feed(TASKS, num_per_step=2, seed=0, solve_rate=SolveRateFilter())
    first = feed.next_step()
    rest = feed.fresh(8, first)
    for task in (*first, *rest):
        feed.note(task, [0.0, 1.0] if task in first else [1.0])
    assert (feed.fresh(1, first), feed.epoch) == ((), 1)


SETS = {"a": 3.0, "b": 1.0, "c": 1.0}
MIXED = [f"{name}/{number}" for name in SETS for number in range(8)]


def shares(given_out: list[tuple[str, ...]]) -> list[int]:
    flat = [task for step in given_out for task in step]
    return [sum(task.startswith(f"{name}/") for task in flat) for name in SETS]


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 100), st.integers(1, 20))
def test_a_mixture_keeps_to_its_weights_at_every_step(width: int, seed: int, num: int) -> None:
    feed = Feed(MIXED, num_per_step=width, seed=seed, weights=SETS)
    given_out: list[tuple[str, ...]] = []
    for _ in range(num):
        given_out.append(feed.next_step())
        total = sum(map(len, given_out))
        assert all(
            abs(share - total * weight / 5) < 2 for share, weight in zip(shares(given_out), SETS.values(), strict=True)
        )
    assert all(len(set(step)) == width for step in given_out)
    for name in SETS:  # every set has epochs of its own
        own = [task for step in given_out for task in step if task.startswith(f"{name}/")]
        assert all(
            len(set(own[at : at + 8])) == len(own[at : at + 8]) for at in range(0, len(own) - 8, 8) if width == 1
        )


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 20), st.integers(0, 100))
def test_a_mixture_goes_on_where_another_stopped(width: int, num: int, seed: int) -> None:
    whole = steps(Feed(MIXED, num_per_step=width, seed=seed, weights=SETS), num + 5)
    resumed = Feed(MIXED, num_per_step=width, seed=seed, weights=SETS)
    for step in whole[:num]:
        resumed.given(step)
    assert steps(resumed, 5) == whole[num:]


def test_a_set_that_is_smaller_than_its_share_of_a_step_is_refused() -> None:
    tasks = ["a/0", *(f"b/{number}" for number in range(8))]
    with pytest.raises(ConfigError, match="the set a has 1 tasks, and its weight of 1 asks for 2 of the 4 in a step"):
        Feed(tasks, num_per_step=4, seed=0, weights={"a": 1, "b": 1})


def test_replacements_of_a_mixture_come_from_any_set_that_has_some() -> None:
    feed = Feed(["a/0", "a/1", "b/0"], num_per_step=2, seed=0, weights={"a": 1, "b": 1})
    step = feed.next_step()
    assert set(feed.fresh(3, exclude=step)) == {"a/0", "a/1", "b/0"} - set(step)
    assert feed.fresh(1, exclude=["a/0", "a/1", "b/0"]) == ()


def test_a_task_of_no_set_is_named() -> None:
    feed = Feed(MIXED, num_per_step=2, seed=0, weights=SETS)
    with pytest.raises(ConfigError, match="'d/1', which is not among its tasks now"):
        feed.given(["d/1"])

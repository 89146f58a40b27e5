from collections.abc import Callable
from math import inf

import pytest

from slipstream.dispatch.budget import CUT, MIN_SHARE, MIN_WINDOW_S, RAISE, TokenBudget
from slipstream.types import EngineLoad


class Engine:
    """What it says of itself can be set."""

    def __init__(self, kv_tokens: int | None) -> None:
        self.kv_tokens = kv_tokens
        self.num_waiting = 0
        self.slots: int | None = None
        self.kv_used: float | None = None

    def load(self) -> EngineLoad:
        return EngineLoad(
            running=1, waiting=self.num_waiting, kv_tokens=self.kv_tokens, kv_used=self.kv_used, slots=self.slots
        )


class Turns:
    """Turns of a second end, so many a second; the first of them at 0 s, when a window begins."""

    def __init__(self, budget: TokenBudget) -> None:
        self._budget = budget
        self._now_s = 0.0
        budget.note(0.0, -1.0, 0)

    def take(self, *, seconds: float, per_s: float, num_in_flight: int = 1000) -> None:
        for _ in range(round(seconds * per_s)):
            self._now_s += 1 / per_s
            self._budget.note(self._now_s, self._now_s - 1.0, num_in_flight)

    def window(self, per_s: float, num_in_flight: int = 1000) -> None:
        self.take(seconds=MIN_WINDOW_S, per_s=per_s, num_in_flight=num_in_flight)


def test_a_reported_cache_is_believed() -> None:
    engine = Engine(5000)
    budget = TokenBudget(engine.load)
    assert budget.tokens() == 5000
    Turns(budget).take(seconds=100, per_s=10)
    engine.kv_tokens = 6000
    assert budget.tokens() == 6000


@pytest.mark.parametrize(
    ("slots", "kv_used", "is_cut"), [(1, None, False), (2, None, True), (None, 0.5, False), (None, 0.9, True)]
)
def test_what_waits_for_a_slot_or_beside_room_in_the_cache_says_nothing_of_its_size(
    slots: int | None, kv_used: float | None, is_cut: bool
) -> None:
    engine = Engine(1000)
    budget = TokenBudget(engine.load)
    engine.num_waiting, engine.slots, engine.kv_used = 3, slots, kv_used
    Turns(budget).window(per_s=4)
    assert budget.tokens() == pytest.approx(1000 * CUT if is_cut else 1000)


def test_while_requests_wait_it_shrinks_and_then_comes_back() -> None:
    engine = Engine(1000)
    budget = TokenBudget(engine.load)
    turns = Turns(budget)
    engine.num_waiting = 3
    turns.window(per_s=4)
    assert budget.tokens() == pytest.approx(1000 * CUT)
    turns.window(per_s=4)
    assert budget.tokens() == pytest.approx(1000 * CUT * CUT)
    engine.num_waiting = 0
    turns.window(per_s=4)
    assert budget.tokens() == pytest.approx(1000 * CUT * CUT * RAISE)
    turns.take(seconds=400, per_s=4)
    assert budget.tokens() == 1000


def test_it_shrinks_the_less_the_less_it_costs_to_be_wrong() -> None:
    engine = Engine(1000)
    engine.num_waiting = 3
    budget = TokenBudget(engine.load)
    Turns(budget).window(per_s=4)
    assert [budget.tokens(dear) for dear in (1.0, 0.5, 0.0)] == pytest.approx([1000 * CUT, 500 + 500 * CUT, 1000])


def test_it_never_shrinks_to_nothing() -> None:
    engine = Engine(1000)
    engine.num_waiting = 1
    budget = TokenBudget(engine.load)
    Turns(budget).take(seconds=2000, per_s=4)
    assert budget.tokens() == 1000 * MIN_SHARE


def test_within_a_window_nothing_changes() -> None:
    engine = Engine(1000)
    engine.num_waiting = 1
    budget = TokenBudget(engine.load)
    Turns(budget).take(seconds=MIN_WINDOW_S - 1, per_s=4)
    assert budget.tokens() == 1000


def test_a_window_is_at_least_two_turns_long() -> None:
    engine = Engine(1000)
    engine.num_waiting = 1
    budget = TokenBudget(engine.load)
    for now_s in range(0, 190, 10):
        budget.note(float(now_s), now_s - 100.0, 10)
    assert budget.tokens() == 1000
    budget.note(200.0, 100.0, 10)
    assert budget.tokens() == pytest.approx(1000 * CUT)


# ---------------------------------------------------------------- where nothing is reported


def settle(reports: EngineLoad | None, per_s: Callable[[float], float]) -> tuple[float, float]:
    """What is in flight and what the budget is, after as many windows as it takes: as much is in flight as is allowed,
    and a tenth more than before where nothing is."""
    budget = TokenBudget(lambda: reports)
    turns = Turns(budget)
    in_flight = 1000.0
    for _ in range(80):
        turns.window(per_s=per_s(in_flight), num_in_flight=round(in_flight))
        limit = budget.tokens()
        in_flight = 1.1 * in_flight if limit is None else min(limit, 1.1 * in_flight)
    return in_flight, budget.tokens() or inf


SILENT = [None, Engine(None).load()]


@pytest.mark.parametrize("reports", SILENT, ids=["no load", "a load without a cache"])
def test_as_long_as_more_in_flight_get_more_done_more_are_allowed(reports: EngineLoad | None) -> None:
    in_flight, _ = settle(reports, lambda in_flight: 8 + in_flight / 1e5)
    assert in_flight > 10_000


@pytest.mark.parametrize("reports", SILENT, ids=["no load", "a load without a cache"])
def test_it_is_cut_when_turns_per_second_fall_and_stays_near_where_the_most_is_done(
    reports: EngineLoad | None,
) -> None:
    """Above 8,000 tokens the engine does the less the more there are."""
    in_flight, limit = settle(reports, lambda n: 32 * min(n / 8_000, 8_000 / n) + 8)
    assert 5_000 < in_flight <= limit < 13_000

"""The mathematics of the second scoring, against softmaxes that are computed in full."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from bigram_stage import ranked, softmax
from hypothesis import given
from hypothesis import strategies as st

from slipstream.doctor.scoring import (
    LEAK,
    Draw,
    Suspicion,
    cut_to_min_p,
    cut_to_top_k,
    cut_to_top_p,
    distance,
    ignored_temperature,
    log_evidence,
    sampled_colder,
    shunned_repeats,
    tempered_bounds,
)
from slipstream.model.base import TokenScore

CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    logits: list[float]
    num_top: int

    def logprobs(self, temperature: float = 1.0) -> list[float]:
        return softmax(self.logits, temperature)

    def top(self) -> dict[int, float]:
        logprobs = self.logprobs()
        return {index: logprobs[index] for index in ranked(logprobs)[: self.num_top]}

    def draws(self) -> list[Draw]:
        """One of each token, in a place that every second token stood before."""
        top, before = self.top(), range(0, len(self.logits), 2)
        return [
            Draw(id=index, score=TokenScore(logprob=logprob, top=top), before=before)
            for index, logprob in enumerate(self.logprobs())
        ]


vocabularies = st.builds(
    Vocabulary,
    logits=st.lists(st.floats(-30.0, 30.0), min_size=2, max_size=40),
    num_top=st.integers(1, 40),
)
temperatures = st.floats(0.05, 1.0)


@given(vocabularies, temperatures)
def test_the_bounds_enclose_the_exact_logprob(vocabulary: Vocabulary, temperature: float) -> None:
    top = list(vocabulary.top().values())
    for own, exact in zip(vocabulary.logprobs(), vocabulary.logprobs(temperature), strict=True):
        low, high = tempered_bounds(own, top, temperature)
        slack = CLOSE / temperature
        assert low - slack <= exact <= high + slack


@given(st.lists(st.floats(-30.0, 30.0), min_size=2, max_size=40), temperatures)
def test_the_bounds_meet_where_all_tokens_are_known(logits: list[float], temperature: float) -> None:
    vocabulary = Vocabulary(logits=logits, num_top=len(logits))
    for own, exact in zip(vocabulary.logprobs(), vocabulary.logprobs(temperature), strict=True):
        low, high = tempered_bounds(own, list(vocabulary.top().values()), temperature)
        assert low == pytest.approx(exact, abs=CLOSE / temperature)
        assert high == pytest.approx(exact, abs=CLOSE / temperature)


def test_the_bounds_of_four_equal_tokens_of_which_two_are_known() -> None:
    # At temperature 1/2, Z = 4 * (1/4)^2 = 1/4, of which the known tokens are 1/8. The unseen half has at most 1/8.
    quarter = math.log(0.25)
    low, high = tempered_bounds(quarter, [quarter, quarter], 0.5)
    assert low == pytest.approx(math.log(0.25))
    assert high == pytest.approx(math.log(0.5))


def test_an_unlikely_token_is_known_besides_the_likeliest() -> None:
    # 0.9 and 0.1 are all there is.
    low, high = tempered_bounds(math.log(0.1), [math.log(0.9)], 0.5)
    assert low == pytest.approx(math.log(0.01 / 0.82))
    assert high == pytest.approx(math.log(0.01 / 0.82))


def test_at_temperature_one_nothing_changes() -> None:
    assert tempered_bounds(-1.5, [-1.5, -2.0], 1.0) == (-1.5, -1.5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1.01, math.nan])
def test_other_temperatures_have_no_bounds(temperature: float) -> None:
    with pytest.raises(ValueError, match="above 0 and up to 1"):
        tempered_bounds(-1.0, [-1.0], temperature)


def test_the_distance_is_zero_inside() -> None:
    assert distance(-1.5, (-2.0, -1.0)) == 0.0
    assert distance(-2.25, (-2.0, -1.0)) == 0.25
    assert distance(-0.5, (-2.0, -1.0)) == 0.5


# ---------------------------------------------------------------- evidence

AT_ONE = (
    cut_to_top_k(1),
    cut_to_top_k(5),
    cut_to_top_p(0.8),
    cut_to_min_p(0.1),
    sampled_colder(0.7),
    shunned_repeats(),
)


@pytest.mark.parametrize("suspicion", AT_ONE, ids=lambda suspicion: suspicion.name)
@given(vocabulary=vocabularies)
def test_no_suspicion_gains_on_average_from_what_was_asked_for(vocabulary: Vocabulary, suspicion: Suspicion) -> None:
    gained = math.fsum(math.exp(draw.score.logprob) * suspicion.ratio(draw)[0] for draw in vocabulary.draws())
    assert gained <= 1.0 + CLOSE


@given(vocabularies, st.floats(0.3, 0.99))
def test_an_ignored_temperature_gains_nothing_from_one_that_was_heeded(
    vocabulary: Vocabulary, temperature: float
) -> None:
    suspicion = ignored_temperature(temperature)
    draws = zip(vocabulary.draws(), vocabulary.logprobs(temperature), strict=True)
    assert math.fsum(math.exp(own) * suspicion.ratio(draw)[0] for draw, own in draws) <= 1.0 + CLOSE


@given(vocabularies, st.floats(0.3, 0.99))
def test_the_ratio_of_temperatures_is_enclosed(vocabulary: Vocabulary, temperature: float) -> None:
    for draw, tempered in zip(vocabulary.draws(), vocabulary.logprobs(temperature), strict=True):
        exact = tempered - draw.score.logprob
        low, high = map(math.log, sampled_colder(temperature).ratio(draw))
        assert low - CLOSE <= exact <= high + CLOSE
        low, high = map(math.log, ignored_temperature(temperature).ratio(draw))
        assert low - CLOSE <= -exact <= high + CLOSE


def drawn(index: int, probabilities: list[float], before: tuple[int, ...] = ()) -> Draw:
    top = {place: math.log(probability) for place, probability in enumerate(probabilities)}
    return Draw(id=index, score=TokenScore(logprob=math.log(0.01), top=top), before=before)


@pytest.mark.parametrize(
    ("suspicion", "kept_mass"),
    [
        (cut_to_top_k(1), 0.5),
        (cut_to_top_k(2), 0.75),
        (cut_to_top_p(0.5), 0.5),
        (cut_to_top_p(0.6), 0.75),
        (cut_to_min_p(0.6), 0.5),
        (cut_to_min_p(0.4), 0.75),
    ],
)
def test_a_cut_gives_the_mass_of_what_it_drops_to_what_it_keeps(suspicion: Suspicion, kept_mass: float) -> None:
    inside = LEAK + (1 - LEAK) / kept_mass
    assert suspicion.ratio(drawn(0, [0.5, 0.25, 0.15])) == pytest.approx((inside, inside))
    assert suspicion.ratio(drawn(2, [0.5, 0.25, 0.15])) == pytest.approx((LEAK, LEAK))


@pytest.mark.parametrize("suspicion", [cut_to_top_k(4), cut_to_top_p(0.95), cut_to_min_p(0.1)])
def test_a_cut_beyond_what_is_known_tells_nothing(suspicion: Suspicion) -> None:
    assert suspicion.ratio(drawn(7, [0.5, 0.25, 0.15])) == (1.0, 1.0)


def test_a_penalty_makes_repeats_rarer() -> None:
    # The odds of the repeated half fall from 1:1 to 1:2.
    suspicion = shunned_repeats()
    assert suspicion.ratio(drawn(0, [0.5, 0.25], before=(0,))) == pytest.approx((2 / 3, 2 / 3))
    assert suspicion.ratio(drawn(1, [0.5, 0.25], before=(0,))) == pytest.approx((4 / 3, 4 / 3))
    assert suspicion.ratio(drawn(1, [0.5, 0.25])) == (1.0, 1.0)


def test_evidence_adds_up() -> None:
    draws = [drawn(0, [0.5, 0.25]), drawn(1, [0.5, 0.25])]
    expected = math.log(LEAK + (1 - LEAK) / 0.5) + math.log(LEAK)
    assert log_evidence(draws, cut_to_top_k(1)) == pytest.approx((expected, expected))

"""Sampling: exact probabilities, exact logprobs, noise that depends only on seed and position."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.inference.sampling import BLOCK, DrawSpec, draw, uniform_for


def one(uniform: float, temperature: float = 1.0, top_p: float = 1.0) -> DrawSpec:
    return DrawSpec(temperature=temperature, top_p=top_p, uniform=uniform)


def chi_square(counts: list[int], chances: list[float]) -> float:
    """In units of its spread about its mean."""
    total = sum(counts)
    expected = [chance * total for chance in chances]
    value = sum((got - want) ** 2 / want for got, want in zip(counts, expected, strict=True))
    free = len(counts) - 1
    return (value - free) / math.sqrt(2 * free)


@pytest.mark.parametrize("by", ["seed", "position", "both"])
def test_the_noise_is_uniform_along_seeds_and_along_positions(by: str) -> None:
    num = 40_000
    pairs = {
        "seed": [(number, 17) for number in range(num)],
        "position": [(3, number) for number in range(num)],
        "both": [(number // 200, number % 200) for number in range(num)],
    }[by]
    values = [uniform_for(seed, position) for seed, position in pairs]
    counts = torch.bincount((torch.tensor(values) * 100).long(), minlength=100).tolist()
    assert abs(chi_square(counts, [0.01] * 100)) < 4
    neighbours = torch.tensor(values[:-1]), torch.tensor(values[1:])
    cells = (neighbours[0] * 10).long() * 10 + (neighbours[1] * 10).long()
    assert abs(chi_square(torch.bincount(cells, minlength=100).tolist(), [0.01] * 100)) < 4


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**31))
def test_the_noise_is_inside_the_open_interval(seed: int, position: int) -> None:
    assert 0.0 < uniform_for(seed, position) < 1.0
    assert uniform_for(seed, position) == uniform_for(seed, position)


def test_the_noise_is_the_same_on_every_machine() -> None:
    assert [uniform_for(0, 0), uniform_for(2**62, 1000)] == [0.06713981511589273, 0.9729599800294225]


@pytest.mark.parametrize("num_tokens", [5, BLOCK, 3 * BLOCK + 7])
def test_each_token_takes_its_own_share_of_the_unit_interval(num_tokens: int) -> None:
    """A fine, even grid of uniform numbers must hit every token as often as its probability says."""
    logits = 2 * torch.randn(num_tokens, generator=torch.Generator().manual_seed(1))
    num = 20_000
    drawn = draw(logits.repeat(num, 1), [one((place + 0.5) / num) for place in range(num)])
    counts = torch.bincount(torch.tensor([row.token for row in drawn]), minlength=num_tokens)
    chances = logits.double().softmax(-1)
    assert float((counts - num * chances).abs().max()) < 1.01
    logprobs = logits.double().log_softmax(-1)
    for row in drawn[:: num // 50]:
        assert row.logprob is not None
        assert abs(row.logprob - float(logprobs[row.token])) < 1e-6
        assert not row.broken


def test_temperatures_differ_within_a_batch() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0]]).repeat(3, 1)
    cold, warm, hot = draw(logits.clone(), [one(0.05, 0.5), one(0.05), one(0.05, 4.0)])
    assert [cold.token, warm.token, hot.token] == [2, 1, 0]
    for row, temperature in ((cold, 0.5), (warm, 1.0), (hot, 4.0)):
        assert row.logprob is not None
        assert abs(row.logprob - float((logits[0] / temperature).log_softmax(-1)[row.token])) < 1e-6


def test_impossible_tokens_are_never_drawn() -> None:
    low = float("-inf")
    logits = torch.full((1, 2 * BLOCK), low)
    logits[0, 3] = logits[0, 300] = 1.0
    ends = (2.0**-53, 0.5 - 2.0**-30, 0.5 + 2.0**-30, 1 - 2.0**-53)
    assert [draw(logits.clone(), [one(uniform)])[0].token for uniform in ends] == [3, 3, 300, 300]


def test_greedy_and_top_p_have_no_logprobs() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]]).repeat(3, 1)
    greedy, narrow, wide = draw(logits, [one(0.01, 0.0), one(0.999, 1.0, 0.5), one(0.999, 1.0, 0.9)])
    assert [greedy.token, narrow.token, wide.token] == [1, 1, 2]
    assert [row.logprob for row in (greedy, narrow, wide)] == [None] * 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_noticed_in_their_row_only(bad: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    for temperature in (1.0, 0.0):
        assert [row.broken for row in draw(logits.clone(), [one(0.3, temperature)] * 3)] == [False, True, False]

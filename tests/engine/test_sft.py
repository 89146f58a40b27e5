"""The warm start: it learns, it is repeatable, and it leaves the optimiser of updates clean."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from pathlib import Path

import pytest
from learner_stage import batch, learner, row, same_bits, weights

from slipstream.engine.checkpoint import read_checkpoint
from slipstream.engine.learner_config import WarmStartConfig
from slipstream.engine.sft import order_of_steps, rate_height
from slipstream.errors import ConfigError, LearnerError
from slipstream.types import TokenIds, token_ids

SEPARATOR = 9


@dataclass
class Example:
    ids: TokenIds
    mask: array[int]


def copies(number: int, *, seed: int = 0) -> list[Example]:
    """Three digits, a separator, the same three digits, which alone are to be learned."""
    chance = random.Random(seed)
    found = []
    for _ in range(number):
        digits = [chance.randrange(4) for _ in range(3)]
        found.append(Example(token_ids([*digits, SEPARATOR, *digits]), array("b", [0, 0, 0, 0, 1, 1, 1])))
    return found


def test_it_learns_to_copy() -> None:
    taught = learner("llama")
    metrics = taught.warm_start(
        copies(256), WarmStartConfig(num_epochs=30, tokens_per_step=512, learning_rate=5e-3, seed=1)
    )
    assert metrics["warm/loss_first"] > 2.0
    assert metrics["warm/loss"] < 0.1
    assert metrics["warm/steps"] == 30 * 4  # 85 rows of 6 tokens in a step
    assert metrics["warm/tokens"] == 30 * 256 * 3
    assert sum(taught.logprobs([2, 0, 3, SEPARATOR, 2, 0, 3])[4:]) > -0.3
    assert taught.version == 1


def test_updates_begin_with_a_clean_optimiser(tmp_path: Path) -> None:
    taught = learner()
    taught.warm_start(copies(4))
    taught.save(tmp_path / "saved")
    assert {name.split("/")[0] for name in read_checkpoint(tmp_path / "saved").tensors} == {"weight"}
    result = taught.update(batch(row([1, 2], [0, 1])))
    assert (result.version, result.metrics["learn/steps"]) == (2, 1)


def test_the_same_seed_gives_the_same_bits_and_micro_batches_do_not_matter() -> None:
    config = WarmStartConfig(num_epochs=2, tokens_per_step=40, seed=3)
    first, second, split = learner(), learner(), learner(tokens_per_microbatch=14)
    for each in (first, second, split):
        each.warm_start(copies(20), config)
    assert same_bits(weights(first), weights(second))
    assert split.logprobs([0, 1, 2, SEPARATOR]) == pytest.approx(first.logprobs([0, 1, 2, SEPARATOR]), abs=1e-3)
    other = learner()
    other.warm_start(copies(20), WarmStartConfig(num_epochs=2, tokens_per_step=40, seed=4))
    assert not same_bits(weights(first), weights(other))


def test_every_epoch_has_every_sample_once_in_another_company() -> None:
    steps = order_of_steps([5] * 12, WarmStartConfig(num_epochs=3, tokens_per_step=20))
    assert [len(step) for step in steps] == [4] * 9
    epochs = [steps[0:3], steps[3:6], steps[6:9]]
    for epoch in epochs:
        assert sorted(place for step in epoch for place in step) == list(range(12))
    assert len({frozenset(frozenset(step) for step in epoch) for epoch in epochs}) == 3


def test_the_learning_rate_rises_and_falls() -> None:
    found = [rate_height(step, 8, 4) for step in range(8)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.7, 0.4, 0.1])
    assert [rate_height(step, 2, 0) for step in range(2)] == pytest.approx([1.0, 0.1])
    assert rate_height(0, 1, 0) == 1.0


def test_it_ends_by_steps_or_by_time() -> None:
    taught = learner()
    config = WarmStartConfig(num_epochs=100, tokens_per_step=12, max_steps=3)
    assert taught.warm_start(copies(20), config)["warm/steps"] == 3
    hasty = WarmStartConfig(num_epochs=1_000, tokens_per_step=12, limit_s=1e-9)
    metrics = taught.warm_start(copies(20), hasty)
    assert (metrics["warm/steps"], metrics["warm/out_of_time"]) == (0, 1)
    assert taught.version == 1


def test_nothing_to_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match="no sample has a token with mask 1"):
        learner().warm_start([Example(token_ids([1, 2]), array("b", [1, 0]))])
    with pytest.raises(ConfigError, match="2 ids and a mask of 1"):
        learner().warm_start([Example(token_ids([1, 2]), array("b", [1]))])


def test_a_loss_that_is_no_number_takes_everything_back() -> None:
    taught = learner()
    before = weights(taught)
    with pytest.raises(LearnerError, match="of warm start step 2 is"):
        taught.warm_start(copies(8), WarmStartConfig(num_epochs=3, learning_rate=1e30, warmup_steps=0))
    assert same_bits(before, weights(taught))
    assert taught.version == 0


def test_told_to_stop_it_takes_everything_back() -> None:
    taught = learner()
    before = weights(taught)
    answers = iter([False, False, True])
    with pytest.raises(LearnerError, match="told to stop, after 2 of 60 steps"):
        taught.warm_start(
            copies(20), WarmStartConfig(num_epochs=6, tokens_per_step=12), should_stop=lambda: next(answers)
        )
    assert same_bits(before, weights(taught))
    assert taught.version == 0
    assert taught.warm_start(copies(20), WarmStartConfig(max_steps=1))["warm/steps"] == 1

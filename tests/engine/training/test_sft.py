"""The warm start: it learns, it is repeatable, and it leaves the optimiser of updates clean."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from learner_stage import batch, learner, model_folder, row, same_bits, weights

from slipstream.engine.training.checkpoint import read_checkpoint
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig, rate_factor
from slipstream.engine.training.memory import MicrobatchBudget
from slipstream.engine.training.sft import order_of_steps, warm_start
from slipstream.engine.training.trainable import Trainable
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
    found = [rate_factor(step, 8, 4) for step in range(8)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.7, 0.4, 0.1])
    assert [rate_factor(step, 2, 0) for step in range(2)] == pytest.approx([1.0, 0.1])
    assert rate_factor(0, 1, 0) == 1.0


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


FEW = WarmStartConfig(num_epochs=2, tokens_per_step=40, warmup_steps=2, seed=3)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_one_that_is_stopped_goes_on_and_ends_with_the_weights_of_an_unbroken_one(
    tmp_path: Path, method: Literal["full", "lora"]
) -> None:
    unbroken, told = learner(method=method), list[tuple[int, int]]()
    whole = unbroken.warm_start(copies(40), FEW, on_step=lambda step, steps, loss: told.append((step, steps)))
    num_steps = int(whole["warm/steps"])
    assert told == [(step + 1, num_steps) for step in range(num_steps)]
    for num_before in (3, 4):
        stopped = learner(method=method)
        answers = [*[False] * num_before, True]
        with pytest.raises(LearnerError, match="was stopped"):
            stopped.warm_start(copies(40), FEW, should_stop=partial(answers.pop, 0), keep=tmp_path / "kept")
        assert stopped.version == 0
    resumed, told = learner(method=method), []
    metrics = resumed.warm_start(
        copies(40), FEW, keep=tmp_path / "kept", on_step=lambda step, steps, loss: told.append((step, steps))
    )
    assert told[0] == (8, num_steps)  # three steps in the first session, four in the second
    assert same_bits(weights(unbroken), weights(resumed))
    assert {**metrics, "warm/seconds": 0} == {**whole, "warm/seconds": 0}


def test_one_that_was_killed_goes_on_from_what_it_kept_last(tmp_path: Path) -> None:
    def killed(step: int, steps: int, loss: float) -> None:
        if step == 5:
            raise KeyboardInterrupt

    def warm(kept: Path | None, on_step: Callable[[int, int, float], None]) -> dict[str, torch.Tensor]:
        device = torch.device("cpu")
        model = Trainable(model_folder(), LearnerConfig(), device=device, seed=0)
        budget = MicrobatchBudget(64, checkpoints_layers=False)
        warm_start(model, copies(40), FEW, device=device, budget=budget, on_step=on_step, keep=kept, keep_every_s=0)
        return {name: parameter.detach().clone() for name, parameter in model.parameters.items()}

    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        warm(tmp_path / "kept", killed)
    resumed = warm(tmp_path / "kept", lambda step, steps, loss: seen.append(step))
    assert 2 <= seen[0] <= 6  # how often it is kept goes by how long that takes
    assert same_bits(resumed, warm(None, lambda step, steps, loss: None))


@pytest.mark.parametrize("spoilt", ["damaged", "other demonstrations", "other settings"])
def test_what_was_kept_of_another_warm_start_is_not_used(
    tmp_path: Path, spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([False, False, True])
    with pytest.raises(LearnerError):
        learner().warm_start(copies(40), FEW, should_stop=lambda: next(answers), keep=tmp_path / "kept")
    if spoilt == "damaged":
        next((tmp_path / "kept").glob("part-*")).write_bytes(b"")
    samples = copies(40, seed=1) if spoilt == "other demonstrations" else copies(40)
    config = replace(FEW, learning_rate=2e-3) if spoilt == "other settings" else FEW
    fresh, resumed = learner(), learner()
    fresh.warm_start(samples, config)
    resumed.warm_start(samples, config, keep=tmp_path / "kept")
    assert same_bits(weights(fresh), weights(resumed))
    assert "the warm start starts over" in caplog.text


def test_told_to_stop_it_takes_everything_back() -> None:
    taught = learner()
    before = weights(taught)
    answers = iter([False, False, True])
    with pytest.raises(LearnerError, match="was stopped after 2 of 60 steps"):
        taught.warm_start(
            copies(20), WarmStartConfig(num_epochs=6, tokens_per_step=12), should_stop=lambda: next(answers)
        )
    assert same_bits(before, weights(taught))
    assert taught.version == 0
    assert taught.warm_start(copies(20), WarmStartConfig(max_steps=1))["warm/steps"] == 1

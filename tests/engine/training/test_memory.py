"""Passes that do not fit in memory: the step is made again in smaller ones, and nothing else changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_stage import VOCAB, assert_close, batch, learner, model_folder, row, same_bits, weights

from slipstream.engine.training.config import LearnerConfig, WarmStartConfig
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.memory import (
    MIN_TOKENS,
    OutOfMemory,
    _available,
    _group_room,
    estimate_tokens,
    fixed_bytes,
    free_memory,
    memory_guard,
)
from slipstream.engine.training.microbatches import MicroBatch, collate, train_rows
from slipstream.engine.training.trainable import EntropyMode, Scores, Trainable
from slipstream.errors import ConfigError

CPU = torch.device("cpu")
ROWS = batch(
    row(range(40, 61), [0] + [1] * 20, advantage=1.0, rollout=0),
    *(row(range(5 + number, 15 + number), [0] * 5 + [1] * 5, advantage=-0.5, rollout=number) for number in range(1, 7)),
)
"""One long row, which goes first and by itself, and six short ones."""


class Cramped(Trainable):
    """There is room for this many tokens in a pass, and no more."""

    room = 1 << 30
    num_refused = 0

    def score_batch(self, batch: MicroBatch, *, temperature: float, entropy: EntropyMode = "value") -> Scores:
        scores = super().score_batch(batch, temperature=temperature, entropy=entropy)
        if batch.ids.numel() > self.room:
            self.num_refused += 1
            torch.empty(1 << 55)
        return scores


def cramped(room: int, **settings: Any) -> tuple[TorchLearner, Cramped]:
    config = LearnerConfig(**settings)
    model = Cramped(model_folder(), config, device=CPU, seed=0)
    model.room = room
    return TorchLearner(model_folder(), config, device="cpu", model=model), model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"recompute_proximal": True},
        {"num_epochs": 2, "num_minibatches": 2},
        {"tokens_per_microbatch": 54},  # asked for, and too much all the same
    ],
    ids=lambda settings: ",".join(settings) or "default",
)
def test_a_step_that_does_not_fit_is_made_in_smaller_passes_and_comes_to_the_same(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    taught, model = cramped(25, learning_rate=1e-2, **settings)
    ample = learner(learning_rate=1e-2, **settings)
    with caplog.at_level(logging.WARNING):
        found = [taught.update(ROWS) for _ in range(2)]
    assert model.num_refused > 0
    assert "does not fit in memory: learner.tokens_per_microbatch is now " in caplog.text
    expected = [ample.update(ROWS) for _ in range(2)]
    assert_close(weights(taught), weights(ample), share=1e-4)
    for one, other in zip(found, expected, strict=True):
        assert one.version == other.version
        names = ("steps", "tokens", "loss", "grad_norm", "entropy")
        for name in (f"learn/{name}" for name in names):
            assert one.metrics[name] == pytest.approx(other.metrics[name], rel=1e-3, abs=1e-5)


def test_what_fitted_is_remembered_in_the_process_and_in_its_checkpoints(tmp_path: Path) -> None:
    taught, model = cramped(25)
    taught.update(ROWS)
    num_refused = model.num_refused
    taught.update(ROWS)
    assert model.num_refused == num_refused
    taught.save(tmp_path / "kept")
    resumed, fresh = cramped(25)
    resumed.load(tmp_path / "kept")
    resumed.update(ROWS)
    assert fresh.num_refused == 0
    asked, _ = cramped(25, tokens_per_microbatch=7)
    asked.load(tmp_path / "kept")
    assert asked._budget.tokens == 7  # set on resume, and so it holds


class Hungry(Trainable):
    """A token takes more memory than any machine has."""

    most_tokens = 0

    def activation_bytes(self) -> float:
        return float(1 << 60)

    def score_batch(self, batch: MicroBatch, *, temperature: float, entropy: EntropyMode = "value") -> Scores:
        self.most_tokens = max(self.most_tokens, batch.ids.numel())
        return super().score_batch(batch, temperature=temperature, entropy=entropy)


@pytest.mark.parametrize("asked", [None, 4_096], ids=["measured", "as set"])
def test_the_first_pass_is_as_large_as_was_measured_to_fit_unless_a_size_is_set(
    asked: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = batch(*(row(range(5, 25), [0] + [1] * 19, advantage=1.0, rollout=number) for number in range(40)))
    config = LearnerConfig(tokens_per_microbatch=asked)
    model = Hungry(model_folder(), config, device=CPU, seed=0)
    with caplog.at_level(logging.WARNING):
        TorchLearner(model_folder(), config, device="cpu", model=model).update(rows)
    assert (model.most_tokens <= MIN_TOKENS) == (asked is None)
    assert ("so that passes fit in memory" in caplog.text) == (asked is None)


def test_a_row_that_does_not_fit_by_itself_names_what_can_be_set_on_resume() -> None:
    for settings, remedy in (
        ({}, "resume with learner.gradient_checkpointing=true"),
        ({"gradient_checkpointing": True}, "set max_sample_tokens in a new run"),
    ):
        taught, _ = cramped(15, **settings)
        before = weights(taught)
        with pytest.raises(ConfigError, match=f"a pass over one row with 20 tokens does not fit in memory: {remedy}"):
            taught.update(ROWS)
        assert same_bits(before, weights(taught))
        assert taught.version == 0


def test_a_warm_start_fits_itself_too() -> None:
    config = WarmStartConfig(num_epochs=2, tokens_per_step=60)
    taught, model = cramped(25)
    ample = learner()
    taught.warm_start([each.sample for each in ROWS.rows], config)
    ample.warm_start([each.sample for each in ROWS.rows], config)
    assert model.num_refused > 0
    assert_close(weights(taught), weights(ample), share=1e-4)


def test_only_what_says_that_memory_is_short_counts_as_that() -> None:
    rows = train_rows([row([1] * 8, [0] + [1] * 7)], vocab_size=VOCAB)
    shaped = collate(rows, [1.0], CPU)
    with pytest.raises(OutOfMemory, match="1 rows with 7 tokens"):
        with memory_guard(shaped):
            torch.empty(1 << 55)
    with pytest.raises(RuntimeError, match="something else"):
        with memory_guard(shaped):
            raise RuntimeError("something else")


# ---------------------------------------------------------------- the estimate


def test_the_estimate_is_what_is_left_for_activations_and_never_more_than_asked() -> None:
    free = 10 << 30
    ample = estimate_tokens(most=4_096, bytes_per_token=1_000, fixed_bytes=1 << 30, free_bytes=free)
    tight = estimate_tokens(most=32_768, bytes_per_token=1 << 20, fixed_bytes=3 << 30, free_bytes=free)
    none = estimate_tokens(most=32_768, bytes_per_token=1 << 20, fixed_bytes=30 << 30, free_bytes=free)
    assert (ample, tight, none) == (4_096, 4_096, 256)
    assert estimate_tokens(most=77, bytes_per_token=1 << 20, fixed_bytes=30 << 30, free_bytes=free) == 77
    assert estimate_tokens(most=4_096, bytes_per_token=1, fixed_bytes=0, free_bytes=None) == 4_096


def test_an_update_takes_gradients_moments_and_where_it_has_steps_to_take_back_a_copy() -> None:
    assert fixed_bytes(10, num_steps=1, rounds=False, num_parameters=100) == 120
    assert fixed_bytes(10, num_steps=2, rounds=True, num_parameters=100) == 440


def test_activations_are_measured_and_grow_with_the_layers() -> None:
    plain = Trainable(model_folder(), LearnerConfig(), device=CPU, seed=0)
    saving = Trainable(model_folder(), LearnerConfig(gradient_checkpointing=True), device=CPU, seed=0)
    # Two layers of 32 by 48 numbers: some dozen of them for every token, and with checkpoints one for each layer.
    assert 2 * 32 * 4 < saving.activation_bytes() < plain.activation_bytes() / 3
    assert plain.activation_bytes() < 2 * (60 * 32 + 8 * 48) * 4


def test_free_memory_is_read_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:      64 kB\n")
    assert _available(tmp_path / "meminfo") == 65_536
    assert _available(tmp_path / "gone") is None and _group_room(tmp_path) is None
    (tmp_path / "memory.current").write_text("300\n")
    for limit, room in (("1000\n", 700), ("max\n", None), ("100\n", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert _group_room(tmp_path) == room
    found = free_memory(CPU)
    assert found is None or found >= 0

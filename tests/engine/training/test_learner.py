"""Updates: the gradient they follow, what they leave alone, what they say."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner_stage import (
    VOCAB,
    assert_close,
    batch,
    gradient,
    learner,
    model_folder,
    on_policy,
    row,
    same_bits,
    slow_gradient,
    transformers_model,
    weights,
)

from slipstream.engine.training.checkpoint import read_checkpoint
from slipstream.engine.training.config import LearnerConfig, LossConfig, paper_settings
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.microbatches import collate, plan, train_rows
from slipstream.engine.training.step_plan import deal_out
from slipstream.engine.training.trainable import Trainable
from slipstream.errors import ConfigError, LearnerError
from slipstream.types import Batch

MIXED = batch(
    row([5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 1], advantage=1.0, rollout=0),
    row([5, 6, 11], [0, 0, 1], advantage=1.0, rollout=0),
    row([20, 21, 22, 23], [0, 1, 1, 0], advantage=-0.5, rollout=1),
    row([30, 31, 32], [0, 1, 1], advantage=9.0, rollout=2, in_loss=False),
    row([40, 41, 42], [0, 0, 0], advantage=3.0, rollout=3),
)


# ---------------------------------------------------------------- the gradient


@pytest.mark.parametrize("normaliser", ["token", "sequence", "fixed"])
@pytest.mark.parametrize("kind", ["importance_sampling", "ppo_clip", "sequence"])
def test_the_gradient_is_that_of_the_slow_formula(kind: Any, normaliser: Any, tmp_path: Path) -> None:
    loss = LossConfig(kind=kind, normaliser=normaliser, fixed_length=50)
    found = gradient(MIXED, tmp_path, loss=loss)
    assert_close(found, slow_gradient(MIXED, kind=kind, normaliser=normaliser, fixed_length=50))


def test_on_policy_the_gradient_is_that_of_reinforce(tmp_path: Path) -> None:
    given = on_policy(learner(), MIXED)
    reinforce = slow_gradient(given, kind="importance_sampling", normaliser="token", cap=1.0)
    assert_close(gradient(given, tmp_path, loss=LossConfig(weight_cap=None)), reinforce, share=1e-3)


def test_logits_are_divided_by_the_temperature(tmp_path: Path) -> None:
    slow = slow_gradient(MIXED, kind="importance_sampling", normaliser="token", temperature=0.7)
    assert_close(gradient(MIXED, tmp_path, temperature=0.7), slow)
    taught = learner(temperature=0.7)
    assert taught.logprobs([1, 2, 3]) == taught.logprobs([1, 2, 3], temperature=0.7)
    assert taught.logprobs([1, 2, 3]) != taught.logprobs([1, 2, 3], temperature=1.0)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        ids = draw(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=20))
        mask = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
        rows.append(
            row(
                ids,
                mask,
                advantage=draw(st.floats(-2, 2)),
                rollout=draw(st.integers(0, 2)),
                in_loss=draw(st.booleans()),
            )
        )
    rows.append(row([1, 2, 3], [0, 1, 1], rollout=0))
    return Batch(rows=tuple(rows))


@given(rows=batches(), tokens=st.integers(1, 60), kind=st.sampled_from(["importance_sampling", "sequence"]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_gradient_does_not_depend_on_the_micro_batches(rows: Batch, tokens: int, kind: Any, tmp_path: Path) -> None:
    loss = LossConfig(kind=kind, normaliser="sequence")
    assert_close(
        gradient(rows, tmp_path, loss=loss, tokens_per_microbatch=tokens),
        gradient(rows, tmp_path, loss=loss, tokens_per_microbatch=10_000),
    )


def test_gradient_checkpointing_changes_memory_and_nothing_else(tmp_path: Path) -> None:
    assert_close(gradient(MIXED, tmp_path, gradient_checkpointing=True), gradient(MIXED, tmp_path), share=1e-6)


def test_logits_in_pieces_are_the_same_logits() -> None:
    device = torch.device("cpu")
    made = collate(train_rows(MIXED.rows, vocab_size=VOCAB), [1.0] * 3, device)
    found = []
    for largest in (1 << 25, 2 * VOCAB):
        model = Trainable(model_folder(), LearnerConfig(), device=device, seed=0, max_logits=largest)
        scores = model.score(made.ids, made.places, made.targets, temperature=1.0)
        torch.autograd.backward(scores.logprobs.sum())
        assert scores.entropy is not None
        gradients = {name: parameter.grad for name, parameter in model.parameters.items() if parameter.grad is not None}
        found.append({"logprobs": scores.logprobs.detach(), "entropy": scores.entropy, **gradients})
    assert_close(found[1], found[0], share=1e-6)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_every_row_is_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = plan(lengths, budget)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[place] for place in group) <= budget


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(1, 5))
def test_every_row_is_in_one_step_and_rollouts_stay_whole(rollouts: list[int], num_minibatches: int) -> None:
    steps = deal_out(rollouts, num_minibatches, random.Random(0))
    assert sorted(place for step in steps for place in step) == list(range(len(rollouts)))
    assert len(steps) == min(num_minibatches, len(set(rollouts)))
    held = [{rollouts[place] for place in step} for step in steps]
    assert sum(len(each) for each in held) == len(set(rollouts))
    assert max(len(each) for each in held) - min(len(each) for each in held) <= 1


# ---------------------------------------------------------------- what is left alone


def test_what_is_masked_or_outside_the_loss_changes_nothing() -> None:
    plain, padded = learner(), learner()
    plain.update(batch(row([5, 6, 7, 8], [0, 0, 1, 1]), row([20, 21], [0, 1], rollout=1)))
    padded.update(
        batch(
            row([5, 6, 7, 8, 90, 91], [0, 0, 1, 1, 0, 0], logprobs=[-9.0, -9.0, -3.0, -3.0, -9.0, -9.0]),
            row([20, 21], [0, 1], rollout=1),
            row([60, 61, 62], [0, 1, 1], rollout=2, advantage=math.nan, in_loss=False),
            row([70, 71, 72], [1, 0, 0], rollout=3, advantage=100.0),  # the first token has nothing before it
            row([], [], rollout=4),
        )
    )
    assert same_bits(weights(plain), weights(padded))


def test_without_a_trained_token_no_step_is_made() -> None:
    taught = learner()
    before = weights(taught)
    result = taught.update(batch(row([1, 2], [0, 0]), row([1, 2], [0, 1], in_loss=False)))
    assert (result.version, taught.version) == (0, 0)
    assert result.metrics["learn/steps"] == result.metrics["learn/tokens"] == 0
    assert same_bits(before, weights(taught))
    assert taught.update(Batch(rows=())).metrics["learn/steps"] == 0


# ---------------------------------------------------------------- steps


def test_an_update_raises_what_was_rewarded_and_lowers_what_was_not() -> None:
    taught = learner(learning_rate=1e-3)
    good, bad = [3, 4, 50], [3, 4, 60]
    before = taught.logprobs(good)[2], taught.logprobs(bad)[2]
    given = batch(row(good, [0, 0, 1], advantage=1.0), row(bad, [0, 0, 1], advantage=-1.0, rollout=1))
    result = taught.update(on_policy(taught, given))
    assert taught.logprobs(good)[2] > before[0]
    assert taught.logprobs(bad)[2] < before[1]
    assert result.version == taught.version == 1


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_a_step_of_a_millionth_does_not_vanish(compute: Any) -> None:
    taught = learner(learning_rate=1e-6, compute=compute)
    before = weights(taught)
    taught.update(MIXED)
    after = weights(taught)
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (after[name] - before[name]).abs()
    assert after[name].dtype == torch.float32
    assert float((moved > 0).float().mean()) > 0.9
    assert float(moved.max()) < 2e-6


def test_bfloat16_is_near_float32() -> None:
    exact, mixed = learner(), learner(compute="bfloat16")
    assert mixed.logprobs(range(20)) != exact.logprobs(range(20))
    assert mixed.logprobs(range(20)) == pytest.approx(exact.logprobs(range(20)), abs=0.15)


def test_if_nothing_is_said_the_rate_goes_by_the_size_and_an_adapter_has_ten_times_that() -> None:
    seen = [learner(method=method).update(MIXED).metrics["learn/learning_rate"] for method in ("full", "lora")]
    assert seen == [1e-3, 1e-2]  # a model this small has the most there is
    rates = [LearnerConfig().rate_of("full", size) for size in (500_000, 135_000_000, 1_540_000_000, 8_000_000_000)]
    assert rates == pytest.approx([8.8e-4, 1e-5, 1.43e-6, 1e-6], rel=0.01)
    adapted = [LearnerConfig().rate_of("lora", size) for size in (135_000_000, 8_000_000_000, None)]
    assert adapted == pytest.approx([1e-4, 1e-5, 1e-5])
    assert LearnerConfig(learning_rate=3e-5).rate_of("lora", 1) == 3e-5


def test_the_learning_rate_rises_over_the_warm_up() -> None:
    taught = learner(learning_rate=1e-3, warmup_steps=4)
    seen = [taught.update(MIXED).metrics["learn/learning_rate"] for _ in range(6)]
    assert seen == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_the_learning_rate_falls_to_a_tenth_and_stays_there() -> None:
    taught = learner(learning_rate=1e-3, warmup_steps=2, decay_steps=5)
    seen = [taught.update(MIXED).metrics["learn/learning_rate"] for _ in range(7)]
    assert seen == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.55e-3, 0.1e-3, 0.1e-3, 0.1e-3])


def test_epochs_and_mini_batches_make_that_many_steps_and_use_the_proximal_policy() -> None:
    taught = learner(num_epochs=2, num_minibatches=2, learning_rate=1e-2, loss=LossConfig(kind="ppo_clip"))
    metrics = taught.update(on_policy(taught, MIXED)).metrics
    assert metrics["learn/steps"] == 4
    assert taught.version == 1
    assert metrics["learn/engine_diff_max"] < 1e-5  # the proximal policy is the one that sampled
    assert metrics["learn/ratio_max"] > 1.2  # and the later steps are far from it
    assert metrics["learn/clip_high"] > 0
    assert (
        taught.update(batch(row([1, 2], [0, 1]))).metrics["learn/steps"] == 2
    )  # one rollout cannot be dealt out to two


def test_every_update_deals_rollouts_out_anew(tmp_path: Path) -> None:
    taught = learner(num_minibatches=2)
    drawn = []
    for number in range(3):
        taught.update(MIXED)
        taught.save(tmp_path / str(number))
        drawn.append(read_checkpoint(tmp_path / str(number)).facts["random"])
    assert drawn[0] != drawn[1] != drawn[2]


def test_recomputing_the_proximal_policy_changes_nothing_on_policy() -> None:
    plain, careful = learner(), learner(recompute_proximal=True)
    plain.update(MIXED)
    careful.update(MIXED)
    assert_close(weights(careful), weights(plain), share=1e-6)


def test_a_long_gradient_is_shortened() -> None:
    given = batch(row([1, 2, 3], [0, 1, 1], advantage=1e6))
    free, held = learner(max_grad_norm=None), learner(max_grad_norm=1.0)
    assert free.update(given).metrics["learn/grad_norm"] == held.update(given).metrics["learn/grad_norm"] > 1e3
    small = batch(row([1, 2, 3], [0, 1, 1], advantage=1e-3))
    for each in (free, held):
        each.update(small)
    assert not same_bits(weights(free), weights(held))


def test_the_same_seed_and_batches_give_the_same_bits() -> None:
    for method in ("full", "lora"):
        first, second = (learner(method=method, num_epochs=2, num_minibatches=2, learning_rate=1e-3) for _ in range(2))
        for _ in range(2):
            first.update(MIXED)
            second.update(MIXED)
        assert same_bits(weights(first), weights(second))


def test_another_seed_deals_rollouts_out_differently() -> None:
    given = batch(*(row([place, 9], [0, 1], rollout=place) for place in range(8)))
    first, second = (learner(num_minibatches=4, learning_rate=1e-3, seed=seed) for seed in (0, 1))
    first.update(given)
    second.update(given)
    assert not same_bits(weights(first), weights(second))


def test_the_settings_of_the_paper_make_a_step() -> None:
    taught = TorchLearner(model_folder("llama", tied=False), paper_settings(), device="cpu")
    assert taught.update(MIXED).version == 1


# ---------------------------------------------------------------- what it says


def test_what_the_engine_computes_differently_is_told_apart_from_what_the_policy_drifted() -> None:
    taught = learner()
    now, before = (on_policy(taught, MIXED, shift=shift).rows for shift in (-0.125, -0.5))
    fresh = [
        replace(each, sample=replace(each.sample, versions=array("i", [3] * len(each.sample.ids)))) for each in now
    ]
    older = [
        replace(each, sample=replace(each.sample, versions=array("i", [2] * len(each.sample.ids)))) for each in before
    ]
    mixed = learner().update(Batch(rows=(*fresh, *older), version=3)).metrics
    assert mixed["learn/engine_diff_mean"] == pytest.approx(0.125, abs=1e-4)
    assert mixed["learn/engine_diff_max"] == pytest.approx(0.125, abs=1e-4)
    assert mixed["learn/policy_drift_mean"] == pytest.approx(0.5, abs=1e-4)
    all_old = learner().update(Batch(rows=tuple(older), version=3)).metrics
    assert all_old["learn/policy_drift_max"] == pytest.approx(0.5, abs=1e-4)
    assert not [name for name in all_old if "engine_diff" in name]
    all_new = learner().update(Batch(rows=tuple(fresh), version=3)).metrics
    assert not [name for name in all_new if "drift" in name]


def test_metrics_say_how_far_the_sampled_logprobs_are_off() -> None:
    taught = learner()
    metrics = taught.update(on_policy(taught, MIXED, shift=-0.5)).metrics  # the policy gives e^0.5 of what was sampled
    ratio = math.exp(0.5)
    expected = {
        "engine_diff_mean": 0.5,
        "engine_diff_max": 0.5,
        "weight_mean": ratio,
        "weight_max": ratio,
        "weight_min": ratio,
        "weight_capped": 0.0,
        "kl_k1": -0.5,
        "kl_k3": ratio - 1 - 0.5,
        "ess": 1.0,
        "ratio_mean": 1.0,
        "ratio_max": 1.0,
        "ratio_min": 1.0,
        "clip_low": 0.0,
        "clip_high": 0.0,
        "tokens": 6.0,
        "rows": 3.0,
        "rollouts": 2.0,
        "steps": 1.0,
        "learning_rate": 1e-3,
    }
    assert {name: metrics[f"learn/{name}"] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert metrics["learn/grad_norm"] > 0
    assert metrics["learn/seconds"] > 0


def test_the_effective_sample_size_falls_when_few_tokens_carry_the_weight() -> None:
    taught = learner()
    _, second, third = taught.logprobs([1, 2, 3])
    given = row([1, 2, 3], [0, 1, 1], logprobs=[0.0, second - math.log(3.0), third])
    found = taught.update(batch(given)).metrics["learn/ess"]
    assert found == pytest.approx(0.8, abs=1e-4)  # ratios 3 and 1: (3 + 1)^2 / (2 (9 + 1))


def test_the_loss_and_the_entropy_are_those_of_the_slow_formula() -> None:
    taught = learner()
    metrics = taught.update(on_policy(taught, MIXED)).metrics
    assert metrics["learn/loss"] == pytest.approx(-(4 * 1.0 + 2 * -0.5) / 6, abs=1e-5)
    assert 0 < metrics["learn/entropy"] < math.log(VOCAB)


def test_logprobs_are_those_of_transformers() -> None:
    ids = [5, 6, 7, 8, 9]
    for kind, tied in (("qwen3", True), ("llama", False)):
        model = transformers_model(model_folder(kind, tied=tied))
        with torch.no_grad():
            expected = torch.log_softmax(model(torch.tensor([ids])).logits[0] / 0.5, dim=-1)
        found = learner(kind, tied=tied).logprobs(ids, temperature=0.5)
        assert found[1:] == pytest.approx([float(expected[at - 1, ids[at]]) for at in range(1, 5)], abs=1e-5)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("advantage", [3e38, 1e25])  # too large for the loss, and for the norm alone
def test_a_step_that_is_no_number_is_refused_and_changes_nothing(advantage: float) -> None:
    taught, untouched = learner(), learner()
    taught.update(MIXED)
    untouched.update(MIXED)
    with pytest.raises(LearnerError, match=r"of step 1 of update 2 is -?inf, so the step was skipped"):
        taught.update(batch(row([1, 2, 3, 4], [0, 1, 1, 1], advantage=advantage, logprobs=[-20.0] * 4)))
    assert taught.version == 1
    for each in (taught, untouched):
        each.update(MIXED)
    assert same_bits(weights(taught), weights(untouched))


def test_a_later_step_that_is_no_number_takes_the_earlier_ones_back(tmp_path: Path) -> None:
    calm, wild = learner(num_epochs=3, num_minibatches=2), learner(num_epochs=3, num_minibatches=2, learning_rate=1e30)
    calm.update(MIXED)
    calm.save(tmp_path / "before")
    wild.load(tmp_path / "before")
    with pytest.raises(LearnerError, match="of step 2 of update 2 is"):
        wild.update(MIXED)
    wild.save(tmp_path / "after")
    before, after = read_checkpoint(tmp_path / "before"), read_checkpoint(tmp_path / "after")
    assert before.facts == after.facts
    assert same_bits(before.tensors, after.tensors)


def test_a_row_that_is_no_number_is_named() -> None:
    taught = learner()
    with pytest.raises(ConfigError, match=r"row 1 \(train/0/t/7\) has an advantage of nan"):
        taught.update(batch(row([1, 2], [0, 1]), row([1, 2], [0, 1], advantage=math.nan, rollout=7)))
    with pytest.raises(ConfigError, match=r"row 0 \(train/0/t/0\) has a sampled logprob that is no number"):
        taught.update(batch(row([1, 2], [0, 1], logprobs=[0.0, math.nan])))
    with pytest.raises(ConfigError, match="token 97 of train/0/t/0 is not among the model's 97"):
        taught.update(batch(row([1, 97, 2], [0, 0, 1])))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        TorchLearner(tmp_path, LearnerConfig())
    (tmp_path / "config.json").write_text((model_folder() / "config.json").read_text())
    with pytest.raises(ConfigError, match="cannot be read"):
        TorchLearner(tmp_path, LearnerConfig())
    with pytest.raises(ConfigError, match="device=gpu: give auto, cpu or cuda"):
        TorchLearner(model_folder(), LearnerConfig(), device="gpu")


def test_a_family_that_bends_its_logits_is_refused(tmp_path: Path) -> None:
    import transformers

    config = transformers.GraniteConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=4.0,
    )
    made: Any = transformers.GraniteForCausalLM
    made(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="transforms its logits after the head"):
        TorchLearner(tmp_path, LearnerConfig(), device="cpu")

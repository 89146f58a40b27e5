"""The losses against numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.engine.training.config import (
    LearnerConfig,
    LoraConfig,
    LossConfig,
    WarmStartConfig,
    paper_settings,
)
from slipstream.engine.training.losses import TokenLosses, row_scales, token_losses
from slipstream.errors import ConfigError


def losses(
    current: Any,
    proximal: list[float],
    behaviour: list[float],
    advantages: list[float],
    rows: list[int] | None = None,
    **config: Any,
) -> TokenLosses:
    """From probabilities; `current` may be a tensor of logprobs."""
    return token_losses(
        current=current if isinstance(current, torch.Tensor) else torch.tensor(current).log(),
        proximal=torch.tensor(proximal).log(),
        behaviour=torch.tensor(behaviour).log(),
        advantages=torch.tensor(advantages),
        rows=torch.tensor(rows or [0] * len(proximal)),
        config=LossConfig(**config),
    )


def with_gradient(probabilities: list[float]) -> Any:
    return torch.tensor(probabilities).log().requires_grad_()


def gradient_of(current: Any, terms: TokenLosses) -> list[float]:
    torch.autograd.backward(terms.loss.sum())
    found: list[float] = current.grad.tolist()
    return found


def test_importance_sampling_is_weight_times_ratio_times_advantage() -> None:
    current = with_gradient([0.5, 0.25, 0.1])
    terms = losses(
        current, [0.5, 0.5, 0.2], [0.25, 0.5, 0.8], [2.0, 2.0, -1.0], kind="importance_sampling", weight_cap=None
    )
    assert terms.ratio.tolist() == pytest.approx([1.0, 0.5, 0.5])
    assert terms.weight.tolist() == pytest.approx([2.0, 1.0, 0.25])
    assert terms.loss.tolist() == pytest.approx([-4.0, -1.0, 0.125])
    assert gradient_of(current, terms) == pytest.approx([-4.0, -1.0, 0.125])  # a ratio is its own derivative


def test_the_weight_is_cut_off_at_its_cap_and_reported_before_that() -> None:
    terms = losses([0.5, 0.25], [0.5, 0.5], [0.25, 0.5], [2.0, 2.0], weight_cap=1.5)
    assert terms.loss.tolist() == pytest.approx([-3.0, -1.0])
    assert terms.weight.tolist() == pytest.approx([2.0, 1.0])


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    current = with_gradient([0.5, 0.25, 0.1])
    sampled = [0.5, 0.25, 0.1]
    for kind in ("importance_sampling", "ppo_clip", "sequence"):
        current.grad = None
        terms = losses(current, sampled, sampled, [1.5, 1.5, 1.5], kind=kind)
        assert gradient_of(current, terms) == pytest.approx([-1.5, -1.5, -1.5])


def test_the_clip_holds_on_both_sides_and_only_where_it_would_gain() -> None:
    current = with_gradient([0.75, 0.25, 0.75, 0.25, 0.55])
    same = [0.5] * 5
    terms = losses(
        current, same, same, [1.0, 1.0, -1.0, -1.0, 1.0], kind="ppo_clip", clip_low=0.2, clip_high=0.3
    )  # ratios 1.5, 0.5, 1.5, 0.5, 1.1
    assert terms.loss.tolist() == pytest.approx([-1.3, -0.5, 1.5, 0.8, -1.1])
    assert terms.clipped_high.tolist() == [True, False, False, False, False]
    assert terms.clipped_low.tolist() == [False, False, False, True, False]
    assert gradient_of(current, terms) == pytest.approx([0.0, -0.5, 1.5, 0.0, -1.1])


def test_the_clip_is_on_the_proximal_policy_and_the_behaviour_is_a_weight() -> None:
    current = with_gradient([0.6])
    terms = losses(current, [0.5], [0.25], [1.0], kind="ppo_clip", clip_high=0.3, weight_cap=1.8)
    assert terms.loss.tolist() == pytest.approx([-1.8 * 1.2])  # 0.6 / 0.25 would be far beyond the clip


def test_a_sequence_has_one_ratio_the_geometric_mean_of_its_tokens() -> None:
    current = with_gradient([0.8, 0.1, 0.6])  # ratios 2, 1/2 in row 0 and 1.2 in row 1
    same = [0.4, 0.2, 0.5]
    terms = losses(current, same, same, [1.0, 1.0, 2.0], rows=[0, 0, 1], kind="sequence", clip_high=0.1)
    assert terms.ratio.tolist() == pytest.approx([1.0, 1.0, 1.2])
    assert terms.loss.tolist() == pytest.approx([-1.0, -1.0, -2.2])
    assert terms.clipped_high.tolist() == [False, False, True]
    assert gradient_of(current, terms) == pytest.approx([-1.0, -1.0, 0.0])


def test_a_sequence_has_one_weight_too() -> None:
    terms = losses([0.4, 0.2], [0.4, 0.2], [0.1, 0.2], [1.0, 1.0], kind="sequence", weight_cap=None)
    assert terms.weight.tolist() == pytest.approx([2.0, 2.0])  # the root of 4 x 1
    assert terms.loss.tolist() == pytest.approx([-2.0, -2.0])


def test_ratios_beyond_all_measure_stay_numbers() -> None:
    for kind in ("importance_sampling", "ppo_clip", "sequence"):
        current = torch.tensor([0.0, -500.0]).requires_grad_()
        terms = token_losses(
            current=current,
            proximal=torch.tensor([-500.0, 0.0]),
            behaviour=torch.tensor([-500.0, 0.0]),
            advantages=torch.tensor([1.0, -1.0]),
            rows=torch.tensor([0, 1]),
            config=LossConfig(kind=kind),
        )
        assert all(math.isfinite(value) for value in terms.loss.tolist())
        assert all(math.isfinite(value) for value in gradient_of(current, terms))


small = st.floats(-1.0, 1.0)


@given(
    tokens=st.lists(st.tuples(small, small, small), min_size=1, max_size=5),
    kind=st.sampled_from(["importance_sampling", "ppo_clip", "sequence"]),
)
@settings(max_examples=60, deadline=None)
def test_gradients_are_what_small_changes_say(tokens: list[tuple[float, float, float]], kind: Any) -> None:
    start = torch.tensor([token[0] for token in tokens], dtype=torch.float64)
    advantages = torch.tensor([token[1] for token in tokens], dtype=torch.float64)
    behaviour = torch.tensor([token[2] for token in tokens], dtype=torch.float64)
    rows = torch.tensor([place // 2 for place in range(len(tokens))])
    config = LossConfig(kind=kind, clip_low=0.2, clip_high=0.3)

    def terms(current: Any) -> TokenLosses:
        return token_losses(
            current=current,
            proximal=torch.zeros_like(current),
            behaviour=behaviour,
            advantages=advantages,
            rows=rows,
            config=config,
        )

    current = start.clone().requires_grad_()
    found = terms(current)
    at_an_edge = ((found.ratio - 0.8).abs() < 1e-4) | ((found.ratio - 1.3).abs() < 1e-4)
    if bool(at_an_edge.any()):
        return
    slope = gradient_of(current, found)
    for place in range(len(tokens)):
        up, down = start.clone(), start.clone()
        up[place] += 1e-6
        down[place] -= 1e-6
        expected = float(terms(up).loss.sum() - terms(down).loss.sum()) / 2e-6
        assert slope[place] == pytest.approx(expected, abs=1e-6)


def test_each_normaliser_divides_by_what_it_says() -> None:
    rollouts, num_tokens = ["a", "a", "b"], [2, 3, 5]
    assert row_scales(rollouts, num_tokens, "token", fixed_length=100) == [1 / 10] * 3
    assert row_scales(rollouts, num_tokens, "sequence", fixed_length=100) == [1 / 10] * 3  # 1 / (2 rollouts x 5 tokens)
    assert row_scales(["a", "a", "b"], [2, 2, 1], "sequence", fixed_length=100) == [1 / 8, 1 / 8, 1 / 2]
    assert row_scales(rollouts, num_tokens, "fixed", fixed_length=100) == [1 / 200] * 3


def test_rollouts_without_trained_tokens_do_not_count() -> None:
    assert row_scales(["a", "b"], [4, 0], "fixed", fixed_length=10)[0] == 1 / 10
    assert row_scales(["a", "b"], [4, 0], "sequence", fixed_length=10)[0] == 1 / 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=12))
def test_sequence_normalisation_gives_every_rollout_the_same_weight(rows: list[tuple[int, int]]) -> None:
    rollouts, num_tokens = [row[0] for row in rows], [row[1] for row in rows]
    scales = row_scales(rollouts, num_tokens, "sequence", fixed_length=1)
    for rollout in set(rollouts):
        share = sum(scale * row[1] for scale, row in zip(scales, rows, strict=True) if row[0] == rollout)
        assert share == pytest.approx(1 / len(set(rollouts)))


def test_the_paper_divides_by_a_constant_and_takes_one_step() -> None:
    config = paper_settings(context_tokens=4_096)
    assert (config.loss.normaliser, config.loss.fixed_length) == ("fixed", 4_096)
    assert (config.num_epochs, config.num_minibatches, config.learning_rate) == (1, 1, 1e-6)


@pytest.mark.parametrize(
    ("kind", "wrong", "sentence"),
    [
        (LearnerConfig, {"temperature": 0.0}, "temperature=0.0: give a number above 0"),
        (LearnerConfig, {"learning_rate": math.nan}, "learning_rate=nan"),
        (LearnerConfig, {"num_epochs": 0}, "num_epochs=0: give 1 or more"),
        (LearnerConfig, {"max_grad_norm": -1.0}, "max_grad_norm=-1.0"),
        (LearnerConfig, {"betas": (0.9, 1.0)}, "betas="),
        (LearnerConfig, {"compute": "float16"}, "compute=float16: give auto, float32 or bfloat16"),
        (LearnerConfig, {"method": "qlora"}, "method=qlora: give full or lora"),
        (LossConfig, {"kind": "grpo"}, "loss.kind=grpo: give one of importance_sampling, ppo_clip, sequence"),
        (LossConfig, {"clip_low": 1.5}, "loss.clip_low=1.5"),
        (LossConfig, {"normaliser": "mean"}, "loss.normaliser=mean"),
        (LoraConfig, {"rank": 0}, "lora.rank=0: give 1 or more"),
        (WarmStartConfig, {"limit_s": 0.0}, "limit_s=0.0"),
    ],
)
def test_a_wrong_setting_is_named_with_the_remedy(kind: Any, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        kind(**wrong)

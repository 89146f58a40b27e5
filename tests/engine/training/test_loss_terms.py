"""Every loss and every term of it against a second implementation: plain numbers, one token at a time, and gradients by
small changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
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
    transformers_model,
)

from slipstream.engine.training.config import LearnerConfig, LoraConfig, LossConfig, rate_factor
from slipstream.engine.training.learner import TorchLearner
from slipstream.engine.training.losses import divergence, token_losses
from slipstream.engine.training.trainable import Trainable
from slipstream.errors import ConfigError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Token:
    current: float
    proximal: float
    behaviour: float
    reference: float
    advantage: float
    row: int


def slow_loss(tokens: list[Token], config: LossConfig) -> float:
    """The formulas of docs/learning.md, read aloud. What carries no gradient there is taken from `tokens` as it is here
    too, so that a change of a single `current` shows the gradient."""
    return sum(_slow_token(place, tokens, tokens, config) for place in range(len(tokens)))


def _slow_token(place: int, tokens: list[Token], held: list[Token], config: LossConfig) -> float:
    """`held` are the tokens before a small change: what is a constant factor is computed from them."""

    def ratio(among: list[Token]) -> float:
        own = among[place]
        if config.kind == "sequence":
            gaps = [each.current - each.proximal for each in among if each.row == own.row]
            return math.exp(sum(gaps) / len(gaps))
        return math.exp(own.current - own.proximal)

    own = tokens[place]
    gaps = [each.proximal - each.behaviour for each in tokens if each.row == own.row]
    if config.kind == "sequence" or config.weight_level == "geometric":
        weight = math.exp(sum(gaps) / len(gaps))
    elif config.weight_level == "sequence":
        weight = math.exp(sum(gaps))
    else:
        weight = math.exp(own.proximal - own.behaviour)
    cap = math.inf if config.weight_cap is None else config.weight_cap
    if config.weight_rule == "cap":
        weight = min(weight, cap)
    elif weight > cap or weight < (config.weight_floor or 0.0):
        weight = 0.0

    low, high = 1 - config.clip_low, 1 + config.clip_high
    if config.kind == "importance_sampling":
        gain = ratio(tokens) * own.advantage
    elif config.kind == "cispo":
        gain = min(max(ratio(held), low), high) * own.advantage * own.current
    else:
        gain = min(ratio(tokens) * own.advantage, min(max(ratio(tokens), low), high) * own.advantage)
        if config.dual_clip is not None and own.advantage < 0:
            gain = max(gain, config.dual_clip * own.advantage)
    loss = -weight * gain
    if config.kl:
        gap = own.current - own.reference
        loss += config.kl * {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[config.kl_estimator]
    return loss


def slow_gradient_of(tokens: list[Token], config: LossConfig) -> list[float]:
    slopes = []
    for changed in range(len(tokens)):
        sides = []
        for step in (1e-6, -1e-6):
            moved = [
                Token(**{**each.__dict__, "current": each.current + step * (place == changed)})
                for place, each in enumerate(tokens)
            ]
            sides.append(sum(_slow_token(place, moved, tokens, config) for place in range(len(tokens))))
        slopes.append((sides[0] - sides[1]) / 2e-6)
    return slopes


def fast(tokens: list[Token], config: LossConfig) -> tuple[Any, Any]:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(each, name) for each in tokens], dtype=torch.float64)

    current = column("current").requires_grad_()
    terms = token_losses(
        current=current,
        proximal=column("proximal"),
        behaviour=column("behaviour"),
        advantages=column("advantage"),
        rows=torch.tensor([each.row for each in tokens]),
        config=config,
        reference=column("reference") if config.kl else None,
    )
    torch.autograd.backward(terms.loss.sum())
    return terms, current.grad


CONFIGS = {
    "importance_sampling": LossConfig(),
    "ppo_clip": LossConfig(kind="ppo_clip", clip_high=0.28),
    "sequence": LossConfig(kind="sequence"),
    "cispo": LossConfig(kind="cispo", clip_low=1.0, clip_high=0.4),
    "cispo_both_ends": LossConfig(kind="cispo", clip_low=0.3, clip_high=0.3),
    "dual_clip": LossConfig(kind="ppo_clip", dual_clip=1.5),
    "dual_clip_sequence": LossConfig(kind="sequence", dual_clip=1.3),
    "no_cap": LossConfig(weight_cap=None),
    "masked": LossConfig(weight_rule="mask", weight_cap=1.6, weight_floor=0.6),
    "masked_above": LossConfig(kind="ppo_clip", weight_rule="mask", weight_cap=1.6),
    "masked_by_row": LossConfig(weight_rule="mask", weight_level="sequence", weight_cap=2.0, weight_floor=0.5),
    "capped_by_row": LossConfig(weight_level="sequence", weight_cap=1.5),
    "capped_geometric": LossConfig(weight_level="geometric", weight_cap=1.2),
    "kl_k1": LossConfig(kl=0.3, kl_estimator="k1"),
    "kl_k2": LossConfig(kl=0.3, kl_estimator="k2"),
    "kl_k3": LossConfig(kind="ppo_clip", kl=0.3, kl_estimator="k3"),
}
EDGES = (0.6, 0.7, 0.8, 1.2, 1.28, 1.3, 1.4, 1.5)


def on_an_edge(terms: Any) -> bool:
    return any(bool(((terms.ratio - edge).abs() < 1e-4).any()) for edge in EDGES)


near = st.floats(-1.0, 1.0)


@pytest.mark.parametrize("name", CONFIGS)
@given(drawn=st.lists(st.tuples(near, near, near, near, near), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_loss_and_gradient_are_those_of_the_slow_formula(name: str, drawn: list[tuple[float, ...]]) -> None:
    config = CONFIGS[name]
    tokens = [
        Token(current=a - 2, proximal=b - 2, behaviour=c - 2, reference=d - 2, advantage=e, row=place // 2)
        for place, (a, b, c, d, e) in enumerate(drawn)
    ]
    terms, slope = fast(tokens, config)
    if on_an_edge(terms):
        return
    assert float(terms.loss.detach().sum()) == pytest.approx(slow_loss(tokens, config), abs=1e-9)
    assert slope.tolist() == pytest.approx(slow_gradient_of(tokens, config), abs=1e-6)


def test_the_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    tokens = [
        Token(
            current=math.log(0.9), proximal=math.log(0.1), behaviour=math.log(0.1), reference=0, advantage=-2.0, row=0
        )
    ]
    terms, slope = fast(tokens, LossConfig(kind="ppo_clip", dual_clip=3.0))
    assert terms.loss.tolist() == pytest.approx([6.0])  # the ratio is 9
    assert (slope.tolist(), terms.clipped_high.tolist()) == ([0.0], [True])


def test_cispo_keeps_the_gradient_that_a_clip_would_take() -> None:
    tokens = [
        Token(current=math.log(0.9), proximal=math.log(0.1), behaviour=math.log(0.1), reference=0, advantage=2.0, row=0)
    ]
    assert fast(tokens, LossConfig(kind="ppo_clip", clip_high=0.5))[1].tolist() == [0.0]
    assert fast(tokens, LossConfig(kind="cispo", clip_high=0.5))[1].tolist() == pytest.approx([-3.0])


def test_a_masked_token_has_no_gradient_and_is_counted() -> None:
    tokens = [
        Token(current=-1.0, proximal=-1.0, behaviour=behaviour, reference=0, advantage=1.0, row=place)
        for place, behaviour in enumerate((-1.0, -3.0, -0.1))  # weights 1, e^2, e^-0.9
    ]
    terms, slope = fast(tokens, LossConfig(weight_rule="mask", weight_cap=2.0, weight_floor=0.5))
    assert terms.masked.tolist() == [False, True, True]
    assert slope.tolist() == pytest.approx([-1.0, 0.0, 0.0])


def test_the_estimators_agree_on_the_divergence_and_k1_has_no_gradient_in_the_mean() -> None:
    """Exact expectations over a distribution of four outcomes."""
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.1, 0.1, 0.4, -0.3], dtype=torch.float64), dim=0)
    logprobs: Any = torch.log_softmax(logits, dim=0)
    chances = logprobs.detach().exp()
    true = float((chances * (logprobs.detach() - reference)).sum())
    estimators: tuple[Any, ...] = ("k1", "k3")
    for estimator in estimators:
        assert float((chances * divergence(logprobs.detach(), reference, estimator)).sum()) == pytest.approx(true)
    torch.autograd.backward((chances * divergence(logprobs, reference, "k1")).sum(), retain_graph=True)
    assert logits.grad is not None and logits.grad.abs().max() < 1e-12
    logits.grad = None
    torch.autograd.backward((chances * divergence(logprobs, reference, "k2")).sum(), retain_graph=True)
    by_k2: Any = logits.grad
    logits.grad = None
    torch.autograd.backward((logprobs.exp() * (logprobs - reference)).sum())
    slope: Any = logits.grad
    assert torch.allclose(by_k2, slope)  # the true gradient of the divergence


# ---------------------------------------------------------------- through the learner

ROWS = batch(
    row([5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 1], advantage=1.0, rollout=0),
    row([20, 21, 22, 23], [0, 1, 1, 0], advantage=-0.5, rollout=1),
)
FLAT = batch(
    *(row(each.sample.ids, each.sample.mask, advantage=0.0, rollout=place) for place, each in enumerate(ROWS.rows))
)


def trained_distributions(model: Any) -> list[tuple[Any, int]]:
    """For each trained token of ROWS, the logprobs of all tokens and the one that was sampled."""
    found = []
    for each in ROWS.rows:
        logprobs = torch.log_softmax(model(torch.tensor([list(each.sample.ids)])).logits[0], dim=-1)
        found += [(logprobs[at - 1], each.sample.ids[at]) for at, bit in enumerate(each.sample.mask) if bit]
    return found


def test_the_entropy_bonus_has_the_gradient_of_the_entropy(tmp_path: Path) -> None:
    model = transformers_model(model_folder())
    terms = trained_distributions(model)
    bonus = sum(-(logprobs.exp() * logprobs).sum() for logprobs, _ in terms) / len(terms)
    torch.autograd.backward(-0.1 * bonus)
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = gradient(FLAT, tmp_path, loss=LossConfig(entropy_bonus=0.1))
    assert_close(found, expected)


def test_the_entropy_bonus_is_the_same_with_logits_in_pieces() -> None:
    whole = Trainable(model_folder(), LearnerConfig(), device=CPU, seed=0)
    pieces = Trainable(model_folder(), LearnerConfig(), device=CPU, seed=0, max_logits=2 * VOCAB)
    ids, places, targets = torch.arange(8)[None], torch.arange(7), torch.arange(1, 8)
    for model in (whole, pieces):
        scores = model.score(ids, places, targets, temperature=1.0, entropy="gradient")
        assert scores.entropy is not None
        torch.autograd.backward(scores.entropy.sum())
    for name, parameter in whole.parameters.items():
        assert torch.allclose(parameter.grad, pieces.parameters[name].grad, atol=1e-6), name  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_reference_is_the_folder_s_model_however_far_the_policy_has_moved(method: Any) -> None:
    taught = learner(method=method, lora=LoraConfig(rank=4), learning_rate=0.05, loss=LossConfig(kl=0.1))
    first = taught.update(on_policy(taught, ROWS))
    assert first.metrics["learn/reference_kl"] == pytest.approx(0.0, abs=1e-6)
    second = taught.update(on_policy(taught, ROWS))
    assert second.metrics["learn/reference_kl"] > 0.01

    folder = learner(method=method, lora=LoraConfig(rank=4))
    moved: list[float] = []
    third = on_policy(taught, ROWS)
    for each in third.rows:
        now, then = taught.logprobs(each.sample.ids), folder.logprobs(each.sample.ids)
        gaps = [a - b for a, b, bit in zip(now, then, each.sample.mask, strict=True) if bit]
        moved += [math.exp(-gap) - 1 + gap for gap in gaps]
    assert taught.update(third).metrics["learn/reference_kl"] == pytest.approx(sum(moved) / len(moved), rel=1e-3)


def test_a_kl_term_pulls_back_to_the_reference() -> None:
    def distance(of: TorchLearner) -> float:
        start = learner()
        return sum(
            abs(a - b)
            for each in ROWS.rows
            for a, b in zip(of.logprobs(each.sample.ids), start.logprobs(each.sample.ids), strict=True)
        )

    taught = learner(learning_rate=0.003, loss=LossConfig(kl=1.0, kl_estimator="k2"))
    pushed = batch(
        *(row(each.sample.ids, each.sample.mask, advantage=40.0, rollout=at) for at, each in enumerate(ROWS.rows))
    )
    for _ in range(2):
        taught.update(pushed)
    away = distance(taught)
    for _ in range(12):
        taught.update(on_policy(taught, FLAT))
    assert distance(taught) < 0.7 * away


def test_the_gradient_of_the_kl_term_does_not_depend_on_the_micro_batches(tmp_path: Path) -> None:
    taught = learner(learning_rate=0.05, loss=LossConfig(kl=0.1))
    given = on_policy(taught, ROWS)
    loss = LossConfig(kl=0.5, entropy_bonus=0.2)
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one = gradient(given, tmp_path / "one", loss=loss)
    assert_close(gradient(given, tmp_path / "many", loss=loss, tokens_per_microbatch=4), one)


def test_the_rate_falls_like_half_a_wave() -> None:
    heights = [rate_factor(step, 13, 2, decay="cosine") for step in range(13)]
    assert heights[:2] == [0.5, 1.0]
    assert heights[2] == 1.0
    assert heights[7] == pytest.approx(0.55)
    assert heights[12] == pytest.approx(0.1)
    assert heights[4] > rate_factor(4, 13, 2)  # slow to begin with


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dual_clip": 1.1, "kind": "ppo_clip"}, "loss.dual_clip=1.1: give more than 1"),
        ({"dual_clip": 3.0}, "loss.dual_clip=3.0: loss.kind=importance_sampling has no such clip"),
        ({"weight_floor": 0.5}, "loss.weight_floor=0.5: only loss.weight_rule=mask"),
        ({"weight_floor": 3.0, "weight_rule": "mask"}, "loss.weight_floor=3.0: give less than loss.weight_cap=2.0"),
        ({"kl": -0.1}, "loss.kl=-0.1: give 0 or more"),
        ({"kl_estimator": "k4"}, "loss.kl_estimator=k4: give k1, k2, k3"),
        ({"entropy_bonus": math.inf}, "loss.entropy_bonus=inf: give 0 or more"),
    ],
)
def test_a_wrong_term_is_named_with_the_remedy(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.").replace("+", r"\+")):
        LossConfig(**wrong)

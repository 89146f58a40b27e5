"""Rows that lie one after another are computed as rows of their own. With a slow kernel in place of the GPU's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_stage import learner, row, same_bits, weights

from slipstream.engine.training import packing, trainable
from slipstream.engine.training.microbatches import collate, plan, train_rows
from slipstream.engine.training.packing import Packed
from slipstream.types import Batch

ROWS = (
    row([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], advantage=1.0, rollout=0),
    row([9, 8, 7], [0, 0, 1], advantage=-2.0, rollout=1),
    row([4, 4, 4, 4, 6, 1, 2], [0, 0, 1, 1, 1, 1, 1], advantage=0.5, rollout=2),
)


def slow_kernel() -> Any:
    def call(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, longest: int, scale: float
    ) -> torch.Tensor:
        found = []
        bounds = ends.tolist()
        for start, end in pairwise(bounds):
            assert end - start <= longest
            asks, told, holds = (each[start:end].transpose(0, 1) for each in (query, key, value))
            mixed = torch.nn.functional.scaled_dot_product_attention(asks, told, holds, is_causal=True, scale=scale)
            found.append(mixed.transpose(0, 1))
        return torch.cat(found)

    return call


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainable, "can_pack", lambda device, compute: True)
    monkeypatch.setattr(packing, "_kernel", slow_kernel)


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("budget", [10_000, 8])
def test_what_is_learnt_from_packed_rows_is_what_is_learnt_from_padded_ones(
    kind: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"learning_rate": 1e-3, "num_epochs": 2, "tokens_per_microbatch": budget}
    packed = learner(kind, **settings)
    assert packed._model.packs
    one = packed.update(Batch(rows=ROWS, metrics={}))
    monkeypatch.undo()
    padded = learner(kind, **settings)
    assert not padded._model.packs
    other = padded.update(Batch(rows=ROWS, metrics={}))
    for name in ("learn/loss", "learn/grad_norm", "learn/entropy", "learn/ratio_max"):
        assert one.metrics[name] == pytest.approx(other.metrics[name], rel=1e-4)
    mine, theirs = weights(packed), weights(padded)
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-6) for name in mine)


@pytest.mark.usefixtures("packs")
def test_a_row_does_not_see_its_neighbours() -> None:
    first, second = (learner(), learner())
    alone = first._model
    made = train_rows(ROWS, vocab_size=97)
    device = torch.device("cpu")
    together = collate(made, [1.0] * 3, device, pack=True)
    scores = second._model.score_batch(together, temperature=1.0)
    apart = [alone.score_batch(collate([one], [1.0], device, pack=True), temperature=1.0) for one in made]
    assert torch.allclose(scores.logprobs, torch.cat([one.logprobs for one in apart]), atol=1e-6)


@pytest.mark.usefixtures("packs")
def test_padded_ids_still_go_through_a_model_that_packs() -> None:
    taught = learner()
    assert taught.logprobs([1, 2, 3, 4])[1:] == pytest.approx(_unpacked([1, 2, 3, 4]), abs=1e-5)


def _unpacked(ids: list[int]) -> list[float]:
    from learner_stage import model_folder, transformers_model

    with torch.no_grad():
        logits = transformers_model(model_folder())(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logits[place, ids[place + 1]]) for place in range(len(ids) - 1)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_packed_rows_are_each_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = plan(lengths, budget, pack=True)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    assert all(len(group) == 1 or sum(lengths[place] for place in group) <= budget for group in groups)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_positions_begin_anew_with_every_row(lengths: list[int]) -> None:
    packed = Packed.of(torch.tensor(lengths))
    assert packed.positions.tolist() == [place for length in lengths for place in range(length)]
    assert packed.ends.tolist() == [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    assert packed.longest == max(lengths)


def test_without_a_kernel_rows_are_padded() -> None:
    assert not packing.can_pack(torch.device("cpu"), torch.bfloat16)
    assert not packing.can_pack(torch.device("cuda"), None)
    one, other = learner(seed=1), learner(seed=1)
    for each in (one, other):
        each.update(Batch(rows=ROWS, metrics={}))
    assert same_bits(weights(one), weights(other))

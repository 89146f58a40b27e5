"""The forward pass agrees with transformers', however tokens are split into passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_stage import KINDS, WINDOW, prompt, tiny

from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.plan import Piece
from slipstream.engine.model.spec import read_spec
from slipstream.engine.model.weights import read_weights
from slipstream.errors import ConfigError

TOLERANCE = 1e-4


def decoder_of(folder: Path, *, num_slots: int = 4, dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = Decoder(
        read_spec(folder), num_slots=num_slots, context_tokens=WINDOW, device=torch.device("cpu"), dtype=dtype
    )
    decoder.load_weights(read_weights(folder))
    return decoder


def expected(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    assert first.shape == second.shape
    return float((first - second).abs().max())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_and_the_tokens_after_it_give_the_logits_of_transformers(kind: str, tied: bool) -> None:
    folder, model = tiny(kind, tied=tied)
    ids = prompt(40)
    wanted = expected(model, ids)
    with torch.inference_mode():
        decoder = decoder_of(folder)
        got = [decoder.forward((), [Piece(slot=2, start=0, ids=ids[:30])], outputs=[0])]
        got += [decoder.forward([Piece(slot=2, start=at, ids=ids[at : at + 1])], outputs=[0]) for at in range(30, 40)]
    assert distance(torch.cat(got), wanted[29:]) < TOLERANCE
    assert wanted.std() > 0.5  # logits that hardly differ would prove nothing


def test_a_prompt_in_chunks_gives_the_same_logits() -> None:
    folder, model = tiny("qwen3")
    ids = prompt(50)
    wanted = expected(model, ids)
    with torch.inference_mode():
        decoder = decoder_of(folder)
        for start, end in ((0, 7), (7, 8), (8, 31)):
            decoder.forward((), [Piece(slot=0, start=start, ids=ids[start:end])], outputs=[])
        got = decoder.forward((), [Piece(slot=0, start=31, ids=ids[31:])], outputs=[0])
    assert distance(got[0], wanted[-1]) < TOLERANCE


@pytest.mark.parametrize(("separate", "gathers"), [(False, False), (True, False), (False, True), (True, True)])
def test_sequences_of_different_lengths_and_chunks_share_a_pass(separate: bool, gathers: bool) -> None:
    folder, model = tiny("llama")
    lengths = (3, 41, 40, 300)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    fifth = prompt(20, 9)
    with torch.inference_mode():
        decoder = decoder_of(folder, num_slots=6)
        decoder.gathers = gathers
        for slot, ids in enumerate(prompts):
            decoder.forward((), [Piece(slot=slot, start=0, ids=ids[:-1])], outputs=[])
        decoder.forward((), [Piece(slot=5, start=0, ids=fifth[:5])], outputs=[])
        singles = [Piece(slot=slot, start=len(ids) - 1, ids=ids[-1:]) for slot, ids in enumerate(prompts)]
        chunks = [Piece(slot=4, start=0, ids=fifth[:7]), Piece(slot=5, start=5, ids=fifth[5:])]
        got = decoder.forward(singles, chunks, outputs=[0, 1, 2, 3, 5], separate=separate)
    for row, ids in enumerate([*prompts, fifth]):
        assert distance(got[row], expected(model, ids)[-1]) < TOLERANCE


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10_000.0,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10_000.0},
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_rope_scaling_is_that_of_transformers(rope: dict[str, Any]) -> None:
    folder, model = tiny("qwen3", rope_parameters=tuple(rope.items()))
    ids = prompt(200)
    with torch.inference_mode():
        got = decoder_of(folder).forward((), [Piece(slot=0, start=0, ids=ids)], outputs=[0])
    assert distance(got[0], expected(model, ids)[-1]) < TOLERANCE


def test_biases_of_a_llama_are_added() -> None:
    folder, model = tiny("llama", attention_bias=True, mlp_bias=True)
    ids = prompt(12)
    with torch.inference_mode():
        got = decoder_of(folder).forward((), [Piece(slot=0, start=0, ids=ids)], outputs=[0])
    assert distance(got[0], expected(model, ids)[-1]) < TOLERANCE


def test_bfloat16_is_close_to_float32() -> None:
    folder, model = tiny("llama")
    ids = prompt(12)
    with torch.inference_mode():
        decoder = decoder_of(folder, dtype=torch.bfloat16)
        got = decoder.forward((), [Piece(slot=0, start=0, ids=ids)], outputs=[0]).float()
    wanted = expected(model, ids)[-1]
    assert distance(got[0], wanted) < 0.1 * float(wanted.std()) + 0.1


def test_a_copied_prefix_is_as_good_as_a_computed_one() -> None:
    folder, model = tiny("qwen2")
    ids = prompt(30)
    with torch.inference_mode():
        decoder = decoder_of(folder)
        decoder.forward((), [Piece(slot=0, start=0, ids=ids[:20])], outputs=[])
        decoder.copy_prefix(0, 3, 18)
        got = decoder.forward((), [Piece(slot=3, start=18, ids=ids[18:])], outputs=[0])
    assert distance(got[0], expected(model, ids)[-1]) < TOLERANCE


def test_new_weights_replace_the_old_ones_part_by_part() -> None:
    folder, _ = tiny("qwen3", tied=True)
    _, other = tiny("qwen3", tied=True, seed=1)
    ids = prompt(12)
    with torch.inference_mode():
        decoder = decoder_of(folder)
        named = list(other.named_parameters())
        decoder.load_weights(named[: len(named) // 2])
        decoder.load_weights(named[len(named) // 2 :])
        got = decoder.forward((), [Piece(slot=0, start=0, ids=ids)], outputs=[0])
    assert distance(got[0], expected(other, ids)[-1]) < TOLERANCE


def test_a_wrong_weight_changes_nothing() -> None:
    folder, model = tiny("llama")
    ids = prompt(12)
    norm = torch.zeros(48)
    with torch.inference_mode():
        decoder = decoder_of(folder)
        with pytest.raises(ConfigError, match=r"no weight 'model\.nrom\.weight'"):
            decoder.load_weights([("model.norm.weight", norm), ("model.nrom.weight", norm)])
        with pytest.raises(ConfigError, match=r"model\.norm\.weight has shape \(47,\), not \(48,\)"):
            decoder.load_weights([("model.layers.0.input_layernorm.weight", norm), ("model.norm.weight", norm[1:])])
        got = decoder.forward((), [Piece(slot=0, start=0, ids=ids)], outputs=[0])
    assert distance(got[0], expected(model, ids)[-1]) < TOLERANCE

"""The demo is small enough for small models: with a vocabulary of its own, a rollout is under 200 tokens."""

from functools import cache

import pytest
from demo_stage import Play, play

from slipstream.recipes.demo.tasks import demo_tasks
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import CHATML_TOKENS, ByteTokenizer, FileTokenizer

VOCABULARY = 2_048


def train(texts: list[str]) -> FileTokenizer:
    """Byte-level BPE without a split at spaces, so that what is always said becomes one token."""
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(CHATML_TOKENS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    assert backend.get_vocab_size() <= VOCABULARY
    return FileTokenizer(backend, "demo", eos_token="<|im_end|>")


@cache
def trained() -> FileTokenizer:
    bytewise = Renderer("qwen3", ByteTokenizer())
    return train([bytewise.decode(played.ids) for played in play(demo_tasks(num=256, split="train"), bytewise)])


@cache
def held_out() -> list[Play]:
    return play(demo_tasks(num=128, split="held_out"), Renderer("qwen3", trained()))


def test_the_preamble_is_under_60_tokens() -> None:
    assert max(len(played.turns[0].added) for played in held_out()) < 60


def test_a_whole_rollout_is_under_200_tokens() -> None:
    assert max(len(played.turns) for played in held_out()) == 5
    assert max(len(played.ids) for played in held_out()) < 200


def test_the_same_is_played_with_either_tokenizer() -> None:
    bytewise = play(demo_tasks(num=128, split="held_out"), Renderer("qwen3", ByteTokenizer()))
    assert [played.commands for played in held_out()] == [played.commands for played in bytewise]


def test_no_turn_forks_so_that_a_rollout_is_one_sample() -> None:
    for played in held_out():
        for before, turn in zip(played.turns, played.turns[1:], strict=False):
            assert before.sampled is not None
            assert turn.num_kept == len(played.prompt(before)) + len(before.sampled.ids)


def test_decoding_undoes_encoding() -> None:
    tokenizer, bytewise = trained(), ByteTokenizer()
    texts = [tokenizer.decode(played.ids) for played in held_out()]
    texts += ["", " ", "  two  spaces ", "Ünïcödé ✓ 漢字\n\t", "<|im_start|>user\n<tool_call>{}</tool_call><|im_end|>"]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert bytewise.decode(bytewise.encode(text)) == text

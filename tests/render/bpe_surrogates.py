"""A small byte-level BPE that carries a family's special tokens: it merges across the seams where bytes cannot."""

from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

import slipstream.render.probes
from slipstream.render.families import FAMILY_TOKENS
from slipstream.render.tokenizers import FileTokenizer


@cache
def bpe(family: str) -> FileTokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    text = Path(slipstream.render.probes.__file__).read_text()
    roles = "\n".join(f"{role}\n\n{role}\n" for role in ("system", "user", "assistant", "tool", "ipython"))
    backend.train_from_iterator(
        [text, roles * 20, "</think>\n\n" * 20, '{"name": "search", "arguments": {' * 20], trainer
    )
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in FAMILY_TOKENS[family]])
    return FileTokenizer(backend, f"surrogate of {family}")

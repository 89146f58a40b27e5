"""The tokenizer of a GGUF file: byte-level BPE for the `tokenizers` library, and the files beside it.

Invariants: ids are those of the file, and no token is added; control tokens are special tokens; how text is split
before the merges is what the file names, and a name that is not in `_split` is refused rather than guessed.

A byte that the vocabulary lacks is dropped when text is encoded, as the model's own tokenizer does.
"""

from __future__ import annotations

from typing import Any

from slipstream.hub.architectures import architecture_of, num_tokens, special_ids
from slipstream.hub.gguf import GgufFile
from slipstream.types import Json

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 and its successors cut text before merging."""
CONTROL, USER_DEFINED = 3, 4
"""GGUF's numbers for kinds of tokens; both are matched in text as they stand, and control tokens are special."""


def build_tokenizer(file: GgufFile) -> Any:
    """A `tokenizers.Tokenizer` (Any: the library ships no types)."""
    import tokenizers
    from tokenizers import decoders, models, normalizers

    kind = file.get("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise file.unreadable(f"its tokenizer is {kind}, and only byte-level BPE (gpt2) is understood")
    if file.find("tokenizer.ggml.add_bos_token", bool) or file.find("tokenizer.ggml.add_eos_token", bool):
        raise file.unreadable("its tokenizer adds tokens to every text")
    tokens: list[str] = file.get("tokenizer.ggml.tokens", list)
    kinds: list[int] = file.get("tokenizer.ggml.token_type", list)
    merges = [tuple(merge.split(" ")) for merge in file.get("tokenizer.ggml.merges", list)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != num_tokens(file) or len(kinds) != len(tokens):
        raise file.unreadable("its tokens are not all different, or not all have a kind")
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _split(file)
    if file.get("tokenizer.ggml.pre", str) == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_tokens(
        [tokenizers.AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in marked]
    )
    return tokenizer


def special_tokens(file: GgufFile) -> dict[str, str]:
    """`{"bos_token": "<|im_start|>", ...}`: what goes into special_tokens_map.json."""
    tokens: list[str] = file.get("tokenizer.ggml.tokens", list)
    return {name: tokens[index] for name, index in special_ids(file).items()}


def tokenizer_config(file: GgufFile) -> dict[str, Json]:
    """What goes into tokenizer_config.json."""
    tokens: list[str] = file.get("tokenizer.ggml.tokens", list)
    kinds: list[int] = file.get("tokenizer.ggml.token_type", list)
    flags: dict[str, Json] = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added: dict[str, Json] = {
        str(index): {"content": token, **flags, "special": kind == CONTROL}
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    }
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "chat_template": file.find("tokenizer.chat_template", str),
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.get(f"{architecture_of(file)}.context_length", int),
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens(file),
    }


def _split(file: GgufFile) -> Any:
    """How text is cut before the merges."""
    from tokenizers import Regex, pre_tokenizers

    name = file.get("tokenizer.ggml.pre", str)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return words
    if name == "qwen2":
        bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), bytes_alone])
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    raise file.unreadable(f"its text is cut up in a way that is not known here ({name})")

"""Tokenizers with the interface that chat formats need.

`ByteTokenizer` needs no file: each byte and each special token is a token. It is for scripted models, tests and demos.
`FileTokenizer` reads a `tokenizer.json`. `ShieldedTokenizer` keeps text that merely looks like a special token as
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.render.base import SHIELD, Tokenizer
from slipstream.types import Json

CHATML_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes of UTF-8; the special tokens follow."""

    def __init__(self, special_tokens: Sequence[str] = CHATML_TOKENS) -> None:
        self.name_or_path = "bytes"
        self.special_tokens = tuple(special_tokens)
        self._ids = {token: 256 + index for index, token in enumerate(special_tokens)}
        self._bytes = {index: bytes((index,)) for index in range(256)}
        self._bytes |= {index: token.encode() for token, index in self._ids.items()}
        self._split = re.compile("(" + "|".join(re.escape(token) for token in special_tokens) + ")")
        self.unk_token_id: int | None = None
        self.eos_token_id: int | None = self._ids.get("<|im_end|>")

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        ids: list[int] = []
        for piece in self._split.split(text):
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids.extend(piece.encode("utf-8", "surrogatepass"))
        return ids

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str:
        return b"".join(map(self._bytes.__getitem__, token_ids)).decode("utf-8", "replace")

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        return self._ids.get(tokens)


class FileTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` library."""

    def __init__(self, backend: Any, name: str, eos_token: str | None = None) -> None:
        # Any: the library is optional and ships no types.
        self._backend = backend
        self.name_or_path = name
        added = (token.content for token in backend.get_added_tokens_decoder().values())
        # Some vocabularies add runs of spaces, which are plain text; SentencePiece writes a space as U+2581.
        self.special_tokens = tuple(token for token in added if token.replace("\u2581", " ").strip())
        self.unk_token_id: int | None = None
        self.eos_token_id: int | None = None if eos_token is None else backend.token_to_id(eos_token)

    @staticmethod
    def load(folder: Path) -> FileTokenizer:
        path = folder / "tokenizer.json" if folder.is_dir() else folder
        if not path.is_file():
            raise ConfigError(f"there is no tokenizer at {path}: name a model folder with a tokenizer.json in it")
        try:
            import tokenizers
        except ImportError:
            raise ConfigError(
                f"reading {path} needs the tokenizers package: pip install tokenizers (or slipstream[local])"
            ) from None
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as raised:
            raise ConfigError(f"{path} is not a tokenizer: {raised}") from raised
        eos_token = token_text(read_object(path.parent / "tokenizer_config.json").get("eos_token"))
        return FileTokenizer(backend, str(folder), eos_token)

    def save(self, path: Path) -> None:
        self._backend.save(str(path))

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        return text

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        index: int | None = self._backend.token_to_id(tokens)
        return index


class ShieldedTokenizer:
    """A tokenizer that distinguishes text from outside from a template's own special tokens.

    A tool's output that contains `<|im_end|>` must not end the message: `shield` inserts a mark into every such text,
    and `encode` splits there, so that the pieces are encoded as plain text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = tokenizer.name_or_path
        self.special_tokens = tokenizer.special_tokens
        self.unk_token_id = tokenizer.unk_token_id
        self.eos_token_id = tokenizer.eos_token_id
        longest_first = sorted((token for token in tokenizer.special_tokens if len(token) > 1), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def shield(self, text: str) -> str:
        text = text.replace(SHIELD, "")
        while self._special is not None and self._special.search(text):
            text = self._special.sub(lambda found: found[0][0] + SHIELD + found[0][1:], text)
        return text

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        return [
            index for piece in text.split(SHIELD) for index in self._tokenizer.encode(piece, add_special_tokens=False)
        ]

    def decode(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> str:
        return self._tokenizer.decode(token_ids, *args, **kwargs)

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        return self._tokenizer.convert_tokens_to_ids(tokens)


def read_object(path: Path) -> dict[str, Json]:
    """The JSON object in a file of a model folder; empty if there is no such file. Raises ConfigError."""
    if not path.is_file():
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as raised:
        raise ConfigError(f"{path} is not JSON: {raised}") from raised
    return read if isinstance(read, dict) else {}


def token_text(value: Json) -> str | None:
    """The text of a special token in `tokenizer_config.json`, which may be an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None

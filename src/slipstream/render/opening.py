"""A model's renderer, from its folder.

Enters: a folder, or `bytes`, and what is set of the family. Leaves: a Renderer over the model's own tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.render.base import Tokenizer
from slipstream.render.families import FAMILY_TOKENS, guess_family, surrogate
from slipstream.render.renderer import Renderer, Thinking
from slipstream.render.template import ChatTemplate
from slipstream.render.tokenizers import ByteTokenizer, FileTokenizer
from slipstream.types import Json

BYTES_FAMILY = "qwen3"
"""The format of scripts, unless they ask for another."""


def open_renderer(
    folder: Path | None,
    *,
    family: str = "auto",
    thinking: Thinking = "keep",
    args: Mapping[str, Json] | None = None,
) -> Renderer:
    """The renderer of the model in `folder`; with None, of a script's bytes."""
    args = dict(args or {})
    if folder is None:
        family = BYTES_FAMILY if family == "auto" else family
        return Renderer(
            family, surrogate(family) if family in FAMILY_TOKENS else ByteTokenizer(), thinking=thinking, args=args
        )
    read = FileTokenizer.load(folder)
    if family == "auto":
        family = find_family(folder, read)
    if family == "chatml" and "default_system" not in args:
        template = ChatTemplate.load(folder) if folder.is_dir() else None
        args["default_system"] = template.default_system() if template else ""
    return Renderer(family, read, thinking=thinking, args=args)


def find_family(folder: Path, tokenizer: Tokenizer) -> str:
    """The family that the folder itself names in its slipstream.json, or that its config.json lets guess."""
    named = _setting(folder / "slipstream.json", "family")
    if isinstance(named, str):
        return named
    model_type = _setting(folder / "config.json", "model_type")
    return guess_family(tokenizer, model_type if isinstance(model_type, str) else None)


def _setting(path: Path, name: str) -> Json:
    if not path.is_file():
        return None
    try:
        read = json.loads(path.read_text())
    except ValueError as raised:
        raise ConfigError(f"{path} is no JSON: {raised}") from raised
    return read.get(name) if isinstance(read, dict) else None

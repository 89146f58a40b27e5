"""Where models are stored: from a name or a path to a model folder.

Invariants: nothing is made or changed here. The environment is read when asked, never at import.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.hub.origin import Origin, read_origin
from slipstream.hub.registry import MODELS, KnownModel
from slipstream.names import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A model that is known, or fetched, or both."""

    name: str
    known: KnownModel | None
    folder: Path | None
    """None while it is not there."""
    origin: Origin | None


def default_home() -> Path:
    """`$SLIPSTREAM_HOME`, else `$XDG_CACHE_HOME/slipstream`, else `~/.cache/slipstream`."""
    if home := os.environ.get("SLIPSTREAM_HOME"):
        return Path(home).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG rules say that a relative path is to be ignored.
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "slipstream"


def models_folder(home: Path | None = None) -> Path:
    return (default_home() if home is None else home) / "models"


def find_model(text: str, *, home: Path | None = None) -> Path:
    """The model folder that a person meant: a path, or the name of a model that was fetched."""
    folder = Path(text).expanduser()
    if is_model(folder):
        return folder
    if _is_name(text) and is_model(models_folder(home) / text):
        return models_folder(home) / text
    if text in MODELS:
        raise ConfigError(f"the model {text} is not there yet: slipstream models get {text}")
    if folder.is_dir():
        raise ConfigError(f"{folder} holds neither a config.json nor a tokenizer.json: name a model folder")
    known = [listed.name for listed in list_models(home=home)]
    raise ConfigError(
        f'"{text}" is neither a model folder nor the name of a model{did_you_mean(text, known)}: '
        f"name a folder, or one of {', '.join(known)} (slipstream models get NAME)"
    )


def list_models(*, home: Path | None = None) -> list[Listed]:
    """The known models, and other model folders beside them."""
    folder = models_folder(home)
    there = sorted(path.name for path in folder.iterdir() if is_model(path)) if folder.is_dir() else []
    return [
        Listed(
            name=name,
            known=MODELS.get(name),
            folder=folder / name if name in there else None,
            origin=read_origin(folder / name) if name in there else None,
        )
        for name in [*MODELS, *(name for name in there if name not in MODELS)]
    ]


def is_model(folder: Path) -> bool:
    return not folder.name.startswith(".") and any(
        (folder / name).is_file() for name in ("config.json", "tokenizer.json")
    )


def _is_name(text: str) -> bool:
    return Path(text).name == text

"""What `model=` may be, as settings.

A URL of an OpenAI-compatible server, a model folder, the name of a model that Slipstream or the Hugging Face hub
knows, a Completer or ChatModel, a script (a function from a ScriptedCall to a reply), or a ModelConfig.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from slipstream.errors import ConfigError
from slipstream.hub import MODELS, find_model, get_model
from slipstream.hub.places import is_model
from slipstream.model.base import ChatModel, Completer
from slipstream.model.scripted import ScriptedChat
from slipstream.progress.display import progress_console
from slipstream.progress.fetching import FetchDisplay
from slipstream.settings import ModelConfig

ModelLike: TypeAlias = str | Path | ModelConfig | Completer | ChatModel | Callable[..., Any]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    settings: ModelConfig
    model: Completer | ChatModel | None = None
    """The model to use instead of the one that the settings name."""


def choose_model(model: ModelLike, base: ModelConfig, *, quiet: bool = False) -> ChosenModel:
    """The settings of `base` with this model in them. A model on a hub is downloaded now if it is missing; unless
    `quiet`, standard error shows the progress."""
    if isinstance(model, ModelConfig):
        return ChosenModel(settings=model)
    if isinstance(model, Path) or (isinstance(model, str) and is_model(Path(model).expanduser())):
        return ChosenModel(settings=replace(base, kind="local", folder=str(find_model(str(model)).resolve())))
    if isinstance(model, str):
        if re.match(r"https?://", model):
            kind = base.kind if base.kind in ("chat", "tokens") else "chat"
            return ChosenModel(settings=replace(base, kind=kind, base_url=model))
        return ChosenModel(settings=replace(base, kind="local", folder=str(fetched_model(model, quiet=quiet))))
    if isinstance(model, Completer):
        if base.folder == "bytes" and base.kind != "scripted":
            raise ConfigError(
                "a Completer samples token ids of a tokenizer that is not known: set `model.folder` to the model's "
                "folder, or to its tokenizer.json, by settings="
            )
        return ChosenModel(settings=replace(base, kind=base.kind if base.kind != "chat" else "tokens"), model=model)
    if isinstance(model, ChatModel):
        return ChosenModel(settings=replace(base, kind="chat", base_url=f"object:{type(model).__name__}"), model=model)
    if callable(model):
        settings = replace(base, kind="chat", base_url=f"script:{getattr(model, '__name__', 'script')}")
        return ChosenModel(settings=settings, model=ScriptedChat(model))
    raise ConfigError(f"the model is a {type(model).__name__}: give a URL, a folder, a name, a Completer or a script")


def fetched_model(name: str, *, quiet: bool = False) -> Path:
    """The folder of a model that a hub knows by this name."""
    if name in MODELS:
        with FetchDisplay(progress_console(quiet=quiet)) as display:
            return get_model(name, on_progress=display.show)
    if not _HUB_NAME.fullmatch(name):
        return find_model(name)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        raise ConfigError(f"fetching {name} needs huggingface_hub: pip install 'slipstream[local]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except RepositoryNotFoundError as raised:
        raise ConfigError(f"the Hugging Face hub has no model {name}, or your token may not see it") from raised
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as raised:
        raise ConfigError(
            f"the model {name} cannot be fetched and is not in the cache ({type(raised).__name__}): go online, or give "
            "the path of a model folder"
        ) from raised

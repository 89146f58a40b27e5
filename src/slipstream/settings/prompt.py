"""The prompt settings of a trained model: which of them its folder carries, and how a run uses them.

A model is good at the prompts it was trained on. So a trained model's folder says in its `slipstream.json` all that
decides what the model sees (`FolderPrompt`), and a run over that folder uses it, except where its own settings differ.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from slipstream.agent.config import AgentConfig, HintRules
from slipstream.atomic import atomic_file
from slipstream.config import from_json, to_json
from slipstream.errors import ConfigError
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.types import Json

FILE = "slipstream.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPrompt:
    """What a model was trained with. `docs/learning.md` shows the file."""

    family: str
    family_args: Mapping[str, JsonValue]
    thinking: Literal["keep", "template"]
    agent_prompt: str
    """`none`, `code`, or the text itself."""
    hints: HintRules
    version: int
    """How many updates it has seen."""


def read_folder_prompt(folder: Path) -> FolderPrompt | None:
    """What a trained model's folder says; None if it is another's. Raises ConfigError if it cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as raised:
        raise ConfigError(f"{path} cannot be read ({raised}): restore it from a copy") from raised
    if not isinstance(found, dict) or "agent_prompt" not in found:
        return None  # a model that was fetched or made: it names its family, and perhaps what that takes
    try:
        return from_json(FolderPrompt, found)
    except ConfigError as raised:
        raise ConfigError(f"{path} is of another version ({raised}): export the model again") from raised


def _family_args(folder: Path) -> Mapping[str, Json]:
    """Of any folder that names them, trained or made."""
    path = folder / FILE
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    args = found.get("family_args") if isinstance(found, dict) else None
    return args if isinstance(args, dict) else {}


def folder_prompt(config: TrainConfig, source: Path, *, family: str, version: int) -> FolderPrompt:
    """What a run trains with, on top of what the folder that it began with carries; `family` is the format it found."""
    carried, agent = read_folder_prompt(source), agent_as_trained(config.agent, source)
    was_thinking = "keep" if carried is None else carried.thinking
    thinking = was_thinking if config.model.thinking == "auto" else config.model.thinking
    return FolderPrompt(
        family=family,
        family_args={**_family_args(source), **config.model.family_args},
        thinking="template" if thinking == "template" else "keep",
        agent_prompt="none" if agent.prompt == "auto" else agent.prompt,
        hints=replace(agent.hints, on=bool(agent.hints.on)),
        version=version,
    )


def write_folder_prompt(folder: Path, prompt: FolderPrompt) -> None:
    """Into an existing model folder; completely or not at all."""
    with atomic_file(folder / FILE) as part:
        part.write_text(json.dumps(to_json(prompt), indent=2) + "\n", encoding="utf-8")


def agent_as_trained(agent: AgentConfig, folder: Path | None) -> AgentConfig:
    """The agent's settings, with what the model's folder carries where they leave it open."""
    carried = None if folder is None else read_folder_prompt(folder)
    if carried is None:
        return agent
    return replace(
        agent,
        prompt=carried.agent_prompt if agent.prompt == "auto" else agent.prompt,
        hints=carried.hints if agent.hints == HintRules() else agent.hints,
    )


def unlike_training(config: EvalConfig | TrainConfig, folder: Path) -> list[str]:
    """A sentence for every setting that lets a trained model see something else than it was trained on."""
    carried = read_folder_prompt(folder)
    if carried is None:
        return []
    model, agent = config.model, agent_as_trained(config.agent, folder)
    pairs: list[tuple[str, Json, Json]] = [
        ("model.family", carried.family, carried.family if model.family == "auto" else model.family),
        *((f"model.family_args.{name}", carried.family_args.get(name), now) for name, now in model.family_args.items()),
        ("model.thinking", carried.thinking, carried.thinking if model.thinking == "auto" else model.thinking),
        ("agent.prompt", carried.agent_prompt, agent.prompt),
        *(
            (f"agent.hints.{item.name}", getattr(carried.hints, item.name), getattr(agent.hints, item.name))
            for item in dataclasses.fields(HintRules)
        ),
    ]
    return [
        f"{key}={_typed(now)}, but the model in {folder} was trained with {_typed(was)}: leave it out if in doubt"
        for key, was, now in pairs
        if was != now
    ]


def _typed(value: Json) -> str:
    """As it is written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)

"""A session of a run: a new one from a recipe, or an old one gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.config import apply_overrides, from_json, to_json
from slipstream.errors import ConfigError
from slipstream.recipes import RECIPES, find_recipe
from slipstream.record import RunStore, find_run, latest_run, new_run_folder
from slipstream.settings import EvalConfig
from slipstream.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    config: EvalConfig
    folder: Path
    store: RunStore


def open_session(recipe: str | None, overrides: list[str], *, resume: str | None, runs: Path) -> Session:
    asked = None if recipe is None else apply_overrides(find_recipe(recipe), overrides)
    if resume is None:
        if asked is None:
            raise ConfigError(f"name a recipe ({', '.join(RECIPES)}), or a run with --resume")
        folder = new_run_folder(runs, asked.name)
        return Session(config=asked, folder=folder, store=RunStore.create(folder, config=to_json(asked)))
    folder = locate_run(runs, resume)
    config = from_json(EvalConfig, RunStore.read(folder).config())
    if asked is not None and asked != config:
        changed = ", ".join(_differences(to_json(asked), to_json(config)))
        raise ConfigError(
            f"the run {folder} was started with other settings ({changed}): resume it with --resume alone"
        )
    return Session(config=config, folder=folder, store=RunStore.open(folder))


def locate_run(runs: Path, text: str) -> Path:
    return latest_run(runs) if text == "latest" else find_run(runs, text)


def _differences(new: Json, old: Json, path: str = "") -> list[str]:
    if isinstance(new, dict) and isinstance(old, dict):
        return [
            line
            for key in sorted(new.keys() | old.keys())
            for line in _differences(new.get(key), old.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if new == old else [f"{path} was {old!r}, not {new!r}"]

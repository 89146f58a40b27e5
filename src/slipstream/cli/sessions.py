"""A session of a run: a new one from a recipe, or one that is resumed."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Generic, TypeVar

from slipstream.cli.trust import check_trust
from slipstream.config import apply_overrides, from_json, to_json
from slipstream.errors import ConfigError
from slipstream.hub import default_home
from slipstream.recipes import RECIPES, find_recipe, with_sample
from slipstream.record import RunReader, RunStore, find_run, latest_run, new_run_folder
from slipstream.record.copy import copy_jobs
from slipstream.record.lock import is_being_written
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.settings.header import COMMANDS, run_header
from slipstream.settings.resume_rules import Change, check_changes
from slipstream.training.checkpoints import Checkpoints
from slipstream.types import Json

Config = TypeVar("Config", EvalConfig, TrainConfig)
UNTRUSTED = "untrusted"
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")


class Session(Generic[Config]):
    """The settings of a run and, once there is one, its folder."""

    def __init__(
        self,
        config: Config,
        runs: Path,
        past: RunReader | None = None,
        changes: tuple[Change, ...] = (),
        copied: RunReader | None = None,
    ) -> None:
        self.config: Config = config
        self.past = past
        """The run so far; None if it is new."""
        self.copied = copied
        """The run whose rollouts with a verdict a new one begins with."""
        self.changes = changes
        """Settings that are not what the run had so far. They are on record once the store is open."""
        self.folder = None if past is None else past.folder
        self._runs = runs

    @property
    def command(self) -> str:
        """The command that resumes it."""
        return COMMANDS[type(self.config)]

    def open_store(self, tasks_digest: str) -> RunStore:
        """The run's store, which is made now if the run is new."""
        if self.folder is not None:
            store = RunStore.open(self.folder)
            if self.changes:
                self._record_changes(store)
            return store
        folder = new_run_folder(self._runs, self.config.name)
        header = run_header(self.config, tasks_digest)
        try:
            store = RunStore.create(folder, config=header) if self.copied is None else self._copy(folder, header)
        except ConfigError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.folder = folder
        return store

    def _copy(self, folder: Path, header: dict[str, Json]) -> RunStore:
        assert self.copied is not None
        kept = {each.job.key for each in self.copied.rollouts(with_turns=False) if each.verdict is not None}
        copy_jobs(self.copied, folder, config={**header, "copied_from": str(self.copied.folder.resolve())}, keys=kept)
        return RunStore.open(folder)

    def _record_changes(self, store: RunStore) -> None:
        """The next session begins with the settings as they are now; what they were stays on record beside them."""
        began = store.config()
        assert isinstance(began, dict)
        earlier: Json = began.get("changed")
        made: list[Json] = [
            {"key": each.key, "was": each.was, "now": each.now, "at_s": time.time()} for each in self.changes
        ]
        changed: list[Json] = [*(earlier if isinstance(earlier, list) else []), *made]
        store.set_config({**began, "settings": to_json(self.config), "changed": changed})

    def forget_if_empty(self) -> None:
        """Leave no folder behind of a new run in which nothing was done yet: no job, and no warm start."""
        if self.past is not None or self.folder is None or Checkpoints.of_run(self.folder).versions():
            return
        counts = RunStore.read(self.folder).counts()
        if not counts.jobs or (self.copied is not None and counts.jobs == counts.rollouts):
            shutil.rmtree(self.folder, ignore_errors=True)


def find_session(
    kind: type[Config],
    recipe: str | None,
    overrides: list[str],
    *,
    resume: str | None,
    runs: Path,
    trust: bool = False,
    only: str | None = None,
) -> Session[Config]:
    """What the arguments of a command ask for, which takes settings of one kind. Nothing is made or locked yet.

    A resumed run continues in the folder that it was started in, so that relative paths mean what they meant then.
    With `only="untrusted"` a new run begins with the rollouts of the named one that have a verdict.
    """
    if only is not None and (only != UNTRUSTED or resume is None):
        raise ConfigError(f'--only "{only}": write --resume RUN --only {UNTRUSTED}')
    if resume is not None and recipe is not None and _OVERRIDE.match(recipe):
        overrides = [recipe, *overrides]  # `--resume RUN key=value`: no recipe is needed
        recipe = None
    asked = None if recipe is None else _settings(kind, recipe, overrides)
    if resume is None:
        if asked is None:
            raise ConfigError(f"name a recipe ({', '.join(RECIPES)}), or a run with --resume")
        return Session(asked, runs)
    past = RunStore.read(locate_run(runs, resume))
    _check_command(past, COMMANDS[kind])
    try:
        config = from_json(kind, _began_with(past, "settings"))
    except ConfigError as raised:
        raise ConfigError(
            f"the run {past.folder} has settings of another version ({raised}): start a new run"
        ) from raised
    if asked is None:
        _refuse_of_other_command(kind, overrides)
    wanted = apply_overrides(config, overrides) if asked is None else asked
    changes = check_changes(config, wanted, run=str(past.folder))
    check_trust(past, config, home=default_home(), trust=trust or asked is not None)
    if only is not None:
        _check_untrusted(past)
        runs = runs.resolve()
        return Session(wanted, runs, copied=_in_its_place(past))
    return Session(wanted, runs, _in_its_place(past), changes)


def _check_untrusted(past: RunReader) -> None:
    if is_being_written(past.folder):
        raise ConfigError(f"the run {past.folder} is under way: wait until it ends, or stop it")
    if all(rollout.verdict is not None for rollout in past.rollouts(with_turns=False)):
        raise ConfigError(f"every rollout of {past.folder} has a verdict: leave out --only {UNTRUSTED}")


def _in_its_place(past: RunReader) -> RunReader:
    """Go to the folder that a run was started in, if it is still there."""
    place = _began_with(past, "place")
    if not isinstance(place, str) or place == str(Path.cwd()) or not Path(place).is_dir():
        return past
    here = RunStore.read(past.folder.resolve())
    os.chdir(place)
    return here


def _check_command(past: RunReader, asked: str) -> None:
    """Refuse to resume a run of another command: the settings of an evaluation would be accepted for a training run
    too."""
    began = past.config()
    settings = began.get("settings") if isinstance(began, dict) else None
    if not isinstance(began, dict) or not isinstance(settings, dict) or began.get("driven") or "control" in began:
        raise ConfigError(f"the run {past.folder} was started by neither `eval` nor `train`, so neither can resume it")
    # A run of before the command was on record: `steps` is of training alone.
    command = began.get("command") or ("train" if "steps" in settings else "eval")
    if command != asked:
        what = {"eval": "an evaluation", "train": "a training run"}.get(str(command), f"of `{command}`")
        raise ConfigError(
            f"the run {past.folder} is {what}: slipstream {command} --resume {shlex.quote(str(past.folder))}"
        )


def check_tasks(past: RunReader, tasks_digest: str) -> None:
    """Refuse to resume a run whose tasks have changed."""
    if _began_with(past, "tasks_digest") != tasks_digest:
        raise ConfigError(
            f"the tasks are not those that the run {past.folder} began with, so its figures would mix the two: "
            "restore them, or start a new run"
        )


def _began_with(past: RunReader, key: str) -> Json:
    began = past.config()
    return began.get(key) if isinstance(began, dict) else None


def locate_run(runs: Path, text: str) -> Path:
    return latest_run(runs) if text == "latest" else find_run(runs, text)


def _settings(kind: type[Config], recipe: str, overrides: list[str]) -> Config:
    if "=" in recipe and ":" not in recipe:
        raise ConfigError(f'"{recipe}" stands where a recipe belongs: name one ({", ".join(RECIPES)}) before it')
    found = find_recipe(recipe, to_train=kind is TrainConfig)
    if not isinstance(found, kind):
        raise ConfigError(f'the recipe "{recipe}" is for another command: slipstream {COMMANDS[type(found)]} {recipe}')
    _refuse_of_other_command(kind, overrides)
    config = apply_overrides(found, overrides)
    sources = [config.tasks.source, *(each.source for each in config.tasks.sets.values())]
    if isinstance(found, EvalConfig) and not any(sources):
        names_model = any(pair.startswith("model.") for pair in overrides)
        found = with_sample(recipe, found, keeps_model=names_model)
        return apply_overrides(found, overrides)
    return config


def _refuse_of_other_command(kind: type[Config], overrides: list[str]) -> None:
    """For a setting that only another command has: which command that is."""
    own = {each.name for each in dataclasses.fields(kind)}
    for pair in overrides:
        name = pair.partition("=")[0].partition(".")[0]
        for other in (EvalConfig, TrainConfig):
            if name not in own and name in {each.name for each in dataclasses.fields(other)}:
                raise ConfigError(
                    f'"{pair}": {name} is a setting of `slipstream {COMMANDS[other]}`, and this is '
                    f"`slipstream {COMMANDS[kind]}`: leave it out"
                )

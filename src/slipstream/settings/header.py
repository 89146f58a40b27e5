"""What a run's store says of how the run began: its command, its settings, and a mark of who started it.

The mark is a keyed hash of the code that the settings name and of the folder the run was started in. The key is in
the user's own Slipstream home and nowhere else, so a run that came from another user or machine has no valid mark.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from slipstream.config import leaves, to_json
from slipstream.hub import default_home
from slipstream.settings import EvalConfig, TasksConfig, TrainConfig
from slipstream.types import Json

COMMANDS: Mapping[type[object], str] = {EvalConfig: "eval", TrainConfig: "train"}
KEY_FILE = "run-key"
_NAMES_CODE = ("tasks.source", "held_out.source", "model.script", "model.make", "model.family", "warm_start.source")


def run_header(config: EvalConfig | TrainConfig, tasks_digest: str) -> dict[str, Json]:
    """What the store of a new run holds as its config."""
    place = str(Path.cwd())
    return {
        "command": COMMANDS[type(config)],
        "settings": to_json(config),
        "tasks_digest": tasks_digest,
        "place": place,
        "mark": mark_of(config, place, default_home()),
    }


def code_named(config: EvalConfig | TrainConfig) -> dict[str, str]:
    """The code and the task files that settings name, by setting; what ships with Slipstream is left out."""
    found = {key: value for key, value in leaves(config) if key in _NAMES_CODE and isinstance(value, str) and value}
    held_out = config.held_out if isinstance(config, TrainConfig) else TasksConfig()
    for group, tasks in (("tasks", config.tasks), ("held_out", held_out)):
        found |= {f"{group}.sets.{name}.source": each.source for name, each in tasks.sets.items() if each.source}
    return {
        key: value
        for key, value in found.items()
        if not value.startswith("slipstream.") and (key != "model.family" or ":" in value)
    }


def mark_of(config: EvalConfig | TrainConfig, place: str, home: Path) -> str:
    """The mark of a run with these settings that was started in the folder `place`; empty where no key can be kept."""
    try:
        key = _key(home)
    except OSError:
        return ""
    signed = json.dumps([place, sorted(code_named(config).items())])
    return hmac.new(key, signed.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_own(began: Json, config: EvalConfig | TrainConfig, home: Path) -> bool:
    fields: Mapping[str, Json] = began if isinstance(began, dict) else {}
    mark, place = fields.get("mark"), fields.get("place")
    if not (isinstance(mark, str) and isinstance(place, str) and mark):
        return False
    return hmac.compare_digest(mark.encode("utf-8", "replace"), mark_of(config, place, home).encode())


def _key(home: Path) -> bytes:
    """This user's key, made when it is first needed."""
    path = home / KEY_FILE
    with suppress(FileNotFoundError):
        return path.read_bytes()
    home.mkdir(parents=True, exist_ok=True)
    beside = home / f"{KEY_FILE}.{secrets.token_hex(4)}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        with suppress(FileExistsError):  # another process was faster
            path.hardlink_to(beside)
    finally:
        beside.unlink()
    return path.read_bytes()

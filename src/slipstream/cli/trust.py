"""Whose code a resumed run runs.

The settings of a run name code: functions that make tasks, models and demonstrations, scripts, and task files that name
graders and tools. `--resume` loads what the store names. A run that this user started on this machine names what the
user named; one that came from elsewhere names what somebody else chose. A new run is therefore marked: its store holds
a keyed hash of the code it names and of the folder it was started in, made with a key that lies in the user's own home
of Slipstream and nowhere else. A run without a valid mark is foreign: the code is listed, and on a terminal the user is
asked; elsewhere `--trust` is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import typer

from slipstream.config import leaves
from slipstream.errors import ConfigError
from slipstream.printable import one_line
from slipstream.record import RunReader
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.types import Json

_NAMES_CODE = ("tasks.source", "held_out.source", "model.script", "model.make", "model.family", "warm_start.source")
KEY_FILE = "run-key"


def code_named(config: EvalConfig | TrainConfig) -> dict[str, str]:
    """The code and the task files that settings name, by setting; what ships with Slipstream is left out."""
    found = {key: value for key, value in leaves(config) if key in _NAMES_CODE and isinstance(value, str) and value}
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
    told = json.dumps([place, sorted(code_named(config).items())])
    return hmac.new(key, told.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def check_trust(past: RunReader, config: EvalConfig | TrainConfig, *, home: Path, trust: bool) -> None:
    """Ask, or refuse with ConfigError, before code is loaded that a foreign run names."""
    named = code_named(config)
    if trust or not named or _is_own(past.config(), config, home):
        return
    listed = ", ".join(f"{value} ({key})" for key, value in named.items())
    told = (
        f"the run {past.folder} was not started by you on this machine, and to resume it is to run the code that it "
        f"names: {listed}"
    )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{told}; look at that code, then resume with --trust")
    typer.echo(one_line(told), err=True)
    if not typer.confirm("Run it?", default=False, err=True):
        raise ConfigError(f"the run {past.folder} was not resumed")


def _is_own(began: Json, config: EvalConfig | TrainConfig, home: Path) -> bool:
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
        with suppress(FileExistsError):  # whoever was first has made it
            path.hardlink_to(beside)
    finally:
        beside.unlink()
    return path.read_bytes()

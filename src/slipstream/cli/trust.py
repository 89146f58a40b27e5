"""Whose code a resumed run runs.

The settings of a run name code: functions that make tasks, models and demonstrations, scripts, and task files that name
graders and tools. `--resume` loads what the store names. A run that this user started on this machine names what the
user named; one that came from elsewhere names what somebody else chose. A new run is therefore marked (`run_header`). A
run without a valid mark is foreign: the code is listed, and on a terminal the user is asked; elsewhere `--trust` is
needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from slipstream.errors import ConfigError
from slipstream.printable import one_line
from slipstream.record import RunReader
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.settings.header import code_named, is_own


def check_trust(past: RunReader, config: EvalConfig | TrainConfig, *, home: Path, trust: bool) -> None:
    """Ask, or refuse with ConfigError, before code is loaded that a foreign run names."""
    named = code_named(config)
    if trust or not named or is_own(past.config(), config, home):
        return
    listed = ", ".join(f"{value} ({key})" for key, value in named.items())
    warning = (
        f"the run {past.folder} was not started by you on this machine, and resuming it runs the code that it names: "
        f"{listed}"
    )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{warning}; look at that code, then resume with --trust")
    typer.echo(one_line(warning), err=True)
    if not typer.confirm("Run it?", default=False, err=True):
        raise ConfigError(f"the run {past.folder} was not resumed")

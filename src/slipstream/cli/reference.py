"""`slipstream recipes` and `slipstream settings`: what can be run, and every `key=value` that changes it."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer
from rich.console import Console

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.printable import one_line
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.settings.header import COMMANDS
from slipstream.settings.reference import ListedSetting, all_settings, listed_settings, settings_of
from slipstream.types import Json

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_WIDTH = 100


def recipes_command(
    name: Annotated[
        str | None, typer.Argument(help="Show all settings of this recipe, or of file.py:function.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, or print every setting of one of them."""
    from slipstream.cli.displays.tables import print_table
    from slipstream.recipes import RECIPES, describe, find_recipe

    if name is not None:
        _print_recipe(name, find_recipe(name), as_json=as_json)
        return
    rows = [(each, _commands_of(each), describe(each)) for each in RECIPES]
    if as_json:
        print(
            json.dumps([{"name": each, "command": command, "about": about} for each, command, about in rows], indent=2)
        )
        return
    print_table(Console(), ("recipe", "command", "about"), rows)


def _commands_of(name: str) -> str:
    from slipstream.recipes import TRAINED, find_recipe

    command = COMMANDS[type(find_recipe(name))]
    return f"{command}, {COMMANDS[TrainConfig]}" if name in TRAINED else command


def _print_recipe(name: str, config: EvalConfig | TrainConfig, *, as_json: bool) -> None:
    command = COMMANDS[type(config)]
    defaults = {setting.key: setting for setting in all_settings()[command]}
    settings = settings_of(config)
    if as_json:
        values: dict[str, Json] = {setting.key: setting.default for setting in settings}
        print(json.dumps({"name": name, "command": command, "settings": values}, indent=2))
        return
    print(one_line(f"slipstream {command} {name}, where the settings are as follows (* marks what is not the default)"))
    for setting in settings:
        mark = " " if setting.default == defaults[setting.key].default else "*"
        print(one_line(f"{mark} {setting.key}={setting.typed()}"))


def settings_command(
    prefix: Annotated[
        str, typer.Argument(help="Only settings that start with this, such as model or dispatch.limits.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Print every setting of `eval` and `train`: what it takes, its default, and what it is."""
    listed = listed_settings()
    found = [setting for setting in listed if setting.key.startswith(prefix)]
    if not found:
        known = {setting.key for setting in listed}
        groups = {key[:place] for key in known for place, letter in enumerate(key) if letter == "."}
        raise ConfigError(f'no setting starts with "{prefix}"{did_you_mean(prefix, known | groups)}')
    if as_json:
        print(json.dumps([_row(setting) for setting in found], indent=2))
        return
    for setting in found:
        only = f"; {next(iter(setting.defaults))} only" if len(setting.defaults) == 1 else ""
        print(f"{setting.key}  ({setting.takes}; default {_default(setting) or 'empty'}{only})")
        print(textwrap.fill(setting.doc, _WIDTH, initial_indent="    ", subsequent_indent="    "))


def _row(setting: ListedSetting) -> dict[str, str]:
    return {
        "key": setting.key,
        "takes": setting.takes,
        "default": _default(setting),
        "commands": " ".join(setting.defaults),
        "doc": setting.doc,
    }


def _default(setting: ListedSetting) -> str:
    """`1`, or `1; train: 8` where the commands differ."""
    return "; train: ".join(dict.fromkeys(setting.defaults.values()))

"""Every setting with its type, its default and its docstring: what `slipstream settings` prints, and the rows of
docs/settings.md (`scripts/settings_page.py`).

The docstrings are those below the fields of the config classes. Python does not keep them, so they are read from the
source files, which an installed package has too.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from slipstream.config import to_json
from slipstream.settings.configs import EvalConfig, TasksConfig, TrainConfig
from slipstream.types import Json

_NAMED: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    tuple[str, ...]: "list of text",
    tuple[float, float]: "two numbers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    key: str
    takes: str
    """Its type in words, or its choices."""
    default: Json
    doc: str

    def typed(self) -> str:
        """The default as it is written on the command line."""
        return self.default if isinstance(self.default, str) else json.dumps(self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSetting:
    """A setting of one command or of both."""

    key: str
    takes: str
    doc: str
    defaults: Mapping[str, str]
    """By command, as typed: `{"eval": "1", "train": "8"}`."""


def settings_of(config: EvalConfig | TrainConfig) -> list[Setting]:
    """Every setting with the value that `config` has, by dotted key."""
    return list(_settings(config, ""))


def all_settings() -> dict[str, list[Setting]]:
    """The settings of each command, with their defaults."""
    unset = TasksConfig()
    return {
        "eval": settings_of(EvalConfig(name="", tasks=unset)),
        "train": settings_of(TrainConfig(name="", tasks=unset)),
    }


def listed_settings() -> list[ListedSetting]:
    """The settings of both commands, each once."""
    by_command = {
        command: {setting.key: setting for setting in settings} for command, settings in all_settings().items()
    }
    return [
        ListedSetting(
            key=key,
            takes=setting.takes,
            doc=setting.doc,
            defaults={command: known[key].typed() for command, known in by_command.items() if key in known},
        )
        for key, setting in {**by_command["train"], **by_command["eval"]}.items()
    ]


def _settings(group: Any, prefix: str) -> Iterator[Setting]:
    """Of a dataclass and those within it; a group that may be absent is shown with its defaults."""
    hints = get_type_hints(type(group))
    docs = field_docs(type(group))  # type: ignore[arg-type]  # a class is hashable, but mypy looks at its instances
    for field in dataclasses.fields(group):
        value, kind, key = getattr(group, field.name), hints[field.name], f"{prefix}{field.name}"
        optional: Any = next((part for part in get_args(kind) if dataclasses.is_dataclass(part)), None)
        if value is None and optional is not None:
            value = optional()
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{key}.")
        else:
            yield Setting(key=key, takes=takes(kind), default=to_json(value), doc=docs.get(field.name, ""))


def takes(kind: Any) -> str:
    """A type in words: `whole number or null`, `auto, cpu, cuda`."""
    if get_origin(kind) is UnionType:
        (inner,) = (part for part in get_args(kind) if part is not NoneType)
        return f"{takes(inner)} or null"
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is Mapping:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(choice.value for choice in kind)
    return _NAMED[kind]


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """The docstring below each field of a dataclass, on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs

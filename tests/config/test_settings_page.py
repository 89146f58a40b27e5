"""docs/settings.md: every setting of `eval` and `train` is on it with its type and its default, and nothing else is."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from slipstream.config import apply_overrides
from slipstream.settings import EvalConfig, TasksConfig, TrainConfig

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.+) \|$", flags=re.MULTILINE)
TRAIN_ALONE = "\n## For training alone\n"

EVAL = EvalConfig(name="x", tasks=TasksConfig())
TRAIN = TrainConfig(name="x", tasks=TasksConfig())


def settings_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted key, type and default of every setting; a group that may be absent is shown as it would begin."""
    hints = get_type_hints(type(group))
    for field in dataclasses.fields(group):
        value, kind = getattr(group, field.name), hints[field.name]
        optional: Any = next((part for part in get_args(kind) if dataclasses.is_dataclass(part)), None)
        if value is None and optional is not None:
            value = optional()
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", kind, value


def takes(kind: Any) -> str:
    """A type, in the words of the page."""
    if get_origin(kind) is UnionType:
        (inner,) = (part for part in get_args(kind) if part is not NoneType)
        return f"{takes(inner)} or null"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is Mapping:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    words = {
        str: "text",
        bool: "true or false",
        int: "whole number",
        float: "number",
        tuple[str, ...]: "list of text",
        tuple[float, float]: "two numbers",
    }
    return words[kind]


def as_typed(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value) if isinstance(value, str) else json.dumps(value)


def shown(key: str, value: Any) -> str:
    if key == "name":
        return "the recipe's"
    return "empty" if value == "" else f"`{as_typed(value)}`"


def expected_rows() -> dict[str, tuple[str, str]]:
    """Of every key: what it takes, and its default."""
    evaluated = {key: value for key, _, value in settings_of(EVAL)}
    rows = {}
    for key, kind, value in settings_of(TRAIN):
        default = shown(key, value)
        if key in evaluated and evaluated[key] != value:
            default = f"{shown(key, evaluated[key])}; train: {default}"
        rows[key] = (takes(kind), default)
    return rows


def rows_of(text: str) -> dict[str, tuple[str, str]]:
    found = [(key, (kind, default)) for key, kind, default, _ in ROW.findall(text)]
    keys = [key for key, _ in found]
    assert sorted(set(keys)) == sorted(keys), "each key has one row"
    return dict(found)


def test_the_page_has_every_setting_with_its_type_and_default_and_nothing_else() -> None:
    assert rows_of(PAGE) == expected_rows()


def test_no_row_of_a_table_is_read_past() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| setting |", "|---"))]
    assert len(rows) == len(rows_of(PAGE))


def test_what_an_evaluation_takes_stands_in_the_part_for_both() -> None:
    both, alone = PAGE.split(TRAIN_ALONE)
    evaluated = {key for key, _, _ in settings_of(EVAL)}
    assert rows_of(both).keys() == evaluated
    assert rows_of(alone).keys() == expected_rows().keys() - evaluated


@pytest.mark.parametrize("config", [EVAL, TRAIN])
def test_every_setting_can_be_set_by_its_key(config: EvalConfig | TrainConfig) -> None:
    for key, _, value in settings_of(config):
        changed = apply_overrides(config, [f"{key}={as_typed(value)}"])
        assert {name: found for name, _, found in settings_of(changed)}[key] == value

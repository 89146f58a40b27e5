"""docs/settings.md: every setting of `eval` and `train` is on it with its type and its default, and nothing else is."""

import re
from pathlib import Path

import pytest

from slipstream.config import apply_overrides
from slipstream.settings import EvalConfig, TasksConfig, TrainConfig
from slipstream.settings.reference import Setting, all_settings, settings_of

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.+) \|$", flags=re.MULTILINE)
TRAIN_ALONE = "\n## For training alone\n"
WORDS = {
    *("text", "true or false", "whole number", "number", "list of text", "two numbers", "mapping"),
    *("whole number or null", "number or null", "true or false or null"),
}

DEFAULTS = all_settings()


def shown(setting: Setting) -> str:
    if setting.key == "name":
        return "the recipe's"
    return "empty" if setting.default == "" else f"`{setting.typed()}`"


def taken(setting: Setting) -> str:
    """A type, in the words of the page: choices are marked as code."""
    return setting.takes if setting.takes in WORDS else ", ".join(f"`{choice}`" for choice in setting.takes.split(", "))


def expected_rows() -> dict[str, tuple[str, str]]:
    """Of every key: what it takes, and its default."""
    evaluated = {setting.key: setting for setting in DEFAULTS["eval"]}
    rows = {}
    for setting in DEFAULTS["train"]:
        default, other = shown(setting), evaluated.get(setting.key)
        if other is not None and other.default != setting.default:
            default = f"{shown(other)}; train: {default}"
        rows[setting.key] = (taken(setting), default)
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
    evaluated = {setting.key for setting in DEFAULTS["eval"]}
    assert rows_of(both).keys() == evaluated
    assert rows_of(alone).keys() == expected_rows().keys() - evaluated


@pytest.mark.parametrize("kind", [EvalConfig, TrainConfig])
def test_every_setting_can_be_set_by_its_key(kind: type[EvalConfig] | type[TrainConfig]) -> None:
    config = kind(name="x", tasks=TasksConfig())
    for setting in settings_of(config):
        changed = apply_overrides(config, [f"{setting.key}={setting.typed()}"])
        assert {each.key: each.default for each in settings_of(changed)}[setting.key] == setting.default

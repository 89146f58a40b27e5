"""Rewrites the table rows of docs/settings.md from the docstrings of the settings. Prose and the order of rows stay.

.venv/bin/python scripts/settings_page.py [FILE]

A new setting gets its place by a row of its own: `| key |`. If a setting has no row or several, or a row is of no
setting, nothing is written and the exit code is 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from slipstream.names import did_you_mean
from slipstream.settings.reference import ListedSetting, listed_settings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
FIRST_CELL = re.compile(r"\|\s*`?([^`|]+?)`?\s*\|")
HEADS = ("| setting |", "|---|")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    path.write_text(rewritten(path.read_text()))


def rewritten(page: str) -> str:
    settings = {setting.key: setting for setting in listed_settings()}
    lines = [(line, key_of(line)) for line in page.splitlines()]
    if problems := list(problems_of([key for _, key in lines if key], settings)):
        sys.exit("\n".join(problems))
    return "".join(f"{row(settings[key]) if key else line}\n" for line, key in lines)


def key_of(line: str) -> str:
    """The setting of a table row; empty for any other line."""
    found = None if line.startswith(HEADS) else FIRST_CELL.match(line)
    return found[1] if found else ""


def problems_of(keys: list[str], known: Collection[str]) -> Iterator[str]:
    for key in known:
        if (num := keys.count(key)) != 1:
            yield f"{key} has {num} rows: give it one"
    for key in keys:
        if key not in known:
            yield f"{key} is not a setting{did_you_mean(key, known)}: remove its row"


def row(setting: ListedSetting) -> str:
    choices = setting.takes.split(", ")
    takes = setting.takes if len(choices) == 1 else ", ".join(map(code, choices))
    default = "; train: ".join(dict.fromkeys(map(code, setting.defaults.values())))
    if setting.key == "name":
        default = "the recipe's"
    return f"| `{setting.key}` | {takes} | {default} | {setting.doc} |"


def code(typed: str) -> str:
    return f"`{typed}`" if typed else "empty"


if __name__ == "__main__":
    main()

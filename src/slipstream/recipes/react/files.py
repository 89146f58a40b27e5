"""The files that the readers of this recipe read: a path, or the name of a shipped sample."""

from __future__ import annotations

from pathlib import Path

import slipstream as ss

SAMPLE = Path(__file__).with_name("sample")


def path_of(path: str) -> str:
    shipped = SAMPLE / f"{path}.jsonl"
    return str(shipped) if not Path(path).exists() and shipped.is_file() else path


def first_of(row: ss.Row, *names: str) -> str:
    """The first of these fields that a row has, as text."""
    name = next((name for name in names if row.fields.get(name) is not None), names[0])
    return row.text(name).strip()


def tools_without(names: tuple[str, ...], without: str) -> tuple[str, ...]:
    if without and without not in names:
        raise ss.ConfigError(f'without="{without}": name one of {", ".join(names)}')
    return tuple(name for name in names if name != without)

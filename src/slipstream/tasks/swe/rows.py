"""Reads the rows of a data set's file, with typed access to their fields.

Invariants: a bad row raises a ConfigError that names file, row and field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean

READ_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    where: str
    fields: Mapping[str, Any]
    """As in the file: text, numbers, lists or null."""

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.wrong(f'the field "{name}" is missing{did_you_mean(name, self.fields)}')
        if not isinstance(value, str):
            raise self.wrong(f'the field "{name}" is a {type(value).__name__}, but must be text')
        return value

    def texts(self, name: str) -> list[str]:
        """A list of text, which some files store as JSON."""
        value = self.structure(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(f'the field "{name}" must be a list of text')
        return list(value)

    def statuses(self, name: str) -> dict[str, str]:
        """A map from text to text, which some files store as JSON."""
        value = self.structure(name)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise self.wrong(f'the field "{name}" must be a map from text to text')
        return dict(value)

    def structure(self, name: str) -> Any:
        """Lists and maps of a field, which some files store as JSON."""
        value = self.fields.get(name)
        if value is None:
            raise self.wrong(f'the field "{name}" is missing{did_you_mean(name, self.fields)}')
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as raised:
            raise self.wrong(f'the field "{name}" is not valid JSON: {raised}') from None

    def wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self.where}: {what}")


def read_rows(path: str, num: int | None = None) -> Iterator[Row]:
    """The rows of a `.jsonl`, `.json` (a list) or `.parquet` file, the first `num` of them."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise ConfigError(
            f"there is no file {place}: give the path of a .jsonl, .json or .parquet file of the data set"
        )
    match place.suffix:
        case ".jsonl":
            found = _lines(place)
        case ".json":
            found = _list(place)
        case ".parquet":
            found = _parquet(place)
        case other:
            raise ConfigError(f"{place}: {other!r} files are not supported: use .jsonl, .json or .parquet")
    for number, value in islice(found, num):
        where = f"{place}, row {number}"
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: a {type(value).__name__} instead of an object")
        yield Row(where=where, fields=value)


def _lines(place: Path) -> Iterator[tuple[int, Any]]:
    with place.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _loads(line, f"{place}, row {number}")


def _list(place: Path) -> Iterator[tuple[int, Any]]:
    value = _loads(place.read_text(encoding="utf-8-sig"), str(place))
    if not isinstance(value, list):
        raise ConfigError(f"{place}: a {type(value).__name__} instead of a list of rows")
    yield from enumerate(value, 1)


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as raised:
        line = f", line {raised.lineno}" if raised.lineno > 1 else ""  # in a file that is a single value
        raise ConfigError(f"{where}{line}: not valid JSON: {raised.msg} at column {raised.colno}") from None
    except (ValueError, RecursionError) as raised:
        raise ConfigError(f"{where}: not valid JSON: {raised}") from None


def _parquet(place: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{place} is Parquet, which needs pyarrow: pip install 'slipstream[data]'") from None
    try:
        with pyarrow.parquet.ParquetFile(place) as file:
            number = 0
            for batch in file.iter_batches(batch_size=READ_ROWS):
                for value in batch.to_pylist():
                    number += 1
                    yield number, value
    except (pyarrow.ArrowException, OSError) as raised:
        raise ConfigError(f"{place} cannot be read as Parquet: {raised}") from raised

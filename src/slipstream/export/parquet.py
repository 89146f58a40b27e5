"""Exported samples as Parquet: the columns of the JSONL, typed, in row groups of bounded size.

Token columns are lists of int32, int8 and float32; messages are lists of structs, so that pandas, DuckDB and datasets
read them directly. Invariants: what is read back equals what was written; text with lone surrogates is escaped as in
the JSONL. pyarrow is imported by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from slipstream.bounded import too_large
from slipstream.errors import ConfigError
from slipstream.export.columns import COLUMNS, fields_of, sample_of
from slipstream.export.files import exported_file, reading
from slipstream.export.portable import portable_text, restored_text
from slipstream.export.samples import ExportedSample

GROUP_TOKENS = 1_000_000
GROUP_ROWS = 1_000
"""A row group ends at whichever limit it reaches first. It is what writers and readers hold in memory."""

READ_ROWS = 32
MAX_GROUP_BYTES = 2 << 30
MAX_GROUP_VALUES = 100_000_000
"""Limit of a row group that is read: a small file with much repetition can be very large unpacked."""


def write_parquet(path: Path, samples: Iterable[ExportedSample], *, force: bool = False) -> None:
    arrow, parquet = _pyarrow()
    schema = _schema(arrow)
    with (
        exported_file(path, force=force) as beside,
        beside.open("wb") as stream,
        parquet.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for rows in _row_groups(samples):
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def read_parquet(path: str | Path) -> Iterator[ExportedSample]:
    """The samples of a file that `export_run` wrote, a few rows at a time."""
    path = Path(path)
    arrow, parquet = _pyarrow()
    with reading(path), path.open("rb") as stream:
        try:
            with parquet.ParquetFile(stream) as file:
                _check_size(file.metadata)
                for batch in file.iter_batches(batch_size=READ_ROWS):
                    for row in batch.to_pylist():
                        yield sample_of(_texts(row, restored_text))
        except (arrow.ArrowException, ValueError, LookupError, TypeError) as raised:
            raise ConfigError(f"{path} is not Parquet of exported samples ({raised}): export the run again") from raised


def _check_size(metadata: Any) -> None:
    """Raises ValueError for a file that would be larger in memory than any export. Any: pyarrow has no types."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.total_byte_size > MAX_GROUP_BYTES:
            raise too_large(f"its row group {number}, unpacked,", MAX_GROUP_BYTES)
        num_values = max((group.column(index).num_values for index in range(group.num_columns)), default=0)
        if num_values > MAX_GROUP_VALUES:
            raise ValueError(f"its row group {number} has {num_values} values, where {MAX_GROUP_VALUES} are read")


def check_installed() -> None:
    """ConfigError if pyarrow is missing."""
    _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    """The two modules; Any, since pyarrow has no types."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as raised:
        raise ConfigError(f"Parquet needs pyarrow ({raised}): pip install 'slipstream[data]'") from raised
    return pyarrow, pyarrow.parquet


def _row_groups(samples: Iterable[ExportedSample]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    num_tokens = 0
    for sample in samples:
        rows.append(_texts(fields_of(sample), portable_text))
        num_tokens += 0 if sample.input_ids is None else len(sample.input_ids)
        if num_tokens >= GROUP_TOKENS or len(rows) >= GROUP_ROWS:
            yield rows
            rows, num_tokens = [], 0
    if rows:
        yield rows


_TOKENS = frozenset({"input_ids", "loss_mask", "logprobs", "versions", "turns"})


def _texts(row: dict[str, Any], change: Any) -> dict[str, Any]:
    """`row` with `change` applied to every text in it."""
    return {name: value if name in _TOKENS else _changed(value, change) for name, value in row.items()}


def _changed(value: Any, change: Any) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_changed(item, change) for item in value]
        case dict():
            return {name: _changed(item, change) for name, item in value.items()}
        case _:
            return value


def _schema(arrow: Any) -> Any:
    text, count = arrow.string(), arrow.int64()
    function = arrow.struct([("name", text), ("arguments", text)])
    call = arrow.struct([("id", text), ("type", text), ("function", function), ("problem", text), ("raw", text)])
    message = arrow.struct(
        [
            ("role", text),
            ("content", text),
            ("reasoning_content", text),
            ("tool_calls", arrow.list_(call)),
            ("tool_call_id", text),
            ("name", text),
            ("images", arrow.list_(text)),
            ("hints", arrow.list_(text)),
            ("is_error", arrow.bool_()),
        ]
    )
    kinds: dict[str, Any] = dict.fromkeys(COLUMNS, text)
    kinds |= dict.fromkeys(("step", "sample", "attempt", "part", "branch", "num_truncated"), count)
    kinds |= {
        "in_loss": arrow.bool_(),
        "reward": arrow.float64(),
        "advantage": arrow.float64(),
        "reward_components": arrow.list_(arrow.struct([("name", text), ("value", arrow.float64())])),
        "input_ids": arrow.list_(arrow.int32()),
        "loss_mask": arrow.list_(arrow.int8()),
        "logprobs": arrow.list_(arrow.float32()),
        "versions": arrow.list_(arrow.int32()),
        "turns": arrow.list_(count),
        "messages": arrow.list_(message),
    }
    return arrow.schema([(name, kinds[name]) for name in COLUMNS])

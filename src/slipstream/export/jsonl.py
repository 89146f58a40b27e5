"""Exported samples as JSONL: one sample per line, UTF-8, strict JSON.

Invariants: what is read back equals what was written, including float32 logprobs and text with lone surrogates. A
damaged line is a ConfigError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from slipstream.bounded import TooLarge, lines
from slipstream.errors import ConfigError
from slipstream.export.columns import fields_of, sample_of
from slipstream.export.files import exported_file, reading
from slipstream.export.portable import float32_list, json_line, read_json
from slipstream.export.samples import ExportedSample

MAX_LINE_BYTES = 256 << 20


def write_jsonl(path: Path, samples: Iterable[ExportedSample], *, force: bool = False) -> None:
    with exported_file(path, force=force) as beside, beside.open("wb") as stream:
        for sample in samples:
            stream.write(f"{sample_line(sample)}\n".encode())


def sample_line(sample: ExportedSample) -> str:
    fields = fields_of(sample)
    for name in ("input_ids", "loss_mask", "versions"):
        if fields[name] is not None:
            fields[name] = fields[name].tolist()
    if sample.logprobs is not None:
        fields["logprobs"] = float32_list(sample.logprobs)
    return json_line(fields)


def read_jsonl(path: str | Path) -> Iterator[ExportedSample]:
    """The samples of a file that `export_run` wrote, one at a time."""
    path = Path(path)
    with reading(path), path.open("rb") as stream:
        for number, line in enumerate(_lines(stream, path), start=1):
            try:
                fields = read_json(line.decode("utf-8"))
                if not isinstance(fields, dict):
                    raise ValueError("it is not an object")
                sample = sample_of(fields)
            except json.JSONDecodeError as raised:
                raise ConfigError(
                    f"line {number} of {path} is not an exported sample ({raised.msg} at column {raised.colno}): "
                    "export the run again"
                ) from raised
            except (ValueError, LookupError, TypeError, OverflowError) as raised:
                raise ConfigError(
                    f"line {number} of {path} is not an exported sample ({raised}): export the run again"
                ) from raised
            yield sample


def _lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        yield from lines(stream, MAX_LINE_BYTES, str(path))
    except TooLarge as raised:
        raise ConfigError(f"{raised}: is it an export?") from raised

"""Exports of a run: samples as JSONL or Parquet for any trainer, rollouts as ATIF for any viewer, spans as a trace for
Perfetto.

`export_run` writes; `read_jsonl`, `read_parquet` and `read_atif` read back what was written. pyarrow and atif are
imported by the functions that need them.
"""

from slipstream.export.atif import read_atif
from slipstream.export.jsonl import read_jsonl
from slipstream.export.parquet import read_parquet
from slipstream.export.run import DEFAULT_ADVANTAGES, Exported, ExportFormat, export_run
from slipstream.export.samples import ExportedSample

__all__ = [
    "DEFAULT_ADVANTAGES",
    "ExportFormat",
    "Exported",
    "ExportedSample",
    "export_run",
    "read_atif",
    "read_jsonl",
    "read_parquet",
]

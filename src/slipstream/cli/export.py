"""`slipstream export`: a recorded run, written for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.printable import printable


def export_command(
    run: Annotated[str, typer.Argument(help="The run: its name, its path, or 'latest'.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="jsonl or parquet: samples; atif: rollouts; chrome: a trace; predictions: patches, for SWE-bench.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; by default into the run's folder.")] = None,
    advantages: Annotated[
        str | None,
        typer.Option(
            help="leave_one_out, grpo, grpo_sample, dr_grpo or reinforce; by default what the run learnt with."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Cut samples, between turns, to this many tokens; by default the run's max_sample_tokens."),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="Of predictions: which of a task's rollouts.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """Write the samples of a recorded run as JSONL or Parquet, its rollouts as ATIF, its spans as a Chrome trace, or
    its work as predictions in SWE-bench's form."""
    from slipstream.cli.sessions import locate_run
    from slipstream.export import ExportFormat, export_run
    from slipstream.record import RunStore

    if format_ not in list(ExportFormat):
        known = ", ".join(ExportFormat)
        raise ConfigError(f'there is no format "{format_}"{did_you_mean(format_, ExportFormat)}; use {known}')
    exported = export_run(
        RunStore.read(locate_run(runs, run)),
        ExportFormat(format_),
        out=out,
        advantages=advantages,
        max_tokens=max_tokens,
        sample=sample,
        force=force,
    )
    if as_json:
        print(json.dumps({"path": str(exported.path), **exported.counts}, indent=2))
        return
    print(printable(str(exported.path)))
    print(", ".join(f"{number} {name.replace('_', ' ')}" for name, number in exported.counts.items()))

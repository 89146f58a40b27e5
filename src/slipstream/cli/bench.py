"""`slipstream bench NAME`: run a benchmark, print its figures."""

from __future__ import annotations

import json
from typing import Annotated

import typer

bench_app = typer.Typer(help="Measure what the parts cost.", no_args_is_help=True)


@bench_app.command()
def datapath(
    turns: Annotated[int, typer.Option(min=1, help="Turns of the rollout that is encoded.")] = 200,
    rollouts: Annotated[int, typer.Option(min=8, help="Rollouts that are merged.")] = 512,
    tokens: Annotated[int, typer.Option(min=200, help="Tokens of each of them.")] = 32_768,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Tokens encoded per turn, and the time and memory of merging and batching."""
    from slipstream.bench.datapath import Load, run

    figures = run(Load(turns=turns, rollouts=rollouts, tokens=tokens))
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<32} {value:,.2f}" if isinstance(value, float) else f"{name:<32} {value:,}")

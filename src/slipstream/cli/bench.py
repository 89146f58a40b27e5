"""`slipstream bench NAME`: run a benchmark, print its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from slipstream.types import Json

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

    _print(run(Load(turns=turns, rollouts=rollouts, tokens=tokens)), as_json)


@bench_app.command()
def engine(
    model: Annotated[str, typer.Option(help="A model folder, or the name of a fetched model.")] = "smollm2",
    requests: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 32,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the median counts.")] = 3,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or both with a comma between.")] = "float32,bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """The embedded engine against transformers' continuous batching and generate, in one run."""
    from slipstream.bench.engine import Load, run
    from slipstream.hub import find_model

    load = Load(requests=(requests,), new_tokens=new_tokens, rounds=rounds, dtypes=tuple(dtype.split(",")))
    _print(run(find_model(model), load), as_json)


def _print(figures: Mapping[str, Json], as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<48} {value:,.2f}" if isinstance(value, float) else f"{name:<48} {value}")

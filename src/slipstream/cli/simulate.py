"""`slipstream simulate RUN`: replay a recorded run under other settings, and print what would change."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slipstream.cli.displays.tables import print_rows
from slipstream.cli.sessions import locate_run

if TYPE_CHECKING:
    from slipstream.simulate.recorded_run.predict import Predicted, Prediction


def simulate_command(
    run: Annotated[str, typer.Argument(help="The run: its name, its path, or 'latest'.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="What to change: dispatch.*, samples, oversample, staleness, model.engine.num_slots, engines, cores; "
            "engine.kv_tokens says how large the engine's cache is, where that is not on record.",
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Short for dispatch.policy=P.")] = None,
    seed: Annotated[int, typer.Option(help="For drawing, where more samples are requested than recorded.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the prediction as JSON.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """Predict what a recorded run would take under another policy, other limits, samples, engines or cores."""
    from slipstream.record import RunStore
    from slipstream.simulate.recorded_run.predict import predict

    pairs = [*([f"dispatch.policy={policy}"] if policy is not None else []), *(changes or [])]
    found = predict(RunStore.read(locate_run(runs, run)), pairs, seed=seed)
    if as_json:
        print(prediction_json(found))
    else:
        print_prediction(Console(), found)


def prediction_json(found: Prediction) -> str:
    from slipstream.simulate.recorded_run.predict import sentence

    return json.dumps(
        {**dataclasses.asdict(found), "makespan_error": found.makespan_error, "told": sentence(found)}, indent=2
    )


def print_prediction(console: Console, found: Prediction) -> None:
    from slipstream.simulate.recorded_run.predict import sentence

    columns = [found.recorded, found.replayed, *([found.predicted] if found.predicted else [])]
    spec, left_out = found.spec, found.left_out
    steps = f"{found.fit.num_steps:,} of its steps and " if found.fit.num_steps else ""
    rows = [
        ("run", found.run),
        ("changed", ", ".join(found.changes) or "nothing"),
        ("", "".join(f"{name:>12}" for name in ("recorded", "replayed", "predicted")[: len(columns)])),
        *_table(columns),
        (
            "self-check",
            f"the replay's makespan is off by {found.makespan_error:+.1%}, "
            f"the length of a call by {found.call_error:.0%} (median)",
        ),
        (
            "engine",
            f"a step {1000 * spec.step_s:.2f} ms, {1000 * spec.row_s:.3f} ms more for each request and "
            f"{1e6 * spec.token_s:.3f} us for each cached token; prefill {spec.prefill_tokens_s:,.0f} tokens a second; "
            f"{1000 * spec.call_s:.1f} ms more for each call (fitted on {steps}{found.fit.num_calls:,} calls)",
        ),
        ("work on cores", ", ".join(f"{kind} {share:.0%}" for kind, share in found.cpu_shares.items())),
        *([("own process", f"{1000 * found.front_s:.2f} ms a call besides the engine")] if found.front_s else []),
        *([("others", f"wanted {found.others:.1f} cores of the machine all the while")] if found.others else []),
    ]
    odd = {name: number for name, number in dataclasses.asdict(left_out).items() if number}
    if odd:
        rows.append(("not as it was", ", ".join(f"{name} {number}" for name, number in odd.items())))
    rows += [("note", note) for note in found.notes]
    if found.gains:
        rows.append(("twice as much", ", ".join(f"{name} {-gain:+.0%}" for name, gain in found.gains.items())))
    rows.append(("so", sentence(found)))
    print_rows(console, rows)


def _table(columns: list[Predicted]) -> list[tuple[str, str]]:
    def row(name: str, values: list[str]) -> tuple[str, str]:
        return name, "".join(f"{value:>12}" for value in values)

    return [
        row("makespan, s", [f"{one.makespan_s:.1f}" for one in columns]),
        row("rollouts", [f"{one.num_rollouts}" for one in columns]),
        row("rollouts a second", [f"{one.rollouts_per_s:.3g}" for one in columns]),
        row("engine in use", [f"{one.engine_use:.0%}" for one in columns]),
        row("a call, s", [f"{one.call_s:.3f}" for one in columns]),
        row("peak sandboxes", [f"{one.peak_sandboxes}" for one in columns]),
        row("computed again", ["-" if one.again_tokens is None else f"{one.again_tokens:,}" for one in columns]),
    ]

"""The result of a training run: a table, or JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slipstream.agent.config import HintRules
from slipstream.cli.displays.tables import print_rows
from slipstream.config import overrides_between
from slipstream.progress.display import clock
from slipstream.recipes import find_recipe
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.training.run import TrainReport

_RECIPE = "react"
"""What a trained model is evaluated with: tasks and a model, and no other setting."""


def evaluation_of(config: TrainConfig, trained: Path) -> list[str] | None:
    """The arguments of `slipstream` that evaluate what a run trained as the run itself did; None if it is no folder
    that can be evaluated. The prompt settings are not among them: the folder carries those."""
    if config.bridge != "local":
        return None
    wanted = EvalConfig(
        name=_RECIPE,
        tasks=config.held_out if config.held_out.are_named else config.tasks,
        model=replace(config.model, make="", folder=str(trained), family="auto", family_args={}, thinking="auto"),
        agent=replace(config.agent, prompt="auto", hints=HintRules()),
        sandbox=config.sandbox,
        dispatch=config.dispatch,
        samples=config.eval_samples,
        seed=config.seed,
        solved_at=config.solved_at,
    )
    base = find_recipe(_RECIPE)
    assert isinstance(base, EvalConfig)
    return ["eval", _RECIPE, *overrides_between(base, wanted)]


def _spoken(arguments: Sequence[str] | None) -> str:
    return "" if arguments is None else shlex.join(["slipstream", *arguments])


def report_json(report: TrainReport, folder: Path, evaluation: Sequence[str] | None = None) -> str:
    return json.dumps(
        {
            "run": str(folder),
            "success_before": report.success_before,
            "success_after": report.success_after,
            "success_sft_only": report.success_sft_only,
            "success_shuffled_reward": report.success_shuffled_reward,
            "steps": report.steps,
            "steps_without_signal": report.num_flat,
            "seconds": round(report.seconds, 1),
            "success": {str(version): success for version, success in sorted(report.success.items())},
            "success_by_set": {
                name: {str(version): success for version, success in by_version.items()}
                for name, by_version in report.success_by_set.items()
            },
            "trained": str(report.trained),
            "curve": str(report.curve),
            "evaluate": _spoken(evaluation) or None,
        },
        indent=2,
    )


def print_training(
    console: Console, report: TrainReport, folder: Path, evaluation: Sequence[str] | None = None
) -> None:
    rows = [
        ("before", _success(report.success_before)),
        ("after", _success(report.success_after)),
        *((f"set {name}", _from_to(by_version)) for name, by_version in report.success_by_set.items()),
        ("warm start continued", _success(report.success_sft_only)),
        ("shuffled rewards", _success(report.success_shuffled_reward)),
        ("steps", str(report.steps) + _without_signal(report)),
        ("time", clock(report.seconds)),
        ("trained model", str(report.trained)),
        ("curve", str(report.curve)),
        ("look at it", f"slipstream show {shlex.quote(str(folder))}"),
        ("evaluate it", _spoken(evaluation)),
    ]
    print_rows(console, [(name, value) for name, value in rows if value])


def _from_to(by_version: Mapping[int, float]) -> str:
    """`0.250 before, 0.812 after`."""
    first, last = min(by_version), max(by_version)
    return f"{by_version[first]:.3f} at version {first}, {by_version[last]:.3f} at {last}"


def _without_signal(report: TrainReport) -> str:
    return f", of which {report.num_flat} had nothing to learn from" if report.num_flat else ""


def _success(success: float | None) -> str:
    return "" if success is None else f"{success:.3f} of the held-out tasks solved"

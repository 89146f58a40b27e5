"""`slipstream doctor`: certify or refuse a model, its renderer and its endpoint, check by check."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.doctor.checks import Check, Status, skipped
from slipstream.doctor.report import DoctorReport, examine_model
from slipstream.errors import ConfigError
from slipstream.printable import one_line, printable

_MARKS = {Status.PASSED: "[green]passed[/]", Status.FAILED: "[red]FAILED[/]", Status.SKIPPED: "[yellow]skipped[/]"}


def doctor_command(
    model: Annotated[str | None, typer.Option(help="A model folder, or the name of a fetched model.")] = None,
    family: Annotated[str, typer.Option(help="The chat format; 'auto' chooses by the folder.")] = "auto",
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that serves the model.")] = None,
    served_name: Annotated[str, typer.Option(help="The model's name on the server, if it serves several.")] = "",
    api_key_env: Annotated[str, typer.Option(help="The environment variable that holds the key.")] = "OPENAI_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check that what is sampled is what will be trained on. Exit code 0 if certified, 1 if refused."""
    report = _examine(model, family, base_url, served_name, api_key_env)
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _print(Console(), report)
    raise typer.Exit(0 if report.certified else 1)


def _examine(model: str | None, family: str, base_url: str | None, served_name: str, api_key_env: str) -> DoctorReport:
    from slipstream.hub import find_model

    if model is None and (family == "auto" or base_url is not None):
        raise ConfigError("name the model whose renderer is to be checked: --model FOLDER, or a fetched model's name")
    folder: Path | None = None if model is None else find_model(model)
    renderer, checks = examine_model(folder, family=family)
    if base_url is None:
        checks.append(skipped("endpoint", "none was named: give --base-url"))
    else:
        from slipstream.doctor.endpoint import check_endpoint
        from slipstream.model.openai import OpenAIConfig

        config = OpenAIConfig(base_url=base_url, model=served_name, api_key_env=api_key_env)
        checks += asyncio.run(check_endpoint(config, renderer))
    return DoctorReport(model=model or "bytes", family=renderer.family, checks=tuple(checks))


def _print(console: Console, report: DoctorReport) -> None:
    for check in report.checks:
        console.print(f"{_MARKS[check.status]}  {_padded(check)}", end="", highlight=False)
        console.print(printable(check.detail), markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(f"{len(report.with_status(status))} {status.value}" for status in Status)
    outcome = "[green]certified[/]" if report.certified else "[red]refused[/]"
    console.print(f"\n{outcome}: ", end="", highlight=False)
    console.print(
        one_line(f"{report.model} as {report.family} ({counts})"), markup=False, highlight=False, soft_wrap=True
    )


def _padded(check: Check) -> str:
    return f"{'' if check.status is Status.SKIPPED else ' '}{check.name:<46}"

"""`slipstream sandbox`: what this machine can isolate, and clearing away what killed runs left."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slipstream.aio import run_stoppable
from slipstream.cli.displays.tables import print_rows
from slipstream.errors import ConfigError
from slipstream.printable import printable

if TYPE_CHECKING:
    from slipstream.sandbox.cleanup.reaper import ReapReport
    from slipstream.sandbox.host_check.report import HostReport

sandbox_app = typer.Typer(help="Look after sandboxes.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
PROVIDERS = ("local", "oci")


@sandbox_app.command("check")
def check_command(
    provider: Annotated[str, typer.Argument(help="local, or oci.")] = "local",
    image: Annotated[str | None, typer.Option(help="For oci: the image that a container is tried with.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine can isolate, and what it cannot. Exit code 0 if the provider can be used."""
    if provider not in PROVIDERS:
        raise ConfigError(f'there is no provider "{provider}": name one of {", ".join(PROVIDERS)}')
    if image is not None and provider != "oci":
        raise ConfigError(f"--image is for the provider oci, not for {provider}: leave it out")
    survey = run_stoppable(_host_report(provider, image))
    if as_json:
        print(json.dumps(survey.as_json()))
    else:
        _print_host_report(Console(), survey)
    raise typer.Exit(0 if survey.usable else 1)


async def _host_report(name: str, image: str | None) -> HostReport:
    from slipstream.hub.places import default_home
    from slipstream.sandbox.host_check.report import report_local, report_oci

    if name == "local":
        from slipstream.sandbox.local.provider import LocalProvider

        local = LocalProvider()
        try:
            return await report_local(local, home=default_home())
        finally:
            await local.aclose()
    from slipstream.sandbox.oci.provider import OciProvider

    oci = OciProvider()
    try:
        return await report_oci(oci, home=default_home(), image=image)
    finally:
        await oci.aclose()


def _print_host_report(console: Console, survey: HostReport) -> None:
    marks = {"ok": "[green]ok     [/]", "limited": "[yellow]limited[/]", "missing": "[red]MISSING[/]"}
    for row in survey.rows:
        console.print(f"{marks[row.standing]}  {row.name:<24}", end="", highlight=False)
        console.print(printable(row.meaning), markup=False, highlight=False, soft_wrap=True)
        if row.remedy:
            console.print(printable(f"{'':<35}{row.remedy}"), markup=False, highlight=False, soft_wrap=True)
    outcome = "[green]can be used[/]" if survey.usable else "[red]cannot be used[/]"
    console.print(f"\n{survey.provider} sandboxes {outcome} here", highlight=False)


@sandbox_app.command("reap")
def reap_command(as_json: JsonOption = False) -> None:
    """Remove what killed runs left: processes, mounts, folders, containers. Exit code 1 if something remains."""
    from slipstream.hub.places import default_home
    from slipstream.sandbox.cleanup.reaper import reap

    report = reap(default_home())
    if as_json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        print_rows(Console(), _rows(report))
    raise typer.Exit(1 if report.problems else 0)


def _rows(report: ReapReport) -> list[tuple[str, str]]:
    rows = [
        ("dead runs", f"{len(report.leases)} cleared away, {report.num_live} others are in use"),
        ("processes", str(report.num_processes)),
        ("mounts", str(report.num_mounts)),
        ("folders", str(report.num_folders)),
        ("containers", str(report.num_containers)),
        ("control groups", str(report.num_cgroups)),
    ]
    rows += [("" if index else "problems", problem) for index, problem in enumerate(report.problems)]
    return rows

"""The commands: parse arguments, build the settings, call. Standard output is for results, standard error for
the rest; a bad input ends in one sentence and exit code 2."""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.logging import RichHandler

from slipstream import __version__
from slipstream.cli.assets.index import index_app
from slipstream.cli.assets.models import models_app
from slipstream.cli.bench import bench_app
from slipstream.cli.displays.output import OutputRefused, guarded_output
from slipstream.cli.doctor import doctor_command
from slipstream.cli.experiment import experiment_app
from slipstream.cli.export import export_command
from slipstream.cli.reference import recipes_command, settings_command
from slipstream.cli.sandbox import sandbox_app
from slipstream.cli.show import runs_command, show_command
from slipstream.cli.simulate import simulate_command
from slipstream.cli.tasks import tasks_app
from slipstream.cli.tools import tools_app
from slipstream.errors import ConfigError, SlipstreamError
from slipstream.printable import PrintableFormatter, one_line

T = TypeVar("T")

app = typer.Typer(
    help="Train and evaluate multi-turn LLM agents with reinforcement learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # subcommands inherit it
)

RecipeArgument = Annotated[
    str | None, typer.Argument(help="A recipe's name (`slipstream recipes` lists them), or file.py:function.")
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changed settings; `slipstream settings` lists them all."),
]
ResumeOption = Annotated[str | None, typer.Option("--resume", help="Resume this run: its name, its path, or 'latest'.")]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="With --resume: run the code that a run from elsewhere names.")
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="untrusted",
        help="With --resume: a new run with the rollouts of that one, where only those without a verdict run again.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"slipstream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("eval")
def eval_command(
    recipe: RecipeArgument = None,
    overrides: OverridesArgument = None,
    resume: ResumeOption = None,
    trust: TrustOption = False,
    only: OnlyOption = None,
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Run n rollouts of every task and report rewards, pass@k, endings and times."""
    from slipstream.cli.displays.reports import as_json as report_as_json
    from slipstream.cli.displays.reports import print_report
    from slipstream.cli.run_session import print_result, run_session
    from slipstream.cli.sessions import find_session
    from slipstream.evaluation import plan_evaluation, run_evaluation
    from slipstream.progress.display import progress_console
    from slipstream.progress.evaluation import EvalDisplay
    from slipstream.settings import EvalConfig

    start_s = time.monotonic()
    display = EvalDisplay(progress_console())
    session = find_session(EvalConfig, recipe, overrides or [], resume=resume, runs=runs, trust=trust, only=only)
    report = run_session(
        session,
        display,
        plan_evaluation,
        lambda plan, open_store: run_evaluation(plan, open_store, past=session.past, on_progress=display.show),
    )
    seconds = time.monotonic() - start_s
    print_result(
        session,
        display,
        as_json=as_json,
        text=lambda folder: report_as_json(report, folder, seconds),
        table=lambda console, folder: print_report(console, report, folder, seconds),
    )
    if not report.num_trusted:
        display.say("slipstream: no rollout has a verdict: see what the failures say, fix the cause, then try again")
        raise typer.Exit(1)


@app.command("train")
def train_command(
    recipe: RecipeArgument = None,
    overrides: OverridesArgument = None,
    resume: ResumeOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Train a policy by reinforcement learning and report its success on held-out tasks."""
    from slipstream.cli.displays.training import evaluation_of, print_training, report_json
    from slipstream.cli.run_session import print_result, run_session
    from slipstream.cli.sessions import find_session
    from slipstream.progress.display import progress_console
    from slipstream.progress.training import TrainDisplay
    from slipstream.settings import TrainConfig
    from slipstream.training.run import plan_training, run_training

    display = TrainDisplay(progress_console())
    session = find_session(TrainConfig, recipe, overrides or [], resume=resume, runs=runs, trust=trust)
    report = run_session(
        session,
        display,
        plan_training,
        lambda plan, open_store: run_training(
            plan, open_store, on_progress=display.show, on_status=display.say, on_warm=display.show_warm
        ),
    )
    evaluation = evaluation_of(session.config, report.trained)
    print_result(
        session,
        display,
        as_json=as_json,
        text=lambda folder: report_json(report, folder, evaluation),
        table=lambda console, folder: print_training(console, report, folder, evaluation),
    )


app.command("show")(show_command)
app.command("runs")(runs_command)
app.command("doctor")(doctor_command)
app.command("export")(export_command)
app.command("simulate")(simulate_command)
app.command("recipes")(recipes_command)
app.command("settings")(settings_command)
app.add_typer(models_app, name="models")
app.add_typer(index_app, name="index")
app.add_typer(bench_app, name="bench")
app.add_typer(experiment_app, name="experiment")
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(tools_app, name="tools")
app.add_typer(tasks_app, name="tasks")


def run_command(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` spell, by default those of the process; ends in SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    console = Console(stderr=True)
    # In a file or a pipe nothing is wrapped: lines of tracebacks and paths stay whole.
    handler = RichHandler(console=console, show_path=False) if console.is_terminal else logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    try:
        with guarded_output():
            app(args=arguments)
    except ConfigError as raised:
        print(f"slipstream: {one_line(str(raised))}", file=sys.stderr)
        sys.exit(2)
    except SlipstreamError as raised:
        print(f"slipstream: {type(raised).__name__}: {one_line(str(raised))}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OutputRefused as raised:
        print(f"slipstream: the output cannot be written ({raised}): send it to another place", file=sys.stderr)
        sys.exit(1)

"""`slipstream experiment`: run one arm of a comparison in stages, carry it between machines, report on many.

Standard output is for results, standard error for progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.aio import collect_rarely, run_stoppable
from slipstream.errors import ConfigError, InfrastructureError, RunError
from slipstream.printable import one_line

if TYPE_CHECKING:
    from slipstream.experiment.plan import ExperimentPlan
    from slipstream.experiment.session import SessionOptions, Stage

experiment_app = typer.Typer(
    help="Run experiments that compare arms, move them between machines, report on them.", no_args_is_help=True
)

OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of an experiment.")]
ToOption = Annotated[Path, typer.Option("--to", help="The folder for the pieces.")]
MaxFilesOption = Annotated[int, typer.Option(min=1, help="Pieces, at most.")]
FileOption = Annotated[float, typer.Option(min=0.001, help="Largest size of a piece, in MiB.")]
TotalOption = Annotated[float, typer.Option(min=0.001, help="Largest size of all pieces, in MiB.")]


@experiment_app.command("swe")
def swe_command(
    tasks: Annotated[Path, typer.Option(help="A folder that `slipstream tasks make` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder of this experiment; the same one to resume it.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changed settings of the recipe.")
    ] = None,
    arm: Annotated[str, typer.Option(help="full, no-search, no-hints or bare.")] = "full",
    seed: Annotated[int, typer.Option(help="Of the order of tasks and of sampling in training.")] = 1,
    part: Annotated[str, typer.Option(help="What is evaluated: held_out, or validation.")] = "held_out",
    samples: Annotated[int, typer.Option(min=1, help="Rollouts of each task in an evaluation.")] = 8,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="End in this time, with the evaluation of what was learnt until then.")
    ] = None,
    stages: Annotated[str, typer.Option(help="Only these: start,before,training,after.")] = "",
    evaluate_as: Annotated[
        list[str] | None, typer.Option("--evaluate-as", help="Also evaluate as this arm; may be repeated.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="Take the start of this experiment, and its evaluations.")] = None,
    pack_to: Annotated[Path | None, typer.Option("--pack", help="Also pack the experiment into this folder.")] = None,
    design: Annotated[str, typer.Option(help="Another experiment on such tasks: file.py:function.")] = "swe",
) -> None:
    """Warm start, evaluation, reinforcement learning, evaluation: one arm with one seed. Give the same command again to
    resume it."""
    from slipstream.experiment.plan import make_plan
    from slipstream.experiment.session import SessionOptions

    options = SessionOptions(
        part=part,
        samples=samples,
        minutes=minutes,
        stages=_stages(stages),
        eval_arms=tuple(evaluate_as or []),
        start=start,
    )
    plan = make_plan(design, tasks, arm=arm, seed=seed, overrides=overrides or [])
    has_failed = _run(plan, out, options, pack_to)
    raise typer.Exit(has_failed)


def _run(plan: ExperimentPlan, out: Path, options: SessionOptions, pack_to: Path | None) -> bool:
    """Whether it was stopped. What there is then is reported and packed all the same."""
    from slipstream.experiment.pack import pack_experiment
    from slipstream.experiment.plan import RECORD
    from slipstream.experiment.report import write_report
    from slipstream.experiment.session import run_session

    say, has_failed = _clocked(), False
    collect_rarely()
    try:
        result = run_stoppable(run_session(plan, out, options, on_status=say))
        say(f"version {result.version} of {result.steps}" + ("" if result.is_over else "; the same command resumes it"))
    except (KeyboardInterrupt, InfrastructureError, RunError) as raised:
        say(f"stopped by {type(raised).__name__}: {raised}; the same command resumes it")
        has_failed = True
    if (out / RECORD).exists():
        print(write_report(out, plan.design))
        if pack_to is not None:
            packed = pack_experiment(out, pack_to)
            write_report(out, plan.design, pack_to / "report.json.gz")
            say(f"packed: {packed}")
    return has_failed


def _stages(text: str) -> frozenset[Stage]:
    from slipstream.experiment.session import Stage

    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in set(Stage)]:
        raise ConfigError(f"--stages names {unknown[0]!r}: give some of {', '.join(Stage)}")
    return frozenset(map(Stage, names or Stage))


def _clocked() -> Callable[[str], None]:
    """Print lines to standard error, with the seconds since the beginning."""
    start_s = time.monotonic()

    def say(line: str) -> None:
        typer.echo(f"{time.monotonic() - start_s:7.1f} s  {one_line(line)}", err=True)

    return say


@experiment_app.command("pack")
def pack_command(
    out: OutArgument,
    to: ToOption,
    max_files: MaxFilesOption = 7,
    file_mib: FileOption = 16,
    total_mib: TotalOption = 60,
) -> None:
    """Write what a resume on another machine needs, in pieces. The rollouts' tokens and the model stay behind."""
    from slipstream.experiment.pack import PackLimits, pack_experiment

    limits = PackLimits(max_files=max_files, file_bytes=int(file_mib * 2**20), total_bytes=int(total_mib * 2**20))
    packed = pack_experiment(out, to, limits)
    for path in packed.files:
        print(path)
    typer.echo(f"{packed}", err=True)


@experiment_app.command("unpack")
def unpack_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the pieces.")],
    out: Annotated[Path, typer.Option(help="The folder of the experiment, which must be new.")],
) -> None:
    """Take back what `experiment pack` wrote; the command that began the experiment then resumes it."""
    from slipstream.experiment.pack import unpack_experiment

    version = unpack_experiment(folder, out)
    print(f"{out}: {'no checkpoint' if version is None else f'version {version}'}")


@experiment_app.command("report")
def report_command(
    places: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Reports, or folders that hold some.")],
    to: Annotated[Path | None, typer.Option(help="Also write the page and its pictures into this folder.")] = None,
) -> None:
    """Tables and pictures of stored reports: success with intervals, paired differences, costs. Needs no GPU."""
    from slipstream.experiment.comparison import study_of
    from slipstream.experiment.page import page, pictures
    from slipstream.experiment.report import find_reports, label_of

    studies = [study_of(label_of(path, places), report) for path, report in find_reports(places)]
    text = page(studies)
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        (to / "page.md").write_text(text, encoding="utf-8")
        for name, picture in pictures(studies).items():
            (to / name).write_text(picture, encoding="utf-8")
    print(text, end="")

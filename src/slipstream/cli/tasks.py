"""`slipstream tasks`: make software-engineering tasks out of packages or commits, check them, list them.

Standard output is for results, standard error for progress.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from slipstream.aio import run_stoppable
from slipstream.cli.displays.tables import print_table
from slipstream.errors import ConfigError
from slipstream.printable import one_line
from slipstream.types import Json

if TYPE_CHECKING:
    from slipstream.settings import SandboxConfig
    from slipstream.tasks.commits.make import CommitOptions
    from slipstream.tasks.factory.task_set import FactoryReport
    from slipstream.tasks.gate import GateReport, TaskCheck
    from slipstream.types import Task

tasks_app = typer.Typer(help="Make, check and list tasks.", no_args_is_help=True)

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASKS",
        help="A folder with tasks.jsonl, a JSONL file, package.module:function, or a public format: swebench, swegym, "
        "r2egym, swesmith.",
    ),
]
SettingsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of a function or format, as in tasks.args.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AtOnceOption = Annotated[int, typer.Option(min=1, help="Sandboxes that run at the same time.")]


@tasks_app.command("make")
def make_command(
    requirements: Annotated[
        list[str],
        typer.Argument(
            metavar="PACKAGE==VERSION...",
            help="Packages, paths of source distributions, or @FILE with one of them on each line.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to make, or one to add packages to.")],
    per_package: Annotated[int, typer.Option(min=1, help="Tasks of each package, at most.")] = 100,
    seed: Annotated[int, typer.Option(help="Which bugs are planted.")] = 0,
    tier: Annotated[list[str] | None, typer.Option(help="Only tasks of this tier; may be repeated.")] = None,
    at_once: AtOnceOption = 2,
    suite_timeout_s: Annotated[float, typer.Option(min=1, help="Maximum time of a package's tests.")] = 240.0,
    downloads: Annotated[Path | None, typer.Option(help="A folder that keeps what is downloaded.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plant bugs in packages and write tasks that passed the gate. Exit code 1 if there are none.

    Packages that DIR holds already are not made again, so a stopped command is resumed by running it again.
    """
    if downloads is not None and downloads.exists() and not downloads.is_dir():
        raise ConfigError(f"{downloads} is a file: choose a folder for what is downloaded")
    report = run_stoppable(
        _make(_listed(requirements), out, per_package, seed, tier or [], at_once, suite_timeout_s, downloads)
    )
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _print_made(Console(), report)
    raise typer.Exit(0 if report.num_passed else 1)


def _listed(requirements: list[str]) -> list[str]:
    """The same, with each @FILE replaced by the lines of the file."""
    found: list[str] = []
    for one in requirements:
        if not one.startswith("@"):
            found.append(one)
            continue
        try:
            lines = Path(one[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as raised:
            raise ConfigError(f"the list {one[1:]} cannot be read: {raised}") from None
        found += [line for text in lines if (line := text.partition("#")[0].strip())]
    return list(dict.fromkeys(found))


async def _make(
    requirements: list[str],
    out: Path,
    per_package: int,
    seed: int,
    tiers: list[str],
    at_once: int,
    suite_timeout_s: float,
    downloads: Path | None,
) -> FactoryReport:
    from slipstream.settings import SandboxConfig
    from slipstream.tasks.factory.difficulty import Tier, tier_named
    from slipstream.tasks.factory.make import make_tasks
    from slipstream.wiring.attempts import make_provider

    provider = make_provider(SandboxConfig())
    provider.check()
    try:
        return await make_tasks(
            requirements,
            out,
            provider=provider,
            seed=seed,
            per_package=per_package,
            tiers=[tier_named(one) for one in tiers] or list(Tier),
            num_at_once=at_once,
            suite_timeout_s=suite_timeout_s,
            downloads=downloads,
            on_step=lambda line: typer.echo(one_line(line), err=True),
        )
    finally:
        await provider.aclose()


def _print_made(console: Console, report: FactoryReport) -> None:
    rows = [
        (
            package.name,
            str(package.num_tests or ""),
            str(package.num_mutants or ""),
            str(package.num_made or ""),
            str(package.num_passed),
            f"{sum(package.seconds.values()):.0f}",
            package.skipped or _counted(_firsts(package.refused.values())),
        )
        for package in report.packages
    ]
    print_table(console, ("package", "tests", "mutants", "tasks", "passed", "seconds", "not used"), rows)
    console.print(
        f"{report.num_passed} of {report.num_tasks} tasks passed the gate, in {report.seconds:.0f} s; "
        f"the recorded calls of {report.num_replayed} distinguish the bug from the reference",
        highlight=False,
    )


@tasks_app.command("commits")
def commits_command(
    clone: Annotated[Path, typer.Argument(metavar="REPO", help="A git clone, bare or not. It is only read.")],
    out: Annotated[Path, typer.Option(help="The folder to make, or one to add tasks to.")],
    since: Annotated[str, typer.Option(help="Commits after this day (2025-01-31) or revision alone.")] = "",
    num: Annotated[int, typer.Option(min=1, help="Tasks in the folder, at most.")] = 20,
    max_lines: Annotated[int, typer.Option(min=1, help="Lines that a fix may change.")] = 200,
    issues: Annotated[
        Path | None, typer.Option(help="A JSON object with texts by commit or by the number of an issue.")
    ] = None,
    name: Annotated[str, typer.Option(help="OWNER/NAME; by default where it was cloned from.")] = "",
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Also write swebench or harbor; may be given again.")
    ] = None,
    at_once: AtOnceOption = 2,
    suite_timeout_s: Annotated[float, typer.Option(min=1, help="The longest that the tests may take once.")] = 240.0,
    downloads: Annotated[Path | None, typer.Option(help="A folder that keeps what is downloaded.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write tasks out of commits that change source and tests, the newest first. Exit code 1 if there are none.

    What passes the gate is written. Commits that DIR knows already are not tried again, so a command that was stopped
    is resumed by giving it again.
    """
    from slipstream.tasks.commits.formats import format_named, write_format
    from slipstream.tasks.commits.make import CommitOptions

    if downloads is not None and downloads.exists() and not downloads.is_dir():
        raise ConfigError(f"{downloads} is a file: choose a folder for what is downloaded")
    wanted = [format_named(one) for one in formats or []]
    options = CommitOptions(
        name=name,
        since=since,
        num=num,
        max_lines=max_lines,
        issues=_read_issues(issues),
        num_at_once=at_once,
        suite_timeout_s=suite_timeout_s,
    )
    report = run_stoppable(_make_from_commits(clone, out, options, downloads))
    if report.num_passed:
        for one in wanted:
            typer.echo(one_line(f"{one}: {write_format(one, out)}"), err=True)
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _print_commits(Console(), report)
    raise typer.Exit(0 if report.num_passed else 1)


async def _make_from_commits(clone: Path, out: Path, options: CommitOptions, downloads: Path | None) -> FactoryReport:
    from slipstream.settings import SandboxConfig
    from slipstream.tasks.commits.make import make_commit_tasks
    from slipstream.wiring.attempts import make_provider

    provider = make_provider(SandboxConfig())
    provider.check()
    try:
        return await make_commit_tasks(
            clone,
            out,
            provider=provider,
            options=options,
            downloads=downloads,
            on_step=lambda line: typer.echo(one_line(line), err=True),
        )
    finally:
        await provider.aclose()


def _read_issues(place: Path | None) -> dict[str, str]:
    if place is None:
        return {}
    try:
        told = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as raised:
        raise ConfigError(f"the issues {place} cannot be read: {raised}") from None
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        raise ConfigError(
            f"the issues {place} are no JSON object of texts by commit or number, such as {{'12': '...'}}"
        )
    return {str(key).lstrip("#"): text for key, text in told.items()}


def _print_commits(console: Console, report: FactoryReport) -> None:
    rows = [(one.name, str(one.num_tests or ""), str(one.num_passed), one.skipped) for one in report.packages]
    print_table(console, ("commit", "tests", "tasks", "not used"), rows)
    console.print(
        f"{report.num_passed} tasks out of {len(report.packages)} commits, in {report.seconds:.0f} s", highlight=False
    )


@tasks_app.command("check")
def check_command(
    source: SourceArgument,
    settings: SettingsArgument = None,
    num: Annotated[int | None, typer.Option(min=1, help="Only this many tasks, from the first.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Only this many tasks of each package.")] = None,
    seed: Annotated[int, typer.Option(help="Which tasks --sample picks.")] = 0,
    at_once: AtOnceOption = 2,
    cheats: Annotated[bool, typer.Option("--cheats/--no-cheats", help="Try every cheat on every task.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="How often the oracle is graded.")] = 3,
    provider: Annotated[Literal["local", "oci"], typer.Option(help="What runs the sandboxes.")] = "local",
    engine: Annotated[str, typer.Option(help="Of oci: podman or docker.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Check that each task can be solved, but not by doing nothing or by cheating. Exit code 1 if one cannot."""
    from slipstream.settings import SandboxConfig

    tasks = _load(source, settings or [], num)
    sandboxes = SandboxConfig(provider=provider, engine=engine)
    report = run_stoppable(_check(tasks, sandboxes, num, sample, seed, at_once, cheats, repeats))
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _print_checked(Console(), report)
    raise typer.Exit(0 if report.num_passed == report.num_tasks else 1)


def _load(source: str, settings: list[str], num: int | None) -> tuple[Task, ...]:
    """The tasks of a source, with the arguments of its function."""
    from slipstream.config import apply_overrides
    from slipstream.tasks.source import load_tasks

    return load_tasks(source, num=num, args=apply_overrides(dict[str, Json](), settings))


async def _check(
    tasks: Sequence[Task],
    sandboxes: SandboxConfig,
    num: int | None,
    sample: int | None,
    seed: int,
    at_once: int,
    cheats: bool,
    repeats: int,
) -> GateReport:
    from slipstream.tasks.gate import check_tasks
    from slipstream.wiring.attempts import make_provider

    provider = make_provider(sandboxes)
    provider.check()

    def tell(checked: TaskCheck) -> None:
        typer.echo(one_line(f"{checked.id}: {checked.reason or 'passed'}"), err=True)

    try:
        return await check_tasks(
            tasks,
            provider=provider,
            num_at_once=at_once,
            num_repeats=repeats,
            with_cheats=cheats,
            num=num,
            per_package=sample,
            seed=seed,
            on_checked=tell,
        )
    finally:
        await provider.aclose()


def _print_checked(console: Console, report: GateReport) -> None:
    figures = report.as_json()
    rows = [(name, *map(str, counts)) for name, counts in sorted(report.by_package().items())]
    print_table(console, ("package", "tasks", "passed", "cheats tried"), rows)
    median = "" if figures["grade_p50_s"] is None else f", {figures['grade_p50_s']} s at the median"
    console.print(
        f"{report.num_passed} of {report.num_tasks} tasks passed: {figures['num_gradings']} gradings{median}, "
        f"in {report.seconds:.0f} s",
        highlight=False,
    )
    if figures["num_cheats"]:
        console.print(
            f"{figures['num_cheats']} cheats: paid {figures['num_paid']} times, "
            f"no verdict {figures['num_untrusted']} times; "
            f"{figures['num_honest_paid']} of {figures['num_honest']} honest rewrites paid",
            highlight=False,
        )
    refused = [(one.id, one.reason) for one in report.checked if not one.passed]
    if refused:
        print_table(console, ("refused", "reason"), refused)


@tasks_app.command("list")
def list_command(
    source: SourceArgument,
    settings: SettingsArgument = None,
    as_json: JsonOption = False,
) -> None:
    """List what a set of tasks holds."""
    from slipstream.tasks.gate import package_of

    tasks = _load(source, settings or [], None)
    facts = _facts(Path(source))
    rows: list[dict[str, Json]] = [
        {
            "id": task.id,
            "tree": "" if task.sandbox is None else Path(task.sandbox.tree).name,
            "package": package_of(task),
            "parser": task.grading.spec.get("parser", "report"),
            "tests": [len(_listed_tests(task, kind)) for kind in ("fail_to_pass", "pass_to_pass")],
            "tier": facts.get(task.id, {}).get("tier", ""),
            "difficulty": facts.get(task.id, {}).get("difficulty"),
            "mistakes": facts.get(task.id, {}).get("mistakes", []),
        }
        for task in tasks
    ]
    if as_json:
        print(json.dumps({"num_tasks": len(rows), "tasks": rows}))
        return
    if facts:
        table = [
            (str(row["id"]), str(row["tier"]), str(row["difficulty"] or ""), ", ".join(map(str, row["mistakes"] or [])))  # type: ignore[arg-type]
            for row in rows
        ]
        print_table(Console(), ("task", "tier", "difficulty", "mistakes"), table)
        return
    names = ("id", "package", "parser", "tests")
    print_table(
        Console(), ("task", "package", "parser", "tests"), [tuple(str(row[name]) for name in names) for row in rows]
    )
    print(f"{len(rows)} tasks")


def _listed_tests(task: Task, kind: str) -> list[Json]:
    found = task.grading.spec.get(kind)
    return found if isinstance(found, list) else []


@tasks_app.command("outcomes")
def outcomes_command(
    run: Annotated[str, typer.Argument(help="A run of made tasks: its name, its path, or 'latest'.")],
    against: Annotated[str | None, typer.Option(help="A run to compare it with, on the tasks that both have.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """Print, as JSON, the outcomes of a run's rollouts at each level, and how its training went."""
    from slipstream.cli.sessions import locate_run
    from slipstream.recipes.swe.outcomes import by_level, paired
    from slipstream.record import RunStore

    reader = RunStore.read(locate_run(runs, run))
    keys = reader.done_keys()
    told: dict[str, object] = {"run": reader.folder.name}
    for phase in sorted({key.phase for key in keys}):
        told[phase] = by_level(reader.rollouts(phase=phase))
        steps = sorted({key.step for key in keys if key.phase == phase})
        if len(steps) > 1:
            told[f"{phase}_solved"] = {
                step: {
                    level: figures["solved"]
                    for level, figures in by_level(reader.rollouts(phase=phase, step=step)).items()
                }
                for step in steps
            }
    if against is not None:
        base = RunStore.read(locate_run(runs, against))
        told["against"] = base.folder.name
        told["paired"] = paired(base.rollouts(with_turns=False), reader.rollouts(with_turns=False))
    print(json.dumps(told))


def _facts(source: Path) -> dict[str, dict[str, Json]]:
    """What the factory's own report says of each task; nothing where there is none."""
    place = source / "report.json"
    if not place.is_file():
        return {}
    try:
        return {str(one["id"]): one for one in json.loads(place.read_text(encoding="utf-8"))["tasks"]}
    except (ValueError, KeyError, TypeError) as raised:
        raise ConfigError(
            f"{place} is not a report of the factory ({raised}): make the tasks again, or delete it"
        ) from None


def _firsts(reasons: Iterable[str]) -> Counter[str]:
    return Counter(reason.partition(":")[0] for reason in reasons)


def _counted(counts: Counter[str]) -> str:
    return "; ".join(f"{num} x {reason}" for reason, num in counts.most_common())

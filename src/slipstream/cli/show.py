"""`slipstream runs` and `slipstream show`: what was recorded, as tables and transcripts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.types import EndReason, Rollout, Trust

if TYPE_CHECKING:
    from slipstream.record import RunReader

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="The folder that holds the runs.")]


def runs_command(as_json: JsonOption = False, runs: RunsOption = Path("runs")) -> None:
    """List the runs in a folder: recipe, state, steps, reward and age; the newest last."""
    from slipstream.cli.displays.tables import print_table
    from slipstream.record.summary import list_runs

    found = list_runs(runs)
    if as_json:
        print(json.dumps([run.as_json() for run in found], indent=2))
        return
    if not found:
        raise ConfigError(f"there is no run in {runs}: start one, or name the folder that holds the runs with --runs")
    now_s = time.time()
    rows = [
        (
            run.folder.name,
            run.recipe,
            run.state,
            "" if run.steps is None else f"{run.steps}/{run.planned_steps or '?'}",
            str(run.rollouts),
            "" if run.reward is None else f"{run.reward:.3f}",
            age(now_s - run.began_s),
        )
        for run in found
    ]
    print_table(Console(), ("run", "recipe", "state", "steps", "rollouts", "reward", "age"), rows)


def age(seconds: float) -> str:
    """`40 s`, `12 min`, `5 h`, `3 d`."""
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which rollouts of a run are listed."""

    failed: bool
    ending: str | None
    task: str | None
    phase: str | None
    step: int | None
    min_reward: float | None
    max_reward: float | None

    def __post_init__(self) -> None:
        if self.ending is not None and self.ending not in list(EndReason):
            known = ", ".join(EndReason)
            raise ConfigError(f'--ending "{self.ending}"{did_you_mean(self.ending, EndReason)}: give one of {known}')

    @property
    def are_set(self) -> bool:
        return self != Filters(
            failed=False, ending=None, task=None, phase=None, step=None, min_reward=None, max_reward=None
        )

    def of(self, reader: RunReader, *, with_turns: bool) -> Iterator[Rollout]:
        return filter(self._match, reader.rollouts(with_turns, phase=self.phase, step=self.step))

    def _match(self, rollout: Rollout) -> bool:
        reward = None if rollout.verdict is None else rollout.verdict.reward
        return (
            (not self.failed or rollout.trust is Trust.UNTRUSTED)
            and self.ending in (None, rollout.ending.reason)
            and (self.task is None or fnmatchcase(rollout.job.key.task_id, self.task))
            and (self.min_reward is None or (reward is not None and reward >= self.min_reward))
            and (self.max_reward is None or (reward is not None and reward <= self.max_reward))
        )


def show_command(
    run: Annotated[str, typer.Argument(help="The run: its name, its path, or 'latest'.")],
    rollout: Annotated[str | None, typer.Argument(help="Print this rollout in full; named as in the list.")] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Print the figures of each training step.")] = False,
    drift: Annotated[bool, typer.Option("--drift", help="Print how many samples forked, and why.")] = False,
    usage: Annotated[bool, typer.Option("--usage", help="Print where the time of the run went.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="List rollouts that infrastructure left without a verdict, and why.")
    ] = False,
    ending: Annotated[str | None, typer.Option(help="List rollouts that ended this way, such as turn_limit.")] = None,
    task: Annotated[str | None, typer.Option(help="List rollouts of this task; * stands for any letters.")] = None,
    phase: Annotated[str | None, typer.Option(help="List rollouts of this phase: eval, train or held_out.")] = None,
    step: Annotated[int | None, typer.Option(help="List rollouts of this step.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="List rollouts with this reward or more.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="List rollouts with this reward or less.")] = None,
    as_json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """List the rollouts of a recorded run, or its steps; or print one rollout in full."""
    from slipstream.cli.displays.transcript import drift_report, rollout_lines, run_lines
    from slipstream.cli.sessions import locate_run
    from slipstream.record import RunStore
    from slipstream.record.summary import rollout_row

    filters = Filters(
        failed=failed,
        ending=ending,
        task=task,
        phase=phase,
        step=step,
        min_reward=min_reward,
        max_reward=max_reward,
    )
    views = {"a rollout": rollout is not None, "--steps": steps, "--drift": drift, "--usage": usage}
    asked = [name for name, is_asked in {**views, "a filter of rollouts": filters.are_set}.items() if is_asked]
    if len(asked) > 1:
        raise ConfigError(f"{asked[0]} and {asked[1]} do not go together: leave out one of them")
    if as_json and (drift or rollout is not None):
        raise ConfigError("--json is for lists, --steps and --usage; `slipstream export` writes whole rollouts")
    reader = RunStore.read(locate_run(runs, run))
    if usage:
        _show_usage(reader, as_json=as_json)
    elif steps:
        _show_steps(reader, as_json=as_json)
    elif as_json:
        print(json.dumps([rollout_row(each) for each in filters.of(reader, with_turns=True)], indent=2))
    elif rollout is not None:
        _print_lines(rollout_lines(reader, rollout))
    elif drift:
        _print_lines(drift_report(reader))
    else:
        _print_lines(run_lines(filters.of(reader, with_turns=False), with_failures=failed))


def _print_lines(lines: Iterator[str]) -> None:
    for line in lines:
        print(line)


def _show_usage(reader: RunReader, *, as_json: bool) -> None:
    from slipstream.cli.displays.reports import print_usage, usage_json
    from slipstream.telemetry.bottleneck import run_usage

    found, machine = run_usage(reader)
    if as_json:
        print(usage_json(found, reader.folder, machine))
    else:
        print_usage(Console(), found, reader.folder, machine)


def _show_steps(reader: RunReader, *, as_json: bool) -> None:
    from slipstream.cli.displays.tables import print_table
    from slipstream.progress.training import SHOWN, figure

    done = [step for step in reader.steps() if step.version is not None and step.metrics is not None]
    if not done:
        raise ConfigError(f"{reader.folder} has no training step: --steps is for runs of `slipstream train`")
    if as_json:
        rows = [{"step": step.step, "version": step.version, **(step.metrics or {})} for step in done]
        print(json.dumps(rows, indent=2))
        return
    success = {
        version: figures["success"] for (version, kind), figures in reader.measured().items() if kind == "held_out"
    }
    heads = ("step", "version", *SHOWN.values(), "held-out")
    cells = [("", "0", *("" for _ in SHOWN), figure(success[0]))] if 0 in success else []
    for step in done:
        figures = step.metrics or {}
        shown = (figure(figures.get(name)) for name in SHOWN)
        cells.append((str(step.step), str(step.version), *shown, figure(success.get(step.version or 0))))
    print_table(Console(), heads, cells)
    _show_set_steps(reader)


def _show_set_steps(reader: RunReader) -> None:
    """Of a mixture: each set's mean reward by step, and its success on held-out tasks."""
    from slipstream.cli.displays.tables import print_table
    from slipstream.progress.training import figure
    from slipstream.training.held_out import success_by_set

    by_set = success_by_set(reader.measured())
    rewards = {
        step.version: {
            name.split("/")[1]: value for name, value in (step.metrics or {}).items() if _is_set_reward(name)
        }
        for step in reader.steps()
        if step.version is not None
    }
    names = list(dict.fromkeys([*(name for each in rewards.values() for name in each), *by_set]))
    if not names:
        return
    heads = ("version", *(f"{name} {what}" for name in names for what in ("reward", "held-out")))
    versions = sorted({*rewards, *(version for each in by_set.values() for version in each)})
    cells = [
        (
            str(version),
            *(
                figure(value)
                for name in names
                for value in (rewards.get(version, {}).get(name), by_set.get(name, {}).get(version))
            ),
        )
        for version in versions
    ]
    Console().print()
    print_table(Console(), heads, cells)


def _is_set_reward(name: str) -> bool:
    return name.startswith("set/") and name.endswith("/reward/mean")

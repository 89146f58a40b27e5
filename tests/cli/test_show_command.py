"""`slipstream runs` and `slipstream show`: lists, filters, steps."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli.commands import app
from slipstream.cli.show import age
from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.record.metrics_file import MetricsFile, MetricsLine
from slipstream.seams import BatchTaken, Event, Measured, RolloutDone, StepDone, StepPlanned
from slipstream.types import Ending, EndReason, Failure, Job, JobKey, Rollout, Verdict


def rollout(task: str, reward: float | None, reason: EndReason = EndReason.FINISHED, step: int = 0) -> Rollout:
    lost = Failure(attempt=3, stage="run", error="ModelError", message="the server\nis gone")
    return Rollout(
        job=Job(key=JobKey(phase="train", step=step, task_id=task, sample=0), seed=0),
        attempt=1,
        ending=Ending(reason=reason),
        verdict=None if reward is None else Verdict(reward=reward),
        failures=() if reward is not None else (lost,),
    )


TRAINING: Sequence[Event] = [
    RolloutDone(rollout=rollout("easy-1", 1.0)),
    RolloutDone(rollout=rollout("easy-2", 0.5, EndReason.TURN_LIMIT)),
    RolloutDone(rollout=rollout("hard-1", None, EndReason.INFRASTRUCTURE, step=1)),
    Measured(step=0, kind="held_out", metrics={"success": 0.25}),
    *(
        event
        for step in (0, 1)
        for event in (
            StepPlanned(step=step, jobs=()),
            BatchTaken(step=step, jobs=()),
            StepDone(step=step, version=step + 1, metrics={"reward/mean": 0.5 + step / 4, "learn/entropy": 1.5}),
        )
    ),
    Measured(step=2, kind="held_out", metrics={"success": 0.75}),
]


def write(folder: Path, command: str, settings: dict[str, object], events: Sequence[Event]) -> None:
    async def main() -> None:
        config = {"command": command, "settings": settings}
        async with RunStore.create(folder, config=config) as store:  # type: ignore[arg-type]  # it is JSON
            for event in events:
                store.append(event)

    asyncio.run(main())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write(tmp_path / "letters-1", "train", {"name": "letters", "steps": 4}, TRAINING)
    write(tmp_path / "demo-1", "eval", {"name": "demo"}, [RolloutDone(rollout=rollout("a", 0.25))])
    return tmp_path


def shown(*arguments: str) -> str:
    ended = CliRunner().invoke(app, list(arguments))
    if ended.exception is not None:
        raise ended.exception
    return ended.output


def keys(text: str) -> list[str]:
    return [line.split("/")[2] for line in text.splitlines()]


def test_runs_are_listed_with_what_became_of_them(runs: Path) -> None:
    head, first, second = shown("runs", "--runs", str(runs)).splitlines()
    assert head.split() == ["run", "recipe", "state", "steps", "rollouts", "reward", "age"]
    assert first.split()[:6] == ["letters-1", "letters", "stopped", "2/4", "3", "0.750"]
    assert second.split()[:5] == ["demo-1", "demo", "stopped", "1", "0.250"]
    MetricsFile(runs / "demo-1", [MetricsLine(kind="eval", at={}, metrics={"reward/mean": 0.5})])
    (runs / "half").mkdir()
    (runs / "half" / "run.db").write_text("no database")
    listed = {run["run"]: run for run in json.loads(shown("runs", "--json", "--runs", str(runs)))}
    assert (listed["demo-1"]["state"], listed["demo-1"]["reward"]) == ("finished", 0.5)
    assert listed["half"]["state"].startswith("unreadable: ")


def test_a_run_that_is_being_written_is_running(runs: Path) -> None:
    async def main() -> str:
        async with RunStore.open(runs / "letters-1"):
            (row, _) = json.loads(await asyncio.to_thread(shown, "runs", "--json", "--runs", str(runs)))
            return str(row["state"])

    assert asyncio.run(main()) == "running"


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        shown("runs", "--runs", str(tmp_path))
    assert json.loads(shown("runs", "--json", "--runs", str(tmp_path))) == []


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (119, "1 min"), (7_200, "2 h"), (200_000, "2 d")])
def test_an_age_has_one_unit(seconds: float, said: str) -> None:
    assert age(seconds) == said


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], ["easy-1", "easy-2", "hard-1"]),
        (["--failed"], ["hard-1"]),
        (["--ending", "turn_limit"], ["easy-2"]),
        (["--task", "easy-*"], ["easy-1", "easy-2"]),
        (["--min-reward", "0.6"], ["easy-1"]),
        (["--max-reward", "0.6"], ["easy-2"]),
        (["--step", "1"], ["hard-1"]),
        (["--phase", "eval"], []),
        (["--task", "easy-*", "--max-reward", "0.6"], ["easy-2"]),
    ],
)
def test_rollouts_are_found_by_how_they_ended(runs: Path, arguments: list[str], found: list[str]) -> None:
    assert keys(shown("show", str(runs / "letters-1"), *arguments)) == found
    listed = json.loads(shown("show", str(runs / "letters-1"), *arguments, "--json"))
    assert [row["task"] for row in listed] == found


def test_what_failed_is_said_beside_it(runs: Path) -> None:
    (line,) = shown("show", str(runs / "letters-1"), "--failed").splitlines()
    assert line.endswith("infrastructure  reward -  attempt 1  ModelError in run: the server\\nis gone")


def test_steps_are_a_table_with_the_evaluations_between(runs: Path) -> None:
    head, before, first, last = shown("show", str(runs / "letters-1"), "--steps").splitlines()
    assert head.startswith("step  version  reward")
    assert before.split() == ["0", "0.25"]
    assert first.split() == ["0", "1", "0.5", "1.5"]
    assert last.split() == ["1", "2", "0.75", "1.5", "0.75"]
    listed = json.loads(shown("show", str(runs / "letters-1"), "--steps", "--json"))
    assert [(row["version"], row["reward/mean"]) for row in listed] == [(1, 0.5), (2, 0.75)]
    with pytest.raises(ConfigError, match="has no training step"):
        shown("show", str(runs / "demo-1"), "--steps")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "--usage"], "--steps and --usage do not go together"),
        (["a/0/b/0", "--failed"], "a rollout and a filter of rollouts do not go together"),
        (["--drift", "--json"], "--json is for lists"),
        (["--ending", "turnlimit"], 'did you mean "turn_limit"?'),
    ],
)
def test_what_does_not_go_together_is_refused(runs: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        shown("show", str(runs / "letters-1"), *arguments)
    assert said in str(raised.value)

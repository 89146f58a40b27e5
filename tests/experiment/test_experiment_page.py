"""The page of stored reports."""

import gzip
import json
from pathlib import Path

import pytest
from report_maker import evaluation, report
from typer.testing import CliRunner

from slipstream.cli.experiment import experiment_app
from slipstream.errors import ConfigError
from slipstream.experiment.comparison import study_of
from slipstream.experiment.page import page, pictures
from slipstream.experiment.report import find_reports

LOW = {"one-1@easy": [1.0, 0.0], "two-1@easy": [0.0, 0.0]}
HIGH = {"one-1@easy": [1.0, 1.0], "two-1@easy": [1.0, 0.0]}


def write(folder: Path, name: str, value: dict[str, object]) -> None:
    (folder / name).mkdir(parents=True)
    data = json.dumps(value).encode()
    (folder / name / "report.json.gz").write_bytes(gzip.compress(data))


def rows(text: str, title: str) -> list[str]:
    section = text.split(f"### {title}\n")[1].split("###")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][2:]


def test_the_command_reads_reports_alone_and_writes_tables_and_pictures(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(
            tmp_path / "in", f"full{seed}", report(evaluation(LOW, version=0), evaluation(HIGH, version=4), seed=seed)
        )
    own = [evaluation(LOW, version=0, arm="bare"), evaluation(LOW, version=4, arm="bare")]
    write(tmp_path / "in", "bare1", report(*own, evaluation(LOW, version=0), arm="bare"))
    done = CliRunner().invoke(experiment_app, ["report", str(tmp_path / "in"), "--to", str(tmp_path / "page")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page" / "page.md").read_text() == done.output
    assert len(rows(done.output, "What was run")) == 3
    gains = rows(done.output, "Paired differences to the start, on the same tasks and seeds")
    assert any("mean of 2 seeds" in line and "| +0.500 |" in line for line in gains)
    arms = rows(done.output, "Paired differences between arms, on the same tasks and seeds")
    assert any("bare (1) against full (2)" in line and "| -0.500 |" in line for line in arms)
    names = sorted(path.name for path in (tmp_path / "page").glob("*.svg"))
    assert names == ["held_out.svg", "training.svg"]


def test_an_agent_evaluated_without_a_tool_is_compared_with_itself() -> None:
    reduced = evaluation(LOW, version=4, arm="no-search")
    study = study_of("x", report(evaluation(LOW, version=0), evaluation(HIGH, version=4), reduced))
    (line,) = rows(page([study]), "Paired differences between arms, on the same tasks and seeds")
    assert "x evaluated as no-search against full, version 4" in line and "| -0.500 |" in line


def test_seeds_are_told_apart_from_reports_of_one_experiment() -> None:
    sessions = [study_of(name, report(evaluation(LOW, version=0), evaluation(HIGH, version=4))) for name in "ab"]
    assert "seeds" not in "".join(rows(page(sessions), "Paired differences to the start, on the same tasks and seeds"))


def test_a_picture_shows_every_level_that_was_trained_on() -> None:
    value = report()
    for each in value["steps"]:
        each["levels"]["hard"] = {"groups": 1, "mixed": 0, "rollouts": 4, "reward": 0.1}
    drawn = pictures([study_of("x", value)])
    assert "x, easy" in drawn["levels.svg"] and "x, hard" in drawn["levels.svg"]


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no report in"):
        find_reports([tmp_path])
    (tmp_path / "report.json").write_text('{"tasks": []}')
    with pytest.raises(ConfigError, match="no report of an experiment"):
        find_reports([tmp_path])

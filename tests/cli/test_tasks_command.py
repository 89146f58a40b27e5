import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli.tasks import tasks_app
from slipstream.errors import ConfigError

LINE = {
    "id": "pack-1-0000-tiny",
    "instruction": "Mend it.",
    "tools": ["bash", "finish"],
    "patch_of": "/work",
    "grading": {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_b"]},
}


def write_set(folder: Path) -> Path:
    (folder / "tasks.jsonl").write_text(json.dumps(LINE) + "\n")
    facts = {"id": LINE["id"], "tier": "tiny", "difficulty": 0.25, "mistakes": ["boundary"]}
    (folder / "report.json").write_text(json.dumps({"tasks": [facts]}))
    return folder


def test_list_says_what_a_set_holds(tmp_path: Path) -> None:
    ran = CliRunner().invoke(tasks_app, ["list", str(write_set(tmp_path)), "--json"])
    told = json.loads(ran.stdout)
    assert told["num_tasks"] == 1
    assert told["tasks"][0] == {
        "id": "pack-1-0000-tiny", "tree": "", "package": "host", "parser": "report", "tests": [1, 0],
            "tier": "tiny", "difficulty": 0.25, "mistakes": ["boundary"]
    }  # fmt: skip
    shown = CliRunner().invoke(tasks_app, ["list", str(tmp_path)]).stdout
    assert "pack-1-0000-tiny  tiny  0.25        boundary\n" in shown


def test_check_refuses_a_task_without_an_oracle_with_the_reason(tmp_path: Path) -> None:
    ran = CliRunner().invoke(tasks_app, ["check", str(write_set(tmp_path)), "--json"])
    told = json.loads(ran.stdout)
    assert ran.exit_code == 1 and (told["num_tasks"], told["num_passed"]) == (1, 0)
    assert "no oracle" in told["refused"]["pack-1-0000-tiny"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_ids_from_outside_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    bad = {**LINE, "id": "a\x1b[31m\u202e\nb"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(bad) + "\n")
    for arguments in (["list"], ["check"], ["check", "--json"], ["list", "--json"]):
        ran = CliRunner().invoke(tasks_app, [arguments[0], str(tmp_path), *arguments[1:]])
        assert "\x1b[31m" not in ran.output and "\u202e" not in ran.output
        assert "1b[31m" in ran.output


def test_make_names_what_is_no_package(tmp_path: Path) -> None:
    ran = CliRunner().invoke(tasks_app, ["make", "nothing", "--out", str(tmp_path / "set")])
    assert isinstance(ran.exception, ConfigError) and "NAME==VERSION" in str(ran.exception)


def test_commits_names_what_is_wrong_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('["text"]')
    (tmp_path / "broken.json").write_text("{")
    wrong = {
        "is no git clone": [],
        'there is no format "harbour" (did you mean "harbor"?)': ["--format", "harbour"],
        "list.json are no JSON object of texts by commit or number": ["--issues", str(tmp_path / "list.json")],
        "broken.json cannot be read": ["--issues", str(tmp_path / "broken.json")],
        "choose a folder for what is downloaded": ["--downloads", str(tmp_path / "list.json")],
    }
    for why, options in wrong.items():
        ran = CliRunner().invoke(tasks_app, ["commits", str(tmp_path), "--out", str(tmp_path / "set"), *options])
        assert isinstance(ran.exception, ConfigError) and why in str(ran.exception), ran.exception
    assert not (tmp_path / "set").exists()

"""docs/settings.md is what scripts/settings_page.py makes of the docstrings: every setting, each in its part."""

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.config import apply_overrides
from slipstream.settings import EvalConfig, TasksConfig, TrainConfig
from slipstream.settings.reference import listed_settings, settings_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text()
TRAIN_ALONE = "\n## For training alone\n"


def rewrite(page: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / "settings_page.py"), str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rewriting_the_rows_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "settings.md"
    page.write_text(PAGE)
    ended = rewrite(page)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert page.read_text() == PAGE, "run scripts/settings_page.py"


def test_a_row_is_made_from_its_key_and_prose_stays(tmp_path: Path) -> None:
    page = tmp_path / "settings.md"
    (steps,) = (line for line in PAGE.splitlines() if line.startswith("| `steps` |"))
    page.write_text(PAGE.replace(steps, "| steps |") + "\nA last line.\n")
    assert rewrite(page).returncode == 0
    assert page.read_text() == PAGE + "\nA last line.\n"


def test_a_page_with_a_missing_a_repeated_or_an_unknown_key_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "settings.md"
    wrong = PAGE.replace("| `steps` |", "| `step` |").replace("| `groups` |", "| `samples` |")
    page.write_text(wrong)
    ended = rewrite(page)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "steps has 0 rows: give it one",
        "groups has 0 rows: give it one",
        "samples has 2 rows: give it one",
        'step is not a setting (did you mean "steps"?): remove its row',
    ]
    assert page.read_text() == wrong


def test_what_an_evaluation_takes_is_in_the_part_for_both() -> None:
    both, alone = PAGE.split(TRAIN_ALONE)
    for setting in listed_settings():
        part = both if "eval" in setting.defaults else alone
        assert f"\n| `{setting.key}` |" in part, setting.key


@pytest.mark.parametrize("kind", [EvalConfig, TrainConfig])
def test_every_setting_can_be_set_by_its_key(kind: type[EvalConfig] | type[TrainConfig]) -> None:
    config = kind(name="x", tasks=TasksConfig())
    for setting in settings_of(config):
        changed = apply_overrides(config, [f"{setting.key}={setting.typed()}"])
        assert {each.key: each.default for each in settings_of(changed)}[setting.key] == setting.default

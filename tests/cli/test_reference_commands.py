"""`slipstream recipes` and `slipstream settings`."""

import json
from pathlib import Path

from cli_stage import refused, slipstream

from slipstream.config import apply_overrides
from slipstream.recipes import RECIPES, find_recipe
from slipstream.settings.reference import settings_of


def test_every_recipe_is_listed_with_its_command_and_a_line(tmp_path: Path) -> None:
    lines = slipstream("recipes", cwd=tmp_path).out.splitlines()
    assert [line.split()[0] for line in lines] == ["recipe", *RECIPES]
    shown = [" ".join(line.split()) for line in lines]
    assert any(line.startswith("quickstart train The quickstart: a model that is made here") for line in shown)
    listed = json.loads(slipstream("recipes", "--json", cwd=tmp_path).out)
    evaluated = {row["name"] for row in listed if row["command"] == "eval"}
    assert evaluated >= {"demo", "react", "swe", "swe-levels"} and "quickstart" not in evaluated


def test_a_recipes_settings_are_printed_as_one_would_type_them(tmp_path: Path) -> None:
    head, *lines = slipstream("recipes", "quickstart", cwd=tmp_path).out.splitlines()
    assert head.startswith("slipstream train quickstart, where")
    assert "* steps=24" in lines and "  staleness=0" in lines
    quickstart = find_recipe("quickstart")
    typed = [line[2:] for line in lines if not line.startswith("  solve_rate.")]
    assert settings_of(apply_overrides(quickstart, typed)) == settings_of(quickstart)
    told = slipstream("recipes", "quickstart", "--json", cwd=tmp_path).json
    assert told["settings"]["tasks.args"] == {"seed": 1, "split": "train"}


def test_settings_are_found_by_how_they_begin(tmp_path: Path) -> None:
    ended = slipstream("settings", "dispatch.retries", cwd=tmp_path)
    assert ended.out.splitlines() == [
        "dispatch.retries.attempts  (whole number; default 3)",
        "    Attempts at a job, the first included.",
        "dispatch.retries.grades  (whole number; default 3)",
        "    Gradings of one attempt, the first included; the agent is not run again for them.",
    ]
    assert slipstream("settings", "steps", cwd=tmp_path).out.startswith(
        "steps  (whole number; default 100; train only)"
    )
    (row,) = json.loads(slipstream("settings", "samples", "--json", cwd=tmp_path).out)
    assert (row["default"], row["commands"]) == ("1; train: 8", "eval train")
    assert '(did you mean "model.temperature"?)' in refused("settings", "temprature", cwd=tmp_path)

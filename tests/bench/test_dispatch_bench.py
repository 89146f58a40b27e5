"""`slipstream bench dispatch`, on a small workload."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.bench.dispatch import settings_to_try
from slipstream.bench.dispatch_families import sweep
from slipstream.cli.bench import bench_app
from slipstream.errors import ConfigError
from slipstream.simulate.families import make_family
from slipstream.simulate.regimes import make_workload
from slipstream.simulate.workload import workload_json

POLICIES = ["batch", "bounded", "pipeline", "bounded_tuned", "pipeline_tuned", "adaptive"]


def test_every_policy_on_a_workload_from_a_file(tmp_path: Path) -> None:
    whole = make_workload("kv", 1)
    machine = replace(whole.machine, agents=2, slots=2, sandbox_cap=4)
    path, picture = tmp_path / "few.json", tmp_path / "few.svg"
    path.write_text(workload_json(replace(whole, name="few", machine=machine, jobs=whole.jobs[:6])))
    done = CliRunner().invoke(bench_app, ["dispatch", "--workload", str(path), "--plot", str(picture), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["sandbox_cap"] == 4
    assert list(found["policies"]) == POLICIES
    for name, figures in found["policies"].items():
        assert figures["with_verdict"] == 6
        assert figures["peak_live"] <= (6 if name == "batch" else 4)
        if name != "batch":  # which has no cap, and the bound has
            assert figures["makespan_s"] >= found["lower_bound_s"]
    best = min(found["policies"][name]["makespan_s"] for name in POLICIES[1:-1])
    assert found["ratios"]["adaptive_over_best"] == round(found["policies"]["adaptive"]["makespan_s"] / best, 3)
    text = "".join(ElementTree.parse(picture).getroot().itertext())
    assert all(name in text for name in POLICIES)
    assert "relative to the lower bound of its regime" in text and "different scales" in text
    alone = CliRunner().invoke(bench_app, ["dispatch", "--workload", str(path), "--only", "adaptive", "--json"])
    one = json.loads(alone.stdout)
    assert one["policies"] == {"adaptive": found["policies"]["adaptive"]} and "ratios" not in one
    wrong = CliRunner().invoke(bench_app, ["dispatch", "--workload", str(path), "--only", "adaptiv"])
    assert isinstance(wrong.exception, ConfigError) and "adaptive" in str(wrong.exception)
    told = CliRunner().invoke(bench_app, ["dispatch", "--workload", str(path)]).stdout
    assert "\npolicies.adaptive.makespan_s  " in told and " at adaptive" not in told


def test_a_family_has_the_figures_of_a_regime_and_the_best_of_a_sweep() -> None:
    done = CliRunner().invoke(bench_app, ["dispatch", "--families", "tight_cap", "--seed", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["regime"], list(found["policies"])) == ("tight_cap", POLICIES)
    makespans = {name: figures["makespan_s"] for name, figures in found["policies"].items()}
    assert makespans["bounded_tuned"] <= makespans["bounded"] and makespans["pipeline_tuned"] <= makespans["pipeline"]
    for name, figures in found["policies"].items():
        least = found["uncapped_bound_s" if name == "batch" else "lower_bound_s"]
        assert figures["over_bound"] == pytest.approx(figures["makespan_s"] / least, abs=0.001)
        assert figures["over_bound"] >= 1.0


def test_a_sweep_tries_all_up_to_the_cap() -> None:
    one = make_family("wide_cap", 1)
    cap, agents = one.machine.sandbox_cap, one.machine.agents
    assert cap > 7 * agents
    for choices in (sweep(one), settings_to_try(one)):
        slots = {choice.settings[0] for choice in choices if choice.kind == "bounded"}
        assert max(slots) == cap and any(3 * agents < number < cap for number in slots)
        assert any(choice.settings[0] == cap > choice.settings[1] for choice in choices if choice.kind == "pipeline")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--families", "long_tool"], "long_tools"),
        (["--families", "all", "--save", "x.json"], "name one"),
        (["--families", "slots", "--plot", "x.svg"], "--plot"),
    ],
)
def test_families_that_cannot_be_run_are_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(bench_app, ["dispatch", *arguments])
    assert isinstance(done.exception, ConfigError) and said in str(done.exception)


def test_a_saved_workload_is_the_regimes_own(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    done = CliRunner().invoke(bench_app, ["dispatch", "--regime", "kv", "--seed", "3", "--save", str(path)])
    assert done.exit_code == 0, done.output
    assert path.read_text() == workload_json(make_workload("kv", 3))

"""`slipstream bench dispatch`, on a small workload."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from slipstream.cli.bench import bench_app
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
    told = CliRunner().invoke(bench_app, ["dispatch", "--workload", str(path)]).stdout
    assert "\npolicies.adaptive.makespan_s  " in told and " at adaptive" not in told


def test_a_saved_workload_is_the_regimes_own(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    done = CliRunner().invoke(bench_app, ["dispatch", "--regime", "kv", "--seed", "3", "--save", str(path)])
    assert done.exit_code == 0, done.output
    assert path.read_text() == workload_json(make_workload("kv", 3))

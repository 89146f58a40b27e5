import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from sim_stage import MACHINE, job, workload, workloads

from slipstream.errors import ConfigError
from slipstream.simulate.regimes import make_workload
from slipstream.simulate.workload import SimTurn, Workload, checked, read_workload, workload_json


def test_contexts_are_what_was_said_and_observed_before() -> None:
    turns = (SimTurn(sampled=10, observed=5), SimTurn(sampled=20), SimTurn(sampled=1, observed=9))
    assert job(prompt=100, turns=turns).contexts == (100, 115, 135)


def test_a_regime_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    found = make_workload("faults", 3)
    path = tmp_path / "workload.json"
    path.write_text(workload_json(found))
    assert read_workload(path) == found


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(workloads(with_faults=True))
def test_any_workload_is_the_same_after_a_round_trip(tmp_path_factory: pytest.TempPathFactory, drawn: Workload) -> None:
    path = tmp_path_factory.mktemp("workloads") / "any.json"
    path.write_text(workload_json(drawn))
    assert read_workload(path) == drawn


def wrong(tmp_path: Path, change: Any) -> str:
    """What reading says of a workload in which something was changed."""
    data = json.loads(workload_json(workload(job(), job(sample=1))))
    change(data)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        read_workload(path)
    return str(caught.value)


def test_an_error_names_the_file_and_the_place(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["jobs"][1]["turns"][0]["sampled"] = "many"

    message = wrong(tmp_path, change)
    assert "wrong.json" in message
    assert "jobs.1.turns.0.sampled" in message


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        del data["machine"]["engine"]["kv_tokens"]

    assert "machine.engine.kv_tokens" in wrong(tmp_path, change)


def test_an_unknown_kind_of_fault_is_named(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["jobs"][0]["faults"] = {"1 init": "explode"}

    assert "jobs.0.faults.1 init" in wrong(tmp_path, change)


def test_an_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["jobs"][0]["turns"][0]["tool_seconds"] = data["jobs"][0]["turns"][0].pop("tool_s")

    message = wrong(tmp_path, change)
    assert 'jobs, 0, turns, 0: there is no "tool_seconds"' in message
    assert "tool_s" in message


def test_a_file_that_is_not_there_or_no_json_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json: No such file"):
        read_workload(tmp_path / "nothing.json")
    (tmp_path / "half.json").write_text('{"name": ')
    with pytest.raises(ConfigError, match=r"half\.json.*JSON"):
        read_workload(tmp_path / "half.json")


def test_a_workload_that_could_never_end_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="t/1 grows to 1001 tokens, but the cache holds only 1000"):
        workload(job(), job(sample=1, prompt=991))


@pytest.mark.parametrize("what", ["sandbox_cap", "slots", "agents", "cores"])
def test_a_machine_of_nothing_is_refused(what: str) -> None:
    changes: dict[str, Any] = {what: 0}
    with pytest.raises(ConfigError, match=what):
        workload(job(), machine=replace(MACHINE, **changes))


@pytest.mark.parametrize(
    ("what", "value"), [("step_s", 0.0), ("prefill_tokens_s", 0.0), ("row_s", -1.0), ("prefill_share", 1.0)]
)
def test_an_engine_that_could_not_be_is_refused(what: str, value: float) -> None:
    changes: dict[str, Any] = {what: value}
    with pytest.raises(ConfigError, match=what):
        workload(job(), machine=replace(MACHINE, engine=replace(MACHINE.engine, **changes)))


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"t/3 has a negative amount: -1"):
        workload(job(), job(sample=3, turns=(SimTurn(sampled=5, observed=-1),)))


def test_jobs_without_turns_and_workloads_without_jobs_are_refused() -> None:
    with pytest.raises(ConfigError, match="t/0 has no turns"):
        workload(job(turns=()))
    with pytest.raises(ConfigError, match="has no jobs"):
        checked(Workload(name="none", machine=MACHINE, jobs=()))

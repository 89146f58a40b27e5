"""`slipstream simulate RUN`, as the command line calls it."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli.commands import app
from slipstream.config import to_json
from slipstream.dispatch.base import DispatchLimits
from slipstream.dispatch.policies import Pipeline
from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.record.hardware import CpuSample, HardwareSample
from slipstream.seams import RolloutDone
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, TasksConfig
from slipstream.simulate.machine.engine import EngineSpec
from slipstream.simulate.recorded_run.predict import CHANGEABLE, OWN_KEYS
from slipstream.simulate.run import open_gate, trace
from slipstream.simulate.workload import Chore, SimJob, SimMachine, SimTurn, Workload

SETTINGS = EvalConfig(
    name="demo",
    tasks=TasksConfig(source="x.jsonl"),
    model=ModelConfig(kind="tokens"),
    dispatch=DispatchConfig(policy="pipeline", slots=6),
    samples=3,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 18 rollouts, simulated, and with one that has none."""
    folder, chance = tmp_path_factory.mktemp("runs"), random.Random(0)
    jobs = tuple(
        SimJob(
            task=f"t{task}",
            sample=sample,
            phase="eval",
            prompt=100 + task,
            init=Chore(wait_s=0.2),
            turns=tuple(SimTurn(sampled=chance.randint(5, 60), tool_s=chance.random()) for _ in range(3)),
            grade=Chore(wait_s=0.5),
        )
        for task in range(6)
        for sample in range(3)
    )
    engine = EngineSpec(kv_tokens=100_000, step_s=0.02, row_s=0.004, prefill_tokens_s=5_000.0)
    machine = SimMachine(engine=engine, cores=4.0, agents=1, sandbox_cap=1, slots=1)
    policy = open_gate(Pipeline(init=6, run=6, grade=6))
    made = trace(Workload(name="demo", machine=machine, jobs=jobs), policy, DispatchLimits(sandboxes=64))

    async def write() -> None:
        config = {"settings": to_json(SETTINGS)}
        async with RunStore.create(folder / "demo", config=config, clock_offset_s=0.0) as store:
            for rollout in made.rollouts:
                store.append(RolloutDone(rollout=rollout))
            cpu = CpuSample(percent=50.0, cores=4.0, own_cores=0.1)
            store.add_sample(HardwareSample(at_s=1.0, seconds=1.0, cpu=cpu))
        async with RunStore.create(folder / "empty", config=config):
            pass

    asyncio.run(write())
    return folder


def simulated(runs: Path, *arguments: str) -> str:
    ended = CliRunner().invoke(app, ["simulate", *arguments, "--runs", str(runs)])
    if ended.exception is not None:
        raise ended.exception
    return ended.stdout


def test_it_prints_what_was_what_the_replay_says_and_what_would_be(runs: Path) -> None:
    told = simulated(runs, "demo", "--policy", "bounded", "dispatch.slots=2")
    lines = {line[:19].strip(): line[19:].strip() for line in told.splitlines()}
    assert lines["changed"] == "dispatch.policy=bounded, dispatch.slots=2"
    recorded_s, replayed_s, predicted_s = (float(value) for value in lines["makespan, s"].split())
    assert replayed_s == pytest.approx(recorded_s, rel=0.05) and predicted_s > 1.3 * recorded_s
    assert lines["rollouts"].split() == ["18", "18", "18"]
    assert lines["peak sandboxes"].split()[-1] == "2"
    assert "The bottleneck is dispatch.slots" in lines["so"]


def test_it_prints_json(runs: Path) -> None:
    found = json.loads(simulated(runs, "demo", "samples=6", "--json"))
    assert found["predicted"]["num_rollouts"] == 36
    assert found["changes"] == ["samples=6"]
    assert abs(found["makespan_error"]) < 0.05
    assert found["told"].startswith("With samples=6 the run would take ")
    unchanged = json.loads(simulated(runs, "demo", "--json"))
    assert unchanged["predicted"] is None and unchanged["gains"]


def test_its_help_names_every_key_that_can_be_changed() -> None:
    told = " ".join(CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "200"}).stdout.split())
    for key in (*OWN_KEYS, *CHANGEABLE):
        assert key in told


def test_a_run_that_cannot_be_replayed_is_refused_in_a_sentence(runs: Path) -> None:
    with pytest.raises(ConfigError, match="the run empty has no rollouts"):
        simulated(runs, "empty")
    with pytest.raises(ConfigError, match="there is no run"):
        simulated(runs, "other")
    with pytest.raises(ConfigError, match=r"dispatch\.policy=fast"):
        simulated(runs, "demo", "--policy", "fast")
    with pytest.raises(ConfigError, match="for anything else, run it"):
        simulated(runs, "demo", "model.temperature=0")

"""What is exported of a training run is what its learner got, with whatever estimator it learnt."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from train_stage import SETTINGS, Run, make_run

from slipstream.batch.advantages import ESTIMATORS
from slipstream.config import to_json
from slipstream.export import ExportFormat, export_run, read_jsonl
from slipstream.placement.simulated import Plan
from slipstream.record import RunStore
from slipstream.seams import BatchTaken, StepPlanned
from slipstream.settings import TasksConfig, TrainConfig
from slipstream.simulate.clock import run_virtual
from slipstream.types import Job


def reward_of(job: Job, number: int) -> Plan:
    """Rewards whose means differ between groups, between steps and from the whole batch's."""
    key = job.key
    return Plan(reward=(7 * key.sample + 3 * key.step + int(key.task_id[1:])) % 5 / 4)


def trained(folder: Path, config: TrainConfig) -> Run:
    settings = replace(
        SETTINGS,
        samples=4,
        seed=config.seed,
        estimator=ESTIMATORS[config.advantages],
        staleness=config.staleness,
        oversample=config.oversample,
        carry=config.carry,
        shuffle_rewards=config.shuffle_rewards,
        max_sample_tokens=config.max_sample_tokens,
    )

    async def main() -> Run:
        run = make_run(folder, settings=settings, plan=reward_of, held_out=())
        await run.trainer.run()
        await run.journal.flush()
        return run

    run = run_virtual(main())
    asyncio.run(written(folder, config, run))
    return run


async def written(folder: Path, config: TrainConfig, run: Run) -> None:
    """A run that was simulated, in a store: its threads know no virtual time."""
    async with RunStore.create(folder, config={"settings": to_json(config)}) as store:
        for event in run.journal.events():
            store.append(event)
        for step in run.journal.steps():
            assert step.taken is not None
            store.append(StepPlanned(step=step.step, jobs=step.planned))
            store.append(BatchTaken(step=step.step, jobs=step.taken))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"shuffle_rewards": True, "seed": 11},
        {"oversample": 1},
        {"oversample": 2, "carry": True, "staleness": 1, "shuffle_rewards": True},
        {"max_sample_tokens": 3},
    ],
    ids=lambda rules: ",".join(rules) or "plain",
)
def test_exported_rows_are_those_that_the_learner_got(tmp_path: Path, estimator: Any, rules: dict[str, Any]) -> None:
    config = TrainConfig(name="x", tasks=TasksConfig(), advantages=estimator, **rules)
    run = trained(tmp_path / "run", config)
    exported = export_run(RunStore.read(tmp_path / "run"), ExportFormat.JSONL)
    found = {(row.key, row.part): row for row in read_jsonl(exported.path) if row.in_loss}
    learnt = [row for batch in run.learner.batches for row in batch.rows if row.in_loss]
    assert {row.sample.key: row.advantage for row in learnt} == {key: row.advantage for (key, _), row in found.items()}
    assert len(found) == len(learnt)
    assert bool(learnt) == (config.max_sample_tokens is None)  # the one turn of a rollout does not fit 3 tokens
    if learnt:
        assert len({row.advantage for row in learnt}) > 2


def test_another_estimator_can_be_asked_for(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", TrainConfig(name="x", tasks=TasksConfig(), advantages="grpo"))
    exported = export_run(RunStore.read(tmp_path / "run"), ExportFormat.JSONL, advantages="reinforce")
    asked = {row.key: row.advantage for row in read_jsonl(exported.path)}
    assert asked != {row.sample.key: row.advantage for batch in run.learner.batches for row in batch.rows}

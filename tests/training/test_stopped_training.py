"""A training run that is told to stop ends between two steps with a checkpoint, and continues here or elsewhere."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import SETTINGS, Run, make_run

from slipstream.feed import SolveRateFilter
from slipstream.placement.simulated import Part, Plan
from slipstream.record import RunStore
from slipstream.record.copy import copy_steps
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.loop import LoopSettings
from slipstream.types import Job

NOW = Part(seconds=0.0)
LONG = replace(SETTINGS, eval_every=0, staleness=1, steps=6)


def plan(job: Job, number: int) -> Plan:
    """Some tasks teach nothing, so the feed's filter has something to remember."""
    same = job.key.task_id in ("t1", "t4")
    return Plan(init=NOW, run=NOW, grade=NOW, reward=float(not same and job.key.sample % 2))


def trained(folder: Path, *, num_steps: int | None = None, settings: LoopSettings = LONG) -> Run:
    """Until told to stop after so many steps of this session."""
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return num_steps is not None and asked > num_steps

    async def main() -> Run:
        store = RunStore.open(folder) if RunStore.exists(folder) else RunStore.create(folder, config={"seed": 7})
        async with store:
            run = make_run(
                folder,
                settings=settings,
                plan=plan,
                journal=store,
                held_out=(),
                groups=2,
                solve_rate=SolveRateFilter(rest_epochs=1),
                should_stop=should_stop,
            )
            await Checkpoints.of_run(folder).load_newest(run.learner)
            await run.trainer.run()
        return run

    return asyncio.run(main())


def plans(folder: Path) -> list[list[str]]:
    return [[str(key) for key in record.planned] for record in RunStore.read(folder).steps()]


def test_it_ends_with_a_checkpoint_and_nothing_is_on_record_of_what_was_under_way(tmp_path: Path) -> None:
    run = trained(tmp_path, num_steps=2, settings=replace(LONG, checkpoint_every=5))
    assert run.learner.version == 2 and Checkpoints.of_run(tmp_path).versions() == [2]
    records = RunStore.read(tmp_path).steps()
    assert [record.version for record in records[:2]] == [1, 2]
    assert all(record.taken is None for record in records[2:])


def test_one_that_must_not_begin_makes_no_step(tmp_path: Path) -> None:
    assert trained(tmp_path, num_steps=0).learner.version == 0
    assert Checkpoints.of_run(tmp_path).versions() == [0]


@pytest.mark.parametrize("moves", [False, True])
def test_stopped_again_and_again_it_trains_on_the_plan_of_an_unbroken_run(tmp_path: Path, moves: bool) -> None:
    unbroken = trained(tmp_path / "unbroken")
    batches = unbroken.trained_keys()
    seen: list[list[str]] = []
    for session, num_steps in enumerate((2, 1, None)):
        folder = tmp_path / str(session if moves else 0)
        if moves and session:
            before = tmp_path / str(session - 1)
            folder.mkdir()
            version = Checkpoints.of_run(before).versions()[-1]
            copy_steps(RunStore.read(before), folder, version=version)
            shutil.copytree(before / "checkpoints", folder / "checkpoints")
        seen += trained(folder, num_steps=num_steps).trained_keys()
    assert seen == batches and len(batches) == 6
    assert plans(folder) == plans(tmp_path / "unbroken")
    assert len({tuple(each) for each in plans(folder)}) > 1


def test_a_copy_has_rewards_and_no_turns(tmp_path: Path) -> None:
    trained(tmp_path / "run", num_steps=3)
    (tmp_path / "copy").mkdir()
    copy_steps(source := RunStore.read(tmp_path / "run"), tmp_path / "copy", version=2)
    copied = RunStore.read(tmp_path / "copy")
    assert copied.config() == source.config()
    assert [step.version for step in copied.steps()[:3]] == [1, 2, None], "the third is done again"
    assert [step.planned for step in copied.steps()] == [step.planned for step in source.steps()]
    rewards = {rollout.job.key: rollout.verdict for rollout in source.rollouts() if rollout.job.key.step < 2}
    found = list(copied.rollouts())
    assert {rollout.job.key for rollout in found} == set(rewards)
    assert all(one.verdict and one.verdict.reward == rewards[one.job.key].reward for one in found)  # type: ignore[union-attr]
    assert all(not rollout.turns and not rollout.spans for rollout in found)

"""Over-sampling, carrying and replacement in the training loop, on virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import SETTINGS, Run, SlowLearner, make_run

from slipstream.batch.advantages import ESTIMATORS
from slipstream.export.samples import advantages_of
from slipstream.feed import SolveRateFilter
from slipstream.placement.simulated import Part, Plan
from slipstream.record import MemoryJournal, RunStore
from slipstream.simulate.clock import run_virtual
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.loop import LoopSettings
from slipstream.types import EndReason, Job, JobKey, Rollout

OVER = replace(SETTINGS, oversample=2, eval_every=0)
CARRY = replace(OVER, carry=True, staleness=1)
REPLACE = replace(SETTINGS, replace_flat=2, eval_every=0)


def long_tail(job: Job, number: int) -> Plan:
    """The last two samples of a group are long; rewards differ within every group."""
    seconds = (1.0, 2.0, 30.0, 50.0)[job.key.sample] if job.key.phase == "train" else 1.0
    return Plan(reward=job.key.sample % 2, run=Part(seconds=seconds))


def flat_at_first(job: Job, number: int) -> Plan:
    """Groups of tasks with an even number have no signal."""
    is_flat = job.key.phase == "train" and int(job.key.task_id[1:]) % 2 == 0
    return Plan(reward=1.0 if is_flat else job.key.sample % 2, run=Part(seconds=1 + job.key.sample))


def all_at_once(job: Job, number: int) -> Plan:
    """More have a verdict than are learnt from, and their rewards are not those of the rest."""
    return Plan(reward=job.key.sample)


def ran(folder: Path, settings: LoopSettings, **options: object) -> tuple[Run, float]:
    async def main() -> tuple[Run, float]:
        run = make_run(folder, settings=settings, **options)  # type: ignore[arg-type]
        await run.trainer.run()
        return run, asyncio.get_running_loop().time()

    return run_virtual(main())


def rollouts(run: Run) -> dict[JobKey, Rollout]:
    return {rollout.job.key: rollout for rollout in run.journal.rollouts(phase="train")}


def test_over_sampling_learns_from_the_first_and_records_the_rest_as_cancelled(tmp_path: Path) -> None:
    run, seconds = ran(tmp_path, OVER, plan=long_tail)
    assert seconds < 4 * 10
    found = rollouts(run)
    for record in run.journal.steps():
        assert len(record.planned) == 3 * 4
        assert record.taken is not None
        assert {key.sample for key in record.taken} == {0, 1}
        assert {found[key].ending.reason for key in set(record.planned) - set(record.taken)} == {EndReason.CANCELLED}
        metrics = record.metrics or {}
        assert (metrics["rollouts/num"], metrics["left_out/cancelled"], metrics["samples/num"]) == (12, 6, 6)
        assert metrics["left_out/kept_seconds"] < metrics["left_out/cancelled_seconds"]


def test_carrying_cancels_nothing_and_learns_from_everything_once(tmp_path: Path) -> None:
    run, seconds = ran(tmp_path, CARRY, plan=long_tail)
    found = rollouts(run)
    assert {rollout.ending.reason for rollout in found.values()} == {EndReason.FINISHED}
    taken = Counter(key for record in run.journal.steps() for key in record.taken or ())
    assert taken == Counter(key for record in run.journal.steps() for key in record.planned)
    steps = [Counter(key.step for key in record.taken or ()) for record in run.journal.steps()]
    # The second waits for what the first left under way, and takes its own that came meanwhile.
    assert steps == [{0: 6}, {0: 6, 1: 9}, {1: 3, 2: 6}, {2: 6, 3: 12}]
    assert max(run.ages()) == 1
    plain, plain_seconds = ran(tmp_path / "plain", replace(SETTINGS, samples=4, eval_every=0), plan=long_tail)
    assert seconds < 0.6 * plain_seconds  # the tail of a step overlaps the next
    assert plain.learner.version == run.learner.version == 4


def test_what_was_carried_over_is_compared_with_all_of_its_group(tmp_path: Path) -> None:
    run, _ = ran(tmp_path, CARRY, plan=long_tail)
    carried = [row for row in run.learner.batches[1].rows if row.sample.key.step == 0]
    assert len(carried) == 6
    # Rewards 0, 1, 0, 1: each less the mean of the three others.
    assert {row.sample.key.sample: round(row.advantage, 6) for row in carried} == {2: -0.666667, 3: 0.666667}
    first = {row.sample.key.sample: row.advantage for row in run.learner.batches[0].rows}
    assert first == {0: -1.0, 1: 1.0}


def test_groups_without_signal_are_replaced_up_to_the_bound_and_counted(tmp_path: Path) -> None:
    run, _ = ran(tmp_path, REPLACE, plan=flat_at_first)
    found = rollouts(run)
    for record in run.journal.steps():
        tasks = list(dict.fromkeys(key.task_id for key in record.planned))
        num_flat = sum(int(task[1:]) % 2 == 0 for task in tasks)
        num_replaced = len(tasks) - 3
        assert num_replaced == min(2, num_flat)
        metrics = record.metrics or {}
        assert (metrics["groups/num"], metrics["groups/replaced"]) == (3, num_replaced)
        assert metrics["rollouts/num"] == 2 * len(tasks)
        assert len(record.taken or ()) == 6
        assert set(record.planned) <= set(found)


def test_with_no_other_task_left_a_step_goes_on_as_it_is(tmp_path: Path) -> None:
    run, _ = ran(tmp_path, REPLACE, plan=lambda job, number: Plan(reward=1.0), groups=6)
    assert [len(record.planned) for record in run.journal.steps()] == [12] * 4
    assert [len(record.taken or ()) for record in run.journal.steps()] == [12] * 4


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("oversample", OVER),
        ("oversample", replace(OVER, staleness=1)),
        ("carry", CARRY),
        ("carry", replace(CARRY, staleness=2, checkpoint_every=3)),
        ("replace", REPLACE),
        ("replace", replace(REPLACE, oversample=2, checkpoint_every=2)),
    ],
)
@pytest.mark.parametrize("dies_after_s", [0.5, 3.5, 5.25, 8.5, 33.0, 41.5, 60.0])
def test_a_killed_run_goes_on_and_learns_from_everything_once(
    tmp_path: Path, name: str, settings: LoopSettings, dies_after_s: float
) -> None:
    plan = flat_at_first if name == "replace" and not settings.oversample else long_tail
    journal = MemoryJournal()

    async def killed() -> None:
        run = make_run(tmp_path, settings=settings, learner=SlowLearner(seconds=1), journal=journal, plan=plan)
        task = asyncio.create_task(run.trainer.run())
        await asyncio.sleep(dies_after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(killed())
    before = {record.step: record for record in journal.steps()}

    async def resumed() -> Run:
        run = make_run(
            tmp_path, settings=settings, learner=SlowLearner(seconds=1), journal=journal.reopened(), plan=plan
        )
        await Checkpoints.of_run(tmp_path).load_newest(run.learner)
        await run.trainer.run()
        return run

    run = run_virtual(resumed())
    records = run.journal.steps()
    assert [record.version for record in records] == [1, 2, 3, 4]
    learnt = [key for record in records for key in record.taken or ()]
    assert len(learnt) == len(set(learnt))
    for record in records:
        if record.step in before:
            assert record.planned[: len(before[record.step].planned)] == before[record.step].planned
            assert before[record.step].taken in (None, record.taken)
    planned = {key for record in records for key in record.planned}
    assert planned == set(rollouts(run))
    if settings.carry:
        assert set(learnt) == planned
    # The learner saw, from its checkpoint on, the batches that are on record.
    seen = [{key.partition("#")[0] for key in step} for step in run.trained_keys()]
    assert seen == [{str(key) for key in record.taken or ()} for record in records[len(records) - len(seen) :]]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        (SETTINGS, long_tail),
        (OVER, all_at_once),
        (CARRY, long_tail),
        (REPLACE, flat_at_first),
        (replace(REPLACE, oversample=2), flat_at_first),
    ],
)
def test_an_export_has_the_advantages_that_the_learner_got(
    tmp_path: Path, settings: LoopSettings, plan: Callable[[Job, int], Plan], estimator: str
) -> None:
    run, _ = ran(tmp_path, replace(settings, estimator=ESTIMATORS[estimator]), plan=plan)
    learnt = {row.sample.key: row.advantage for batch in run.learner.batches for row in batch.rows}
    found = advantages_of(run.journal.rollouts(False), ESTIMATORS[estimator], steps=run.journal.steps())
    assert {key: advantage for key, advantage in found.items() if advantage is not None} == learnt
    assert found.keys() == {rollout.job.key for rollout in run.journal.rollouts(False)}


def test_a_replaced_group_ends_the_same_in_a_run_that_was_killed(tmp_path: Path) -> None:
    """What deterministic=true relies on: the same plans and batches, however the run was interrupted."""
    unbroken, _ = ran(tmp_path / "unbroken", REPLACE, plan=flat_at_first, learner=SlowLearner(seconds=1))
    for dies_after_s in (1.5, 4.0, 5.5, 7.5, 12.0):
        journal = MemoryJournal()
        folder = tmp_path / str(dies_after_s)

        async def killed(folder: Path = folder, journal: MemoryJournal = journal, at_s: float = dies_after_s) -> None:
            run = make_run(
                folder, settings=REPLACE, learner=SlowLearner(seconds=1), journal=journal, plan=flat_at_first
            )
            task = asyncio.create_task(run.trainer.run())
            await asyncio.sleep(at_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def resumed(folder: Path = folder, journal: MemoryJournal = journal) -> Run:
            run = make_run(
                folder, settings=REPLACE, learner=SlowLearner(seconds=1), journal=journal.reopened(), plan=flat_at_first
            )
            await Checkpoints.of_run(folder).load_newest(run.learner)
            await run.trainer.run()
            return run

        run_virtual(killed())
        run = run_virtual(resumed())
        assert [(record.planned, record.taken) for record in run.journal.steps()] == [
            (record.planned, record.taken) for record in unbroken.journal.steps()
        ]


def test_a_longer_plan_is_kept_by_the_run_store(tmp_path: Path) -> None:
    def at_once(job: Job, number: int) -> Plan:
        none = Part(seconds=0.0)
        return replace(flat_at_first(job, number), init=none, run=none, grade=none)

    async def main() -> tuple[int, ...]:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            run = make_run(tmp_path, settings=REPLACE, plan=at_once, journal=store)
            await run.trainer.run()
        return tuple(len(record.planned) for record in RunStore.read(tmp_path / "run").steps())

    on_disk = asyncio.run(main())
    in_memory, _ = ran(tmp_path / "memory", REPLACE, plan=flat_at_first)
    assert on_disk == tuple(len(record.planned) for record in in_memory.journal.steps())


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resumed_run_replaces_by_the_same_tasks_though_some_of_them_rest(tmp_path: Path, staleness: int) -> None:
    settings = replace(REPLACE, steps=8, staleness=staleness)

    def plan(job: Job, number: int) -> Plan:
        luck = random.Random(f"{job.key.task_id} {job.key.step}").random()
        return Plan(reward=float(luck > 0.3) if luck < 0.6 else job.key.sample % 2)

    async def session(folder: Path, learner: SlowLearner, journal: MemoryJournal) -> Run:
        run = make_run(
            folder, settings=settings, plan=plan, journal=journal, learner=learner, groups=2, held_out=(),
            solve_rate=SolveRateFilter(),
        )  # fmt: skip
        try:
            await run.trainer.run()
        except RuntimeError:
            assert learner.version < settings.steps
        return run

    def plans(folder: Path, journal: MemoryJournal, *, begins_at: int = 0, fail_at: int | None = None) -> list[object]:
        learner = SlowLearner(fail_at=fail_at)
        learner.version = begins_at
        run = run_virtual(session(folder, learner, journal))
        return [record.planned for record in run.journal.steps()]

    for seed in range(3):
        settings = replace(settings, seed=seed)
        unbroken = plans(tmp_path / f"{seed}", MemoryJournal())
        for died_at in range(2, 8):
            journal = MemoryJournal()
            plans(tmp_path / f"{seed}-{died_at}", journal, fail_at=died_at)
            assert plans(tmp_path / f"{seed}-{died_at}", journal.reopened(), begins_at=died_at) == unbroken

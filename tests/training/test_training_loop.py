"""The training loop, on virtual time, with a learner that counts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import HELD_OUT, SETTINGS, Run, SlowLearner, make_run

from slipstream.errors import ConfigError
from slipstream.placement.simulated import Fault, Part, Plan
from slipstream.record import MemoryJournal
from slipstream.seams import LearnerWork, Measured, StepDone
from slipstream.simulate.clock import run_virtual
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.loop import LoopSettings
from slipstream.types import Job


def ran(folder: Path, **options: object) -> Run:
    async def main() -> Run:
        run = make_run(folder, **options)  # type: ignore[arg-type]
        await run.trainer.run()
        return run

    return run_virtual(main())


def test_every_step_trains_on_its_own_jobs_in_the_order_of_their_keys(tmp_path: Path) -> None:
    run = ran(tmp_path)
    keys = run.trained_keys()
    assert [len(step) for step in keys] == [6, 6, 6, 6]
    for number, step in enumerate(keys):
        assert step == sorted(step)
        assert all(key.startswith(f"train/{number}/") for key in step)
    assert run.learner.version == 4
    records = run.journal.steps()
    assert [(record.step, record.version) for record in records] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert all(record.taken is not None and set(record.taken) == set(record.planned) for record in records)
    assert all(record.metrics and record.metrics["samples/num"] == 6 for record in records)


def test_when_the_learner_was_at_work_is_on_record(tmp_path: Path) -> None:
    run = ran(tmp_path, learner=SlowLearner(seconds=10), settings=replace(SETTINGS, checkpoint_every=2), held_out=())
    run_virtual(run.journal.flush())  # as whoever opened the journal does at the end
    work = run.journal.learner_work()
    updates = [each for each in work if each.work is LearnerWork.UPDATE]
    assert [(each.step, each.end_s - each.start_s) for each in updates] == [(0, 10), (1, 10), (2, 10), (3, 10)]
    assert [each.step for each in work if each.work is LearnerWork.CHECKPOINT] == [2, 4]
    ended_s = {rollout.job.key: max(span.end_s for span in rollout.spans) for rollout in run.journal.rollouts()}
    for record, update in zip(run.journal.steps(), updates, strict=True):
        assert record.taken is not None
        assert max(ended_s[key] for key in record.taken) <= update.start_s


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_jobs_after_an_update_are_expected_when_it_begins_and_once(tmp_path: Path, staleness: int) -> None:
    settings = replace(SETTINGS, staleness=staleness)
    run = ran(tmp_path, learner=SlowLearner(seconds=10), settings=settings, held_out=())
    run_virtual(run.journal.flush())
    expected = [(time_s, job.key) for time_s, job in run.placement.expected]
    assert sorted(key for _, key in expected) == sorted(key for record in run.journal.steps() for key in record.planned)
    began_s = {each.step: each.start_s for each in run.journal.learner_work() if each.work is LearnerWork.UPDATE}
    ahead = [(time_s, key) for time_s, key in expected if key.step > staleness]
    assert ahead and all(time_s == began_s[key.step - staleness - 1] for time_s, key in ahead)


def test_without_staleness_everything_is_on_policy(tmp_path: Path) -> None:
    assert ran(tmp_path).ages() == [0, 0, 0, 0]


@pytest.mark.parametrize("staleness", [1, 2])
def test_with_staleness_rollouts_go_on_while_the_learner_works_and_never_grow_older(
    tmp_path: Path, staleness: int
) -> None:
    settings = replace(SETTINGS, steps=8, staleness=staleness, eval_every=0)
    seconds = {}
    for name, bound in (("on policy", 0), ("stale", staleness)):

        async def main(bound: int = bound, name: str = name) -> Run:
            run = make_run(
                tmp_path / name, settings=replace(settings, staleness=bound), learner=SlowLearner(seconds=10)
            )
            await run.trainer.run()
            seconds[name] = asyncio.get_running_loop().time()
            return run

        run = run_virtual(main())
        assert max(run.ages()) == bound
    assert seconds["stale"] < seconds["on policy"]


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_lag_of_a_batch_is_counted_from_the_version_that_is_updated(tmp_path: Path, staleness: int) -> None:
    settings = replace(SETTINGS, staleness=staleness)
    run = ran(tmp_path, learner=SlowLearner(seconds=10), settings=settings, held_out=())
    found = [record.metrics for record in run.journal.steps()]
    assert [each and (each["versions/lag_mean"], each["versions/lag_max"]) for each in found] == [
        (float(age), float(age)) for age in run.ages()
    ]
    assert run.ages() == [0, *[staleness] * 3]
    assert [given.version for given in run.learner.batches] == [0, 1, 2, 3]


def test_the_held_out_tasks_are_evaluated_at_the_beginning_the_end_and_between(tmp_path: Path) -> None:
    run = ran(tmp_path, plan=lambda job, number: Plan(reward=float(job.key.phase == "train" or job.key.step >= 2)))
    assert run.trainer.success == {0: 0.0, 2: 1.0, 4: 1.0}
    assert run.journal.measured()[4, "held_out"] == {
        "success": 1.0,
        "success/low": 1.0,
        "success/high": 1.0,
        "reward": 1.0,
        "rollouts": 2.0,
    }
    assert not [key for step in run.trained_keys() for key in step if key.startswith("held_out")]


def test_a_run_of_no_steps_is_evaluated_once(tmp_path: Path) -> None:
    assert ran(tmp_path, settings=replace(SETTINGS, steps=0, eval_every=0)).trainer.success == {0: 0.0}


def test_the_time_taken_is_on_record_with_each_step_and_evaluation(tmp_path: Path) -> None:
    found: list[float] = []

    async def main() -> None:
        def times() -> Measured:
            return Measured(step=0, kind="times", metrics={"seconds": asyncio.get_running_loop().time()})

        def look(figures: StepDone | Measured) -> None:
            # As it is after a kill: what was flushed and nothing else.
            assert run.journal.measured()[0, "times"]["seconds"] == asyncio.get_running_loop().time()
            found.append(asyncio.get_running_loop().time())

        run = make_run(tmp_path, learner=SlowLearner(seconds=10), on_figures=look, times=times)
        await run.trainer.run()

    run_virtual(main())
    assert len(found) == 4 + 3  # steps, evaluations
    assert found[-1] > 40


def test_a_lost_rollout_is_counted_and_not_trained_on(tmp_path: Path) -> None:
    def plan(job: Job, number: int) -> Plan:
        lost = job.key.phase == "train" and job.key.step == 1 and job.key.sample == 0
        return Plan(reward=job.key.sample, run=Part(fault=Fault.RAISE if lost else None))

    run = ran(tmp_path, plan=plan)
    assert [len(step) for step in run.trained_keys()] == [6, 0, 6, 6]
    metrics = run.journal.steps()[1].metrics
    assert metrics is not None and metrics["groups/dropped"] == 3


def test_shuffled_rewards_are_the_same_rewards_dealt_anew(tmp_path: Path) -> None:
    plain, shuffled, again = (
        ran(tmp_path / name, settings=replace(SETTINGS, shuffle_rewards=flag), groups=6)
        for name, flag in (("plain", False), ("one", True), ("two", True))
    )
    advantages = [[row.advantage for row in run.learner.batches[0].rows] for run in (plain, shuffled, again)]
    assert advantages[1] == advantages[2] != advantages[0]
    totals = [run.journal.steps()[0].metrics for run in (plain, shuffled)]
    assert totals[0] is not None and totals[1] is not None
    assert totals[0]["reward/mean"] == totals[1]["reward/mean"]


def resumed(folder: Path, journal: MemoryJournal, learner: SlowLearner, settings: LoopSettings) -> Run:
    async def main() -> Run:
        run = make_run(folder, journal=journal.reopened(), learner=learner, settings=settings)
        await Checkpoints.of_run(folder).load_newest(run.learner)
        await run.trainer.run()
        return run

    return run_virtual(main())


@pytest.mark.parametrize("checkpoint_every", [1, 3])
@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("dies_after_s", [0.5, 3.5, 4.0, 8.25, 11.0, 17.5])
def test_a_killed_run_goes_on_and_trains_on_everything_once(
    tmp_path: Path, checkpoint_every: int, staleness: int, dies_after_s: float
) -> None:
    settings = replace(SETTINGS, checkpoint_every=checkpoint_every, staleness=staleness)
    unbroken = ran(tmp_path / "unbroken", settings=settings, learner=SlowLearner(seconds=1))
    folder = tmp_path / "killed"

    journal = MemoryJournal()

    async def killed() -> None:
        run = make_run(folder, settings=settings, learner=SlowLearner(seconds=1), journal=journal)
        task = asyncio.create_task(run.trainer.run())
        await asyncio.sleep(dies_after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(killed())
    before = {step.step: step.taken for step in journal.steps() if step.taken is not None}
    run = resumed(folder, journal, SlowLearner(seconds=1), settings)
    assert run.learner.version == 4
    records = run.journal.steps()
    assert [(record.step, record.version) for record in records] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [record.planned for record in records] == [record.planned for record in unbroken.journal.steps()]
    for record in records:
        assert before.get(record.step, record.taken) == record.taken
    # The learner saw the same batches from its checkpoint on, however often the run died.
    wanted = unbroken.trained_keys()
    seen = run.trained_keys()
    assert seen == wanted[len(wanted) - len(seen) :]
    assert run.trainer.success.keys() == {0, 2, 4}


@pytest.mark.parametrize(("staleness", "dies_after_s"), [(0, 8.25), (2, 4.0)])
def test_a_killed_run_ends_at_fewer_steps_but_not_below_its_batches(
    tmp_path: Path, staleness: int, dies_after_s: float
) -> None:
    settings = replace(SETTINGS, checkpoint_every=3, staleness=staleness)
    journal = MemoryJournal()

    async def killed() -> None:
        run = make_run(tmp_path, settings=settings, learner=SlowLearner(seconds=1), journal=journal)
        task = asyncio.create_task(run.trainer.run())
        await asyncio.sleep(dies_after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(killed())
    num_batches = sum(step.taken is not None for step in journal.steps())
    assert 0 < num_batches < settings.steps
    with pytest.raises(ConfigError) as refused:
        resumed(tmp_path, journal, SlowLearner(), replace(settings, steps=num_batches - 1))
    assert (refused.value.key, refused.value.remedies) == ("steps", (f"steps={num_batches}",))
    run = resumed(tmp_path, journal, SlowLearner(), replace(settings, steps=num_batches))
    assert run.learner.version == num_batches
    assert num_batches in run.trainer.success
    assert num_batches in Checkpoints.of_run(tmp_path).versions()


def test_a_learner_that_fails_ends_the_run_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="told to fail"):
        ran(tmp_path, learner=SlowLearner(fail_at=2))
    assert Checkpoints(tmp_path / "checkpoints").versions() == [1, 2]


def test_checkpoints_come_as_often_as_asked_and_the_newest_are_kept(tmp_path: Path) -> None:
    run = ran(tmp_path, settings=replace(SETTINGS, steps=7, checkpoint_every=2))
    assert Checkpoints(tmp_path / "checkpoints").versions() == [6, 7]
    assert {told.doing for told in run.told} >= {"rollouts", "update", "checkpoint", "evaluation", "evaluated"}


def test_a_run_without_held_out_tasks_just_trains(tmp_path: Path) -> None:
    run = ran(tmp_path, held_out=())
    assert (run.learner.version, run.trainer.success) == (4, {})
    assert HELD_OUT  # the stage has some otherwise


def test_a_journal_that_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="told to fail after 5 flushes"):
        ran(tmp_path, journal=MemoryJournal(fail_after_flushes=5))

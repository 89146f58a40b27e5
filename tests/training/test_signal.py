"""Steps that have nothing to learn from: the user is told at the second, with what to try."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from train_stage import SETTINGS, make_run

from slipstream.placement.simulated import Plan
from slipstream.record import MemoryJournal
from slipstream.simulate.clock import run_virtual
from slipstream.training.checkpoints import Checkpoints
from slipstream.training.signal import advice, is_flat, num_flat_at_end
from slipstream.types import Job


def words_of(folder: Path, reward: Callable[[Job], float], *, steps: int = 4, journal: MemoryJournal) -> list[str]:
    said: list[str] = []

    async def main() -> None:
        run = make_run(
            folder,
            settings=replace(SETTINGS, steps=steps),
            plan=lambda job, number: Plan(reward=reward(job)),
            held_out=(),
            journal=journal,
            on_status=said.append,
        )
        await Checkpoints.of_run(folder).load_newest(run.learner)
        await run.trainer.run()

    run_virtual(main())
    return said


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (lambda job: 0.0, "every rollout has the reward 0, so none is better than another"),
        (lambda job: 0.25, "every rollout has the reward 0.25"),
        (lambda job: 1.0, "every rollout solved its task. Give harder tasks"),
        (lambda job: float(job.key.task_id in ("t0", "t3", "t5")), "the 2 rollouts of each task all have the same"),
    ],
)
def test_at_the_second_step_without_a_signal_it_is_said_once_with_what_to_try(
    tmp_path: Path, reward: Callable[[Job], float], said: str
) -> None:
    words = words_of(tmp_path, reward, journal=MemoryJournal())
    assert len(words) == 1
    assert words[0].startswith("the last 2 steps had nothing to learn from: ")
    assert said in words[0]


def test_nothing_is_said_of_one_such_step_or_of_steps_that_teach(tmp_path: Path) -> None:
    def one_flat(job: Job) -> float:
        return 0.0 if job.key.step == 1 else float(job.key.sample)

    assert words_of(tmp_path / "one", one_flat, journal=MemoryJournal()) == []


def test_steps_of_an_earlier_session_count(tmp_path: Path) -> None:
    journal = MemoryJournal()
    assert words_of(tmp_path, lambda job: 0.0, steps=1, journal=journal) == []
    assert len(words_of(tmp_path, lambda job: 0.0, steps=2, journal=journal.reopened())) == 1


def test_a_model_that_calls_no_tool_is_told_to_be_looked_at() -> None:
    metrics = {"reward/solved_share": 0.0, "reward/min": 0.0, "reward/max": 0.0, "reward/mean": 0.0}
    assert "doctor" not in advice(metrics, num_flat=2, samples=8)
    told = advice({**metrics, "turns/without_call_share": 0.9}, num_flat=2, samples=8)
    assert "90% of the replies have no tool call that could be read" in told and "slipstream doctor" in told
    assert "no group has two rollouts with a verdict" in advice({}, num_flat=2, samples=8)


def test_flat_steps_are_counted_from_the_end() -> None:
    flat, taught = {"advantage/abs_mean": 0.0}, {"advantage/abs_mean": 0.5}
    assert [num_flat_at_end(steps) for steps in ([], [taught], [flat, taught, flat, {}], [flat, flat])] == [0, 0, 2, 2]
    assert is_flat({}) and is_flat(flat) and not is_flat(taught)

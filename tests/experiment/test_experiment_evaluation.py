"""An evaluation as rows: what is done is not done again, whatever ended the session before."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_design import HERE

from slipstream.agent.config import AgentConfig
from slipstream.errors import ConfigError
from slipstream.experiment.evaluations import Evaluation, EvaluationName, EvaluationState, evaluations
from slipstream.model.base import Completer
from slipstream.model.scripted import Script, act
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig
from slipstream.wiring.models import open_model

NAME = EvaluationName(part="held_out", arm="full", version=3)


def script() -> Script:
    """Some commands, then the end."""
    return lambda scene: act("bash", command=f"{(scene.seed or 0) % 3}") if scene.num_calls < 2 else act("finish")


CONFIG = EvalConfig(
    name="x",
    tasks=TasksConfig(source=f"{HERE}:tasks", args={"num": 4, "seed": 2}),
    model=ModelConfig(kind="scripted", script=f"{Path(__file__).resolve()}:script"),
    samples=2,
)


def evaluated(out: Path, config: EvalConfig = CONFIG, *, after_s: float | None = None) -> tuple[EvaluationState, int]:
    """The state, and how many rollouts this session had to do."""

    async def main() -> tuple[EvaluationState, int]:
        evaluation = Evaluation(out, NAME)
        work = await evaluation.missing(config)
        if not work.jobs:
            return evaluation.state(), 0
        until_s = None if after_s is None else asyncio.get_running_loop().time() + after_s
        async with open_model(config.model) as model:
            assert isinstance(model, Completer)
            state = await evaluation.run(work, model, until_s=until_s, on_status=lambda line: None)
        return state, len(work.jobs)

    return asyncio.run(main())


def test_a_row_for_each_job_and_more_samples_are_added(tmp_path: Path) -> None:
    state, num = evaluated(tmp_path)
    assert (state.num_jobs, state.num_done, num, state.is_whole) == (8, 8, 8, True)
    rows = Evaluation(tmp_path, NAME).rows()
    assert {row.ending for row in rows.values()} == {"finished"}
    assert all(row.calls == {"bash": 2, "finish": 1} and row.turns == 3 for row in rows.values())
    assert evaluated(tmp_path)[1] == 0
    state, num = evaluated(tmp_path, replace(CONFIG, samples=3))
    assert (state.num_done, num) == (12, 4)
    assert {key: row for key, row in Evaluation(tmp_path, NAME).rows().items() if key[1] < 2} == rows
    assert [each.name for each in evaluations(tmp_path)] == [NAME]


def test_rollouts_that_lost_their_rows_are_read_from_the_run_store(tmp_path: Path) -> None:
    evaluated(tmp_path)
    path = Evaluation(tmp_path, NAME).folder / "rows.jsonl"
    whole = Evaluation(tmp_path, NAME).rows()
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    assert len(Evaluation(tmp_path, NAME).rows()) == 3
    assert evaluated(tmp_path)[1] == 0 and Evaluation(tmp_path, NAME).rows() == whole


def test_out_of_time_it_ends_well_and_is_resumed(tmp_path: Path) -> None:
    state, _ = evaluated(tmp_path, after_s=0.0)
    assert not state.is_whole and state.num_jobs == 8
    state, num = evaluated(tmp_path)
    assert state.is_whole and num == 8


def test_another_agent_or_other_tasks_are_not_added(tmp_path: Path) -> None:
    evaluated(tmp_path)
    with pytest.raises(ConfigError, match="was begun with agent"):
        evaluated(tmp_path, replace(CONFIG, agent=AgentConfig(out_of_turns="failed"), samples=3))
    with pytest.raises(ConfigError, match="was begun with tasks"):
        evaluated(tmp_path, replace(CONFIG, tasks=replace(CONFIG.tasks, args={"num": 4, "seed": 3}), samples=3))

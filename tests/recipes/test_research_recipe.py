"""The research sample end to end: a real site, a real index, and an agent that knows what it was shown alone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import slipstream as ss
from slipstream.recipes.research.site import Site
from slipstream.recipes.research.solver import solver
from slipstream.recipes.research.tasks import research_tasks
from slipstream.recipes.research.world import make_world


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def reward(folder: Path, port: int, *, num: int = 4, without: str = "", seed: int = 3) -> float | None:
    tasks = research_tasks(num=num, seed=seed, port=port, without=without, encoder="", folder=str(folder / "indexes"))
    settings = {"model.script": "slipstream.recipes.research.solver:solver", "model.max_tokens": 1_024}
    config = ss.EvalConfig(name="research", tasks=ss.TasksConfig(), model=ss.ModelConfig(kind="scripted"))
    return ss.evaluate(tasks, config=config, settings=settings, runs=folder / "runs", quiet=True).mean_reward


def test_every_question_is_answered_from_what_the_tools_show(tmp_path: Path, port: int) -> None:
    assert reward(tmp_path, port, num=16) == 1.0
    assert ss.open_run(next((tmp_path / "runs").iterdir())).rollouts()


@pytest.mark.parametrize("without", ["search", "open_page"])
def test_without_a_tool_nothing_is_answered(tmp_path: Path, port: int, without: str) -> None:
    assert reward(tmp_path, port, without=without) == 0.0


def test_what_is_indexed_never_says_the_answer() -> None:
    world = make_world(seed=0, num_companies=64)
    assert make_world(seed=0, num_companies=64) == world != make_world(seed=1, num_companies=64)
    indexed = " ".join(entry.abstract for entry in world.entries)
    titles = [entry.title for entry in world.entries]
    assert len(set(titles)) == 128
    for question in world.questions:
        assert question.answer not in indexed.split()
        assert question.answer not in question.text


def test_reports_on_pages_are_recorded_and_not_trained_on(tmp_path: Path, port: int) -> None:
    reward(tmp_path, port, num=1)
    (rollout,) = ss.open_run(next((tmp_path / "runs").iterdir())).rollouts()
    nested = [turn for turn in rollout.turns if not turn.trainable]
    assert len(nested) == 2
    assert all("[page " in turn.messages[0].content for turn in nested)


def test_two_sites_may_be_at_one_address_and_a_foreign_server_is_named(port: int) -> None:
    assert Site(port) is not Site(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ss.ConfigError, match=r"cannot be served .*: choose another with tasks.args.port=NUMBER"):
            Site(taken.getsockname()[1])


def test_bad_arguments_are_refused(port: int) -> None:
    with pytest.raises(ss.ConfigError, match="num=65: ask for 1 to 64"):
        research_tasks(num=65, port=port)
    with pytest.raises(ss.ConfigError, match='without="finish": name search or open_page'):
        research_tasks(without="finish", port=port)
    assert callable(solver())

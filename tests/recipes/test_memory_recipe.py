"""The memory recipe from end to end: a scripted reader that knows only what its tool shows."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import slipstream as ss
from slipstream.agent.config import CondenseConfig
from slipstream.agent.loop import ToolAgent
from slipstream.config import apply_overrides, checked_arguments
from slipstream.dialogue.base import TurnLog
from slipstream.dispatch.gate import OpenGate
from slipstream.names import load_object
from slipstream.recipes import find_recipe
from slipstream.recipes.memory import recipe, training, window
from slipstream.recipes.memory.model import demonstrations, make_model, make_window_model
from slipstream.recipes.memory.needles import needle_tasks
from slipstream.recipes.memory.policy import reader, window_reader
from slipstream.record import RunStore, plan_resume
from slipstream.seams import JobAdmitted, PastAttempt, TurnTaken
from slipstream.settings import TrainConfig, check_settings
from slipstream.tasks.source import load_tasks
from slipstream.tools import Toolset
from slipstream.types import Ending, ForkReason, Job, Task, Turn
from slipstream.wiring.models import dialogue_maker, open_model

MAX_PROMPT_TOKENS = 150


def evaluated(tasks: list[ss.Task], runs: Path) -> ss.EvalResult:
    return ss.evaluate(tasks, config=recipe(), runs=runs, quiet=True)


def test_the_reader_answers_from_what_it_was_shown(tmp_path: Path) -> None:
    result = evaluated(list(needle_tasks(num=6, kind="mixed", sections=5)), tmp_path)
    assert (result.mean_reward, result.num_rollouts) == (1.0, 6)
    for rollout in result.rollouts():
        assert [turn.fork for turn in rollout.turns] == [None] + [ForkReason.CONTEXT_EDIT] * 6
        assert rollout.turns[0].messages[-2].content.count("\n") <= 2, "the question alone"
        assert len({len(turn.messages) for turn in rollout.turns}) == 1, "nothing but the last rewriting is read"


def test_without_the_tool_it_knows_nothing(tmp_path: Path) -> None:
    tasks = [
        replace(task, brief=replace(task.brief, tools=task.brief.tools[-1:]))
        for task in needle_tasks(num=6, kind="mixed", sections=5)
    ]
    result = evaluated(tasks, tmp_path)
    assert (result.mean_reward, result.report.endings) == (0.0, {"finished": 6})


def test_a_reader_that_forgets_fails_the_longer_the_document_the_more(tmp_path: Path) -> None:
    short, long = (
        ss.evaluate(
            list(needle_tasks(num=60, seed=1, sections=sections)),
            model=reader(quality=0.8),
            runs=tmp_path,
            quiet=True,
        ).mean_reward
        for sections in (2, 12)
    )
    assert short is not None and long is not None
    assert 0.5 < short < 1.0
    assert long < 0.5


def test_the_recipe_without_arguments_is_long_and_mixed() -> None:
    config = recipe()
    tasks = load_tasks(config.tasks.source, num=config.tasks.num, args=config.tasks.args)
    assert len(tasks) >= 16
    assert {task.id.split("-")[1] for task in tasks} == {"needle", "needles", "hops"}
    assert find_recipe("memory") == config
    assert find_recipe("memory", to_train=True) == training()


@pytest.mark.parametrize(("config", "make"), [(training(), make_model), (window(), make_window_model)])
def test_training_can_be_run_and_never_sees_what_is_held_out(config: TrainConfig, make: object) -> None:
    check_settings(config)
    assert load_object(config.model.make, "model.make") is make
    source = load_object(config.warm_start.source, "warm_start.source")
    assert source is demonstrations
    assert checked_arguments(demonstrations, config.warm_start.args, "warm_start.args") == config.warm_start.args
    assert config.tasks.num == config.steps * config.groups
    train, held_out = (
        load_tasks(each.source, num=each.num, args=each.args) for each in (config.tasks, config.held_out)
    )
    documents = [{repr((task.instruction, task.brief.resources)) for task in some} for some in (train, held_out)]
    assert documents[0].isdisjoint(documents[1])


def test_every_prompt_of_the_small_models_is_short(tmp_path: Path) -> None:
    for is_window, make in ((False, make_model), (True, make_window_model)):
        folder = make(tmp_path / make.__name__, seed=0)
        made = demonstrations(folder, num=4, drills=2, seed=0, quality=0.5, window=is_window)
        lengths = [list(one.mask).index(1) for one in made]  # type: ignore[attr-defined]
        spoken = [sum(one.mask) for one in made]  # type: ignore[attr-defined]
        num_long, num_short = (4, 2) if is_window else (4 * 6, 2 * 3)
        assert max(lengths) < MAX_PROMPT_TOKENS
        assert spoken == [4] * (num_long + num_short), "a line is one token"


def test_the_teacher_of_the_single_window_reads_what_it_is_shown(tmp_path: Path) -> None:
    tasks = list(needle_tasks(num=30, kind="needle", window=True))
    right = ss.evaluate(tasks, model=window_reader(), runs=tmp_path, quiet=True)
    faulty = ss.evaluate(tasks, model=window_reader(quality=0.45), runs=tmp_path, quiet=True)
    assert right.mean_reward == 1.0
    assert faulty.mean_reward is not None and 0.2 < faulty.mean_reward < 0.7


def test_condensation_is_a_switch_of_any_recipe() -> None:
    for name in ("swe", "react", "memory"):
        changed = apply_overrides(find_recipe(name), ["agent.condense=true", "agent.condense.trained=false"])
        assert changed.agent.condense == CondenseConfig(on=True, trained=False)


def test_a_stopped_reading_is_resumed_from_its_store_at_any_turn(tmp_path: Path) -> None:
    (task,) = tasks = list(needle_tasks(num=1, kind="needles", sections=3))
    result = evaluated(tasks, tmp_path)
    (whole,) = result.rollouts()
    events = list(RunStore.read(result.run_path).events())
    for num_past in range(1, len(whole.turns) + 1):
        stopped = [
            event
            for event in events
            if isinstance(event, JobAdmitted) or (isinstance(event, TurnTaken) and event.turn.index < num_past)
        ]
        past = plan_resume(stopped).unfinished[whole.job.key]
        assert past.turns == whole.turns[:num_past]
        ending, turns = asyncio.run(resumed(task, whole.job, past))
        assert turns == list(whole.turns)
        assert ending == whole.ending


async def resumed(task: Task, job: Job, past: PastAttempt) -> tuple[Ending, list[Turn]]:
    """The rest of an attempt, by the recipe's own model."""
    config = recipe().model
    log = TurnLog(seed=job.seed, on_turn=lambda turn: None, on_span=lambda span: None)
    async with open_model(config) as model:
        dialogue = dialogue_maker(config, model, OpenGate())(job, past.attempt, task, log)
        agent = ToolAgent(Toolset.named(task.brief.tools))
        ending = await agent.run(task.brief, None, dialogue, past.turns, on_span=lambda span: None)
    return ending, log.turns

"""The lookups that a small model is trained on: real tools, a faulty teacher, and nothing to be known by heart."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import slipstream as ss
from slipstream.recipes.research.lookup_model import FAMILY_ARGS, demonstrations, make_model, teacher
from slipstream.recipes.research.lookups import Lookup, Split, answer_of, lookup_tasks, pages
from slipstream.recipes.research.lookups import lookups as drawn


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), seed=0)


def played(folder: Path, port: int, *, quality: float, num: int) -> ss.EvalResult:
    tasks = lookup_tasks(num=num, seed=1, port=port, encoder="", folder=str(folder / "indexes"))
    script = "slipstream.recipes.research.lookup_model:teacher"
    model = ss.ModelConfig(kind="scripted", script=script, script_args={"quality": quality}, max_tokens=256)
    config = ss.EvalConfig(name="lookups", tasks=ss.TasksConfig(), model=model)
    return ss.evaluate(tasks, config=config, runs=folder / "runs", quiet=True)


def test_a_perfect_teacher_solves_every_lookup_with_the_real_tools(tmp_path: Path, port: int) -> None:
    result = played(tmp_path, port, quality=1.0, num=12)
    assert result.mean_reward == 1.0
    rollout = result.rollouts()[0]
    assert len(rollout.turns) == 5
    results = rollout.turns[1].messages[0].content.splitlines()
    assert len(results) == 2 and len(results[0].split()) == 3, "a code, a name and a district, and no fact"


def test_a_faulty_teacher_is_below_two_fifths_and_shows_what_it_does(tmp_path: Path, port: int, model: Path) -> None:
    result = played(tmp_path, port, quality=0.6, num=40)
    assert result.mean_reward is not None and 0.05 < result.mean_reward < 0.4
    shown = demonstrations(model, num=40, seed=1, quality=0.6)
    assert max(len(each.ids) for each in shown) < 200
    assert all(0 < sum(each.mask) < len(each.ids) for each in shown)


def _plain_task(number: int, lookup: Lookup) -> ss.Task:
    return ss.Task(id=str(number), instruction=lookup.question, tools=["finish"], grader=ss.exact(answer_of(lookup, 0)))


def test_held_out_combinations_are_not_trained_on_and_their_words_are() -> None:
    train, held_out = (drawn(num=2_000, seed=3, split=split) for split in (Split.TRAIN, Split.HELD_OUT))
    assert not {each.question for each in train} & {each.question for each in held_out}
    for part in ("district", "name", "who", "what"):
        assert {getattr(each, part) for each in held_out} == {getattr(each, part) for each in train}


def test_every_choice_is_one_token(model: Path) -> None:
    writer = ss.DemonstrationWriter(model, family_args=FAMILY_ARGS)
    page = next(iter(pages(0).values()))

    def num_tokens(*calls: ss.Message) -> int:
        draft = writer.begin(_plain_task(0, Lookup(district="amber", name="anna", who="boss", what="pet")))
        for call in calls:
            draft.say(call)
        return draft.num_tokens

    base = num_tokens()
    lengths = {num_tokens(ss.act("finish", answer=value)) - base for value in ("owl", "oslo", "judge", "anna")}
    assert len(lengths) == 1
    assert num_tokens(ss.act("open_page", url=page.code)) - base < 16


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ss.ConfigError, match='there is no split "test": use one of train, held_out'):
        lookup_tasks(split="test")
    with pytest.raises(ss.ConfigError, match="quality=2: give a probability"):
        teacher(quality=2)

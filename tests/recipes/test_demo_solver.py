"""The scripted solver: perfect when told to be, and right in its structure however bad."""

import re

import pytest
from demo_stage import play

from slipstream.errors import ConfigError
from slipstream.recipes.demo.solver import solver
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, MAX_TURNS, OPERATIONS, demo_tasks
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.types import EndReason

RENDERER = Renderer("qwen3", ByteTokenizer())

READ = re.compile(f"cat ({'|'.join(FOLDERS)})/note")
MAKE = re.compile(f"({'|'.join(OPERATIONS)}) ({'|'.join(FOLDERS)})/data \\| ({'|'.join(FORMATS)}) > out")


def test_the_perfect_solver_takes_the_right_way_in_three_to_five_turns() -> None:
    lengths = set()
    for played in play(demo_tasks(num=60), RENDERER):
        _, *folders, operation, form = played.task.id.split("-")
        assert played.commands == [
            *(f"cat {folder}/note" for folder in folders),
            f"{operation} {folders[-1]}/data | {form} > out",
            "finish",
        ]
        assert played.ending.reason is EndReason.FINISHED
        lengths.add(len(played.turns))
    assert lengths == {3, 4, 5}


@pytest.mark.parametrize("quality", [0.0, 0.5])
def test_a_bad_solver_is_wrong_within_the_vocabulary_and_right_in_structure(quality: float) -> None:
    num_wrong = 0
    for played in play(demo_tasks(num=60), RENDERER, quality=quality):
        *commands, last = played.commands
        assert all(READ.fullmatch(command) or MAKE.fullmatch(command) for command in commands)
        finished = played.ending.reason is EndReason.FINISHED
        assert (last == "finish") == finished
        if finished:
            assert [bool(MAKE.fullmatch(command)) for command in commands] == [False] * (len(commands) - 1) + [True]
        else:
            assert played.ending.reason is EndReason.TURN_LIMIT and len(played.turns) == MAX_TURNS
        _, *_, operation, form = played.task.id.split("-")
        num_wrong += not commands[-1].endswith(f"| {form} > out") or not commands[-1].startswith(operation)
    assert num_wrong >= 60 * (1 - quality) ** 2


def test_the_worst_solver_makes_no_choice_right() -> None:
    for played in play(demo_tasks(num=60), RENDERER, quality=0.0):
        _, start, *_, operation, form = played.task.id.split("-")
        assert played.commands[0] != f"cat {start}/note"
        made = [found for command in played.commands if (found := MAKE.fullmatch(command))]
        assert all(found[1] != operation and found[3] != form for found in made)


def test_the_solver_repeats_itself_for_the_same_seed_and_not_for_another() -> None:
    def commands(seed: int) -> list[list[str]]:
        return [played.commands for played in play(demo_tasks(num=20), RENDERER, quality=0.5, seed=seed)]

    assert commands(1) == commands(1)
    assert commands(1) != commands(2)


@pytest.mark.parametrize("quality", [-0.1, 1.1])
def test_a_quality_that_is_no_probability_is_refused(quality: float) -> None:
    with pytest.raises(ConfigError, match=f"quality={quality}"):
        solver(quality=quality)

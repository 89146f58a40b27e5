"""The demo's tasks: what they are made of, and how they are split."""

import re
from collections.abc import Mapping
from itertools import product

import pytest

from slipstream.errors import ConfigError
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, MAX_TURNS, OPERATIONS, Split, Trail, demo_tasks
from slipstream.tasks.jsonl import check_task
from slipstream.types import File, Task

MANY = 1_000


def combination(task: Task) -> tuple[str, str, str]:
    """The last folder, the operation and the format, as the id spells them."""
    *_, folder, operation, form = task.id.split("-")
    return folder, operation, form


def test_the_vocabulary_is_closed_and_of_the_promised_size() -> None:
    assert (len(set(FOLDERS)), len(OPERATIONS), len(FORMATS)) == (16, 16, 8)
    words = [*FOLDERS, *OPERATIONS, *FORMATS]
    assert len(set(words)) == len(words)
    assert all(re.fullmatch("[a-z]+", word) for word in words)
    phrases = [phrase for phrase, _ in OPERATIONS.values()]
    assert len(set(phrases)) == len(phrases)


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others() -> None:
    assert demo_tasks(num=20, seed=3) == demo_tasks(num=20, seed=3)
    ids = {task.id for task in demo_tasks(num=20, seed=3)}
    assert ids.isdisjoint(task.id for task in demo_tasks(num=20, seed=4))


def test_fewer_tasks_are_the_first_of_more() -> None:
    for split in Split:
        assert demo_tasks(num=30, split=split)[:10] == demo_tasks(num=10, split=split)


def test_ids_are_unique() -> None:
    for split in Split:
        assert len({task.id for task in demo_tasks(num=MANY, split=split)}) == MANY


def test_train_and_held_out_tasks_share_no_combination() -> None:
    train = {combination(task) for task in demo_tasks(num=MANY, split="train")}
    for seed in range(3):
        held_out = {combination(task) for task in demo_tasks(num=MANY // 2, seed=seed, split="held_out")}
        assert train.isdisjoint(held_out)


@pytest.mark.parametrize("split", Split)
def test_every_split_covers_every_folder_operation_and_format(split: Split) -> None:
    folders, operations, formats = (
        set(words) for words in zip(*map(combination, demo_tasks(num=MANY, split=split)), strict=True)
    )
    assert (folders, operations, formats) == (set(FOLDERS), set(OPERATIONS), set(FORMATS))


def files_of(task: Task) -> Mapping[str, File]:
    assert task.sandbox is not None
    return task.sandbox.files


def split_of(folder: str, operation: str, form: str) -> Split:
    return Trail(folders=(folder,), operation=operation, format=form, numbers={}).split


def test_a_quarter_of_the_combinations_is_held_out() -> None:
    held_out = [chosen for chosen in product(FOLDERS, OPERATIONS, FORMATS) if split_of(*chosen) is Split.HELD_OUT]
    assert len(held_out) == pytest.approx(16 * 16 * 8 / 4, rel=0.05)


@pytest.mark.parametrize("split", [Split.TRAIN, Split.HELD_OUT])
def test_a_split_is_that_part_of_all_tasks_in_their_order(split: Split) -> None:
    expected = [files_of(task) for task in demo_tasks(num=200) if split_of(*combination(task)) is split]
    assert [files_of(task) for task in demo_tasks(num=len(expected), split=split)] == expected


def test_every_task_is_one_that_can_be_run() -> None:
    for task in demo_tasks(num=50):
        check_task(task)
        assert task.brief.limits.turns == MAX_TURNS


def test_the_answer_is_in_the_notes_and_the_brief_names_the_first_folder_alone() -> None:
    for task in demo_tasks(num=50):
        folder, operation, form = combination(task)
        start = task.id.split("-")[1]
        assert task.brief.instruction == f"Start in {start}."
        note = files_of(task)[f"{folder}/note"].data.decode()
        assert note == f"{OPERATIONS[operation][0]}, as {form}\n"
        others = [files_of(task)[f"{name}/note"].data for name in FOLDERS if name != folder]
        assert all(other.startswith(b"look in ") for other in others)


def test_nothing_of_the_grading_is_in_the_agents_sandbox() -> None:
    (task,) = demo_tasks(num=1)
    command = task.grading.spec["command"]
    assert isinstance(command, str)
    assert not [path for path, file in files_of(task).items() if command.encode() in file.data or "out" in path]


@pytest.mark.parametrize(("num", "split", "said"), [(0, "all", "num=0"), (1, "test", 'no split "test"')])
def test_what_there_is_not_is_refused(num: int, split: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        demo_tasks(num=num, split=split)

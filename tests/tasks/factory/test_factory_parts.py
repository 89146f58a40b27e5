import json

import pytest

from slipstream.errors import ConfigError
from slipstream.recipes.swe import DEMONSTRATED, HELD_OUT, VALIDATION, coder, levels, small
from slipstream.tasks.factory.levels import Level, level_of, made_id
from slipstream.tasks.factory.parts import PARTS, Part, package_name, part_of, read_part, tier_of
from slipstream.tasks.gate import package_of
from slipstream.tasks.source import load_tasks
from slipstream.types import Json, Task

SOURCE = "slipstream.tasks.factory.parts:read_part"
GRADING = {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_b"]}
PACKAGES = {"one": "1.0", "two-words": "2.1.3", "three": "3"}
SPLIT = {"validation": ["Two_Words"], "held_out": ["three"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    lines = []
    for package, version in PACKAGES.items():
        (folder / package).mkdir()
        for number in range(100):
            name = f"{package}-{version}-{number:04d}-{'tiny' if number % 2 else 'hard'}"
            lines.append({"id": name, "instruction": "Mend it.", "sandbox": {"tree": package}, "grading": GRADING})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def packages(tasks: tuple[Task, ...]) -> set[str]:
    return {package_name(task) for task in tasks}


def test_every_package_is_in_one_part_alone(folder: str) -> None:
    train, validation, held_out = (
        read_part(path=folder, tier="tiny", part=part, validation=["Two_Words"], held_out=["three"])
        for part in ("train", "validation", "held_out")
    )
    assert (packages(train), packages(validation), packages(held_out)) == ({"one"}, {"two-words"}, {"three"})
    assert {tier_of(task) for task in (*train, *validation, *held_out)} == {"tiny"}
    assert len(train) + len(validation) + len(held_out) == len(read_part(path=folder, tier="tiny")) == 150
    assert len(read_part(path=folder, tier=["tiny", "hard"])) == 300


def test_another_version_of_a_package_is_in_the_same_part(folder: str) -> None:
    task = read_part(path=folder, num=1)[0]
    name = package_name(task)
    assert part_of(task, {"validation": ["other"]}) == "train"
    for part in PARTS[2:]:
        split: dict[Part, list[str]] = {"held_out": [], part: [name.upper()]}
        assert part_of(task, split) == part


@pytest.mark.parametrize("config", [small(), coder(), levels()])
def test_no_recipe_trains_on_a_package_that_it_measures_on(folder: str, config: object) -> None:
    assert len({*DEMONSTRATED, *VALIDATION, *HELD_OUT}) == len((*DEMONSTRATED, *VALIDATION, *HELD_OUT))
    used = [getattr(config, name).args for name in ("tasks", "held_out") if hasattr(config, name)]
    assert all(set(args["validation"]) == {*VALIDATION} and set(args["held_out"]) == {*HELD_OUT} for args in used)
    assert used[0]["part"] == ("validation" if len(used) == 1 else "train")


def test_what_is_demonstrated_is_not_trained_on_by_reward(folder: str) -> None:
    config = coder()
    shown, trained = config.warm_start.args, config.tasks.args
    assert shown["part"] == "demonstrated" and trained["part"] == "train"
    assert shown["demonstrated"] == trained["demonstrated"] == [*DEMONSTRATED]
    both = [read_part(path=folder, part=part, demonstrated=["one"]) for part in ("demonstrated", "train")]
    assert [packages(tasks) for tasks in both] == [{"one"}, {"two-words", "three"}]


def test_levels_come_in_the_shares_that_are_asked_for(folder: str) -> None:
    mixed = read_part(path=folder, levels={"search": 0.25})
    assert all(level_of(task.id) is Level.SEARCH for task in mixed)
    assert 40 < len(mixed) < 110
    assert mixed == read_part(path=folder, levels={"search": 0.25})
    assert {made_id(task.id) for task in mixed} < {task.id for task in read_part(path=folder)}
    assert len(read_part(path=folder, levels={"search": 1, "shown": 1})) == 300  # these bugs have no patch to tell from


def test_the_first_tasks_are_of_several_packages_and_the_same_each_time(folder: str) -> None:
    first = read_part(path=folder, tier="tiny", part="train", num=10, held_out=["three"])
    assert {package_of(task) for task in first} == {"one", "two-words"}
    assert first == read_part(path=folder, tier="tiny", part="train", num=20, held_out=["three"])[:10]
    args: dict[str, Json] = {"path": folder, "tier": "tiny", "part": "train", "held_out": ["three"]}
    assert first == load_tasks(SOURCE, num=10, args=args)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, r"set tasks\.args\.path"),
        ({"path": "DIR", "tier": "tinny"}, 'did you mean "tiny"'),
        ({"path": "DIR", "part": "test"}, "part"),
        ({"path": "DIR", "part": "held_out"}, r"held_out=\[NAME"),
        ({"path": "DIR", "validation": ["a", "three"], "held_out": ["three"]}, "three: a package is"),
        ({"path": "DIR", "validation": ["three"], "demonstrated": ["Three"]}, "three: a package is"),
        ({"path": "DIR", "levels": {"show": 1}}, 'did you mean "shown"'),
        ({"path": "DIR", "levels": {"shown": 2}}, "from 0 to 1"),
        ({"path": "DIR", "tier": "easy"}, "no tasks of the tier easy"),
        ({"path": "DIR/none"}, "none"),
    ],
)
def test_a_part_that_is_not_there_is_named(folder: str, args: dict[str, Json], said: str) -> None:
    given: dict[str, Json] = {
        name: value.replace("DIR", folder) if isinstance(value, str) else value for name, value in args.items()
    }
    with pytest.raises(ConfigError, match=said):
        load_tasks(SOURCE, num=None, args=given)

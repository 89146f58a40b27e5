import json

import pytest

from slipstream.errors import ConfigError
from slipstream.tasks.factory.parts import ONE_IN, read_part, tier_of
from slipstream.tasks.gate import package_of
from slipstream.tasks.source import load_tasks

SOURCE = "slipstream.tasks.factory.parts:read_part"
GRADING = {"kind": "tests", "command": ["python3"], "fail_to_pass": ["tests/test_a.py::test_b"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    lines = []
    for package in ("one", "two"):
        (folder / package).mkdir()
        for number in range(100):
            name = f"{package}-{number:04d}-{'tiny' if number % 2 else 'hard'}"
            lines.append({"id": name, "instruction": "Mend it.", "sandbox": {"tree": package}, "grading": GRADING})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_the_parts_of_a_tier_are_all_of_it_and_share_nothing(folder: str) -> None:
    train, held_out = (read_part(path=folder, tier="tiny", part=part) for part in ("train", "held_out"))
    assert {tier_of(task) for task in (*train, *held_out)} == {"tiny"}
    assert not {task.id for task in train} & {task.id for task in held_out}
    assert len(train) + len(held_out) == len(read_part(path=folder, tier="tiny")) == 100
    assert 0.5 < len(held_out) * ONE_IN / 100 < 2
    assert len(read_part(path=folder)) == 200


def test_the_first_tasks_are_of_several_packages_and_the_same_each_time(folder: str) -> None:
    first = read_part(path=folder, tier="tiny", part="train", num=10)
    assert {package_of(task) for task in first} == {"one", "two"}
    assert first == read_part(path=folder, tier="tiny", part="train", num=20)[:10]
    assert first == load_tasks(SOURCE, num=10, args={"path": folder, "tier": "tiny", "part": "train"})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, r"set tasks\.args\.path"),
        ({"path": "DIR", "tier": "tinny"}, 'did you mean "tiny"'),
        ({"path": "DIR", "part": "test"}, "part"),
        ({"path": "DIR", "tier": "easy"}, "no tasks of the tier easy"),
        ({"path": "DIR/none"}, "none"),
    ],
)
def test_a_part_that_is_not_there_is_named(folder: str, args: dict[str, str], said: str) -> None:
    given = {name: value.replace("DIR", folder) for name, value in args.items()}
    with pytest.raises(ConfigError, match=said):
        load_tasks(SOURCE, num=None, args=given)

"""A run from elsewhere: the code it names is not run before the user says so; and where relative paths lead."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from cli_stage import slipstream

from slipstream.cli.trust import check_trust
from slipstream.errors import ConfigError
from slipstream.recipes import find_recipe
from slipstream.record import RunReader, RunStore
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig
from slipstream.settings.header import KEY_FILE, code_named, mark_of
from slipstream.types import Json

MINE = EvalConfig(name="x", tasks=TasksConfig(source="evil.py:tasks"), model=ModelConfig(kind="scripted"))


def stored(folder: Path, fields: dict[str, Json]) -> RunReader:
    asyncio.run(RunStore.create(folder, config=fields).aclose())
    return RunStore.read(folder)


def test_the_key_is_made_once_and_is_the_users_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert mark_of(MINE, "/here", home) == mark_of(MINE, "/here", home) != mark_of(MINE, "/there", home)
    assert (home / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == [KEY_FILE]


def test_a_run_that_was_marked_here_is_ones_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    past = stored(tmp_path / "run", {"place": "/here", "mark": mark_of(MINE, "/here", home)})
    check_trust(past, MINE, home=home, trust=False)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"place": "/here", "mark": ""},
        {"place": "/here", "mark": "0" * 64},
        {"place": "/here", "mark": None},
        {"place": "/here", "mark": "\u202e"},
    ],
)
def test_a_run_without_the_mark_is_refused_and_its_code_named(tmp_path: Path, fields: dict[str, Json]) -> None:
    past, home = stored(tmp_path / "run", fields), tmp_path / "home"
    with pytest.raises(ConfigError, match=r"not started by you .*evil\.py:tasks \(tasks\.source\); .* with --trust"):
        check_trust(past, MINE, home=home, trust=False)
    check_trust(past, MINE, home=home, trust=True)


def test_a_mark_is_good_for_its_own_code_and_place_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    mark = mark_of(EvalConfig(name="x", tasks=TasksConfig(source="good.py:tasks")), "/here", home)
    for number, place in enumerate(("/here", "/there")):
        past = stored(tmp_path / f"run{number}", {"place": place, "mark": mark})
        with pytest.raises(ConfigError):
            check_trust(past, MINE, home=home, trust=False)


def test_a_run_of_built_in_code_needs_no_trust(tmp_path: Path) -> None:
    demo = find_recipe("demo")
    assert code_named(demo) == {}
    check_trust(stored(tmp_path / "run", {}), demo, home=tmp_path / "home", trust=False)


CODE = """
from slipstream.model.scripted import act
from slipstream.types import Brief, Grading, Task

open("loaded", "w").close()

def tasks():
    grading = Grading(kind="exact", spec={"expected": "x"})
    return [Task(id="a", brief=Brief(instruction="Say x.", tools=("finish",)), grading=grading)]

def script():
    return lambda scene: act("finish", answer="x")
"""


def test_a_foreign_run_loads_nothing_before_it_is_trusted_and_relative_paths_keep_their_meaning(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    (work / "mine.py").write_text(CODE)
    settings = ["react", "tasks=mine.py:tasks", "model.kind=scripted", "model.script=mine.py:script"]
    first = slipstream("eval", *settings, "--json", cwd=work)
    run = work / first.json["run"]
    own = slipstream("eval", "--resume", str(run), "samples=1", "--json", cwd=elsewhere)
    assert (own.code, own.json["num_rollouts"], own.json["run"]) == (0, 1, str(run))

    (work / "loaded").unlink()
    foreign = elsewhere / "foreign"
    config: Json = {**json.loads(json.dumps(RunStore.read(run).config())), "mark": "0" * 64}
    shutil.copytree(run, foreign)

    async def forge() -> None:
        async with RunStore.open(foreign) as store:
            store.set_config(config)

    asyncio.run(forge())
    refused = slipstream("eval", "--resume", str(foreign), cwd=elsewhere)
    assert refused.code == 2 and "mine.py:tasks (tasks.source), mine.py:script (model.script)" in refused.err
    assert not (work / "loaded").exists()
    trusted = slipstream("eval", "--resume", str(foreign), "--trust", "--json", cwd=elsewhere)
    assert trusted.code == 0 and (work / "loaded").exists()

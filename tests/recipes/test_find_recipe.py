"""From the name of a recipe to its settings."""

from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.recipes import RECIPES, TRAINED, find_recipe
from slipstream.settings import EvalConfig, TrainConfig

MODULE = """
from slipstream.errors import ConfigError
from slipstream.settings import EvalConfig, TasksConfig

ready = EvalConfig(name="ready", tasks=TasksConfig())
def recipe(): return ready
def number(): return 3
def boom(): raise RuntimeError("no luck")
def strict(): raise ConfigError("not like this")
def needy(size): return ready
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return str(path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_built_in_recipe_is_found_under_its_own_name(name: str) -> None:
    assert find_recipe(name).name == name


def test_a_function_or_a_config_in_a_file_is_found(module: str) -> None:
    assert find_recipe(f"{module}:recipe").name == "ready"
    assert find_recipe(f"{module}:ready") is find_recipe(f"{module}:recipe")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "gave a int: return an EvalConfig"),
        ("boom", "failed: RuntimeError: no luck"),
        ("strict", "not like this"),
        ("needy", "missing 1 required positional argument: 'size'"),
    ],
)
def test_what_gives_no_settings_is_refused(module: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_recipe(f"{module}:{name}")
    assert said in str(raised.value)


def test_an_unknown_name_says_the_nearest_and_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r'no recipe "demoo" \(did you mean "demo"\?\): use one of demo, memory'):
        find_recipe("demoo")


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_to_train_has_one_of_an_evaluation_beside_it(name: str) -> None:
    found = find_recipe(name, to_train=True)
    assert isinstance(found, TrainConfig)
    assert isinstance(find_recipe(name), EvalConfig)
    assert found.name == name

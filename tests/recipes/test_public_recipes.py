"""A recipe is an example for users: it imports the public API and modules of recipes, nothing else of Slipstream."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slipstream

RECIPES = Path(slipstream.__file__).parent / "recipes"
FILES = [path for path in sorted(RECIPES.rglob("*.py")) if path != RECIPES / "__init__.py"]
NAMED = re.compile(r"slipstream(\.\w+)+:\w+")
"""An object named in settings, which is an import too."""


def offences(text: str) -> Iterator[str]:
    """Every use of something of Slipstream that is neither public nor a recipe's."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] == "slipstream" and not is_allowed(alias.name):
                        yield f"import {alias.name}"
            case ast.ImportFrom(module=module, names=names, level=level):
                if level:
                    yield f"from {'.' * level}{module or ''} import ..."
                elif (module or "") == "slipstream":
                    yield from (f"slipstream.{each.name}" for each in names if each.name not in slipstream.__all__)
                elif (module or "").split(".")[0] == "slipstream" and not is_allowed(module or ""):
                    yield f"from {module} import ..."
            case ast.Attribute(value=ast.Name(id="ss"), attr=name) if name not in slipstream.__all__:
                yield f"ss.{name}"
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="ss"), attr="made_tasks"), attr=name):
                if name not in slipstream.made_tasks.__all__:
                    yield f"ss.made_tasks.{name}"
            case ast.Constant(value=str() as written) if NAMED.fullmatch(written):
                if not written.startswith("slipstream.recipes."):
                    yield f'"{written}"'
            case ast.Call(func=ast.Name(id="__import__") | ast.Attribute(attr="import_module")):
                yield f"line {node.lineno}: an import by name"


def is_allowed(module: str) -> bool:
    return module == "slipstream" or module.startswith("slipstream.recipes.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RECIPES)))
def test_a_recipe_uses_the_public_api_alone(path: Path) -> None:
    assert list(offences(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import slipstream.types",
        "import slipstream.types as ss",
        "from slipstream.types import Task",
        "from slipstream import config",
        "from slipstream.recipes import find_recipe",
        "from .tasks import demo_tasks",
        "def f():\n    from slipstream.tools import Toolset",
        "import slipstream as ss\nss.types.Task",
        "import slipstream as ss\nss._HOME",
        "import slipstream as ss\nss.made_tasks.tier_of",
        'SOURCE = "slipstream.tasks.factory.parts:read_part"',
        "import importlib\nimportlib.import_module(name)",
    ],
)
def test_what_is_not_public_is_found(line: str) -> None:
    assert len(list(offences(line))) == 1


def test_public_names_and_other_recipes_are_allowed() -> None:
    text = "import slipstream as ss\nfrom slipstream.recipes.demo.tasks import FOLDERS\nss.Task\nss.made_tasks.level_of"
    assert list(offences(text + '\nX = "slipstream.recipes.demo.tasks:demo_tasks"')) == []
    assert len(FILES) > 10

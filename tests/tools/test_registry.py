from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.tools import TOOLS, Tool, resolve

from .support import Probe

MODULE = '''
from __future__ import annotations
from dataclasses import dataclass
from slipstream.tools import Effect, tool

@dataclass
class Setting:
    size: int

@tool(effect=Effect.PURE)
async def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)

async def plain(number: int) -> str:
    """Not a tool."""
    return ""
'''


@pytest.mark.parametrize("name", TOOLS)
def test_every_built_in_tool_is_there_under_its_name(name: str) -> None:
    found = resolve(name)
    assert isinstance(found, Tool)
    assert found.spec.name == name


def test_a_registry_of_ones_own_may_hold_tools_and_paths() -> None:
    mine = Probe("mine")
    assert resolve("mine", {**TOOLS, "mine": mine}) is mine
    assert resolve("shell", {"shell": "slipstream.tools.bash:bash"}).spec.name == "bash"


def test_a_tool_of_a_file_is_loaded_once(tmp_path: Path) -> None:
    path = tmp_path / "my_tools.py"
    path.write_text(MODULE)
    found = resolve(f"{path}:double")
    assert found.spec.description == "Double a number."
    assert resolve(f"{path}:double") is found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "read_fil",
            r'there is no tool "read_fil" \(did you mean "read_file"\?\): use one of bash, condense, edit, finish',
        ),
        (":x", 'tool ":x": write package.module:attribute'),
        ("slipstream.tools.bash:", "write package.module:attribute"),
        ("no_such_package.tools:x", "there is no module no_such_package"),
        ("slipstream.tools.bash:bsh", r'slipstream.tools.bash has no "bsh" \(did you mean "bash"\?\)'),
        ("slipstream.tools.bash:Bash", 'tool "slipstream.tools.bash:Bash" is a type, not a tool'),
        ("{folder}/none.py:x", r"there is no file .*/none.py"),
        ("{folder}/broken.py:x", "importing .*broken.py failed: ZeroDivisionError"),
        ("{folder}/good.py:plain", r"is a function, not a tool: define it with @tool or class_tool"),
    ],
)
def test_names_that_lead_nowhere(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "good.py").write_text(MODULE)
    with pytest.raises(ConfigError, match=said):
        resolve(name.replace("{folder}", str(tmp_path)))

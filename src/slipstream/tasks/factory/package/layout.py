"""Finds the layout of an unpacked source distribution: its modules, sources, tests and requirements.

Invariants: files are read and parsed, never run.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.tasks.factory.package.metadata import Metadata, read_metadata
from slipstream.tasks.factory.package.sources import Skipped, normal_name

ROOTS = ("src", "lib", ".", "Lib", "python")
NOT_PACKAGES = {
    "test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "bench", "tools",
    "scripts", "build", "dist", "setup", "conftest", "noxfile", "tasks", "ci", "contrib", "perf", "release", "fabfile",
    "versioneer",
}  # fmt: skip
PROJECT_OF = {
    "yaml": "pyyaml", "dateutil": "python-dateutil", "attr": "attrs", "bs4": "beautifulsoup4", "PIL": "pillow",
    "pkg_resources": "setuptools", "_pytest": "pytest", "docutils": "docutils", "freezegun": "freezegun",
}  # fmt: skip
"""Projects whose name differs from their module's."""
TEST_FILE = re.compile(r"(test_.*|.*_tests?|tests?)\.py")
TEST_FOLDERS = ("tests", "test", "testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a source distribution. All paths are relative to its folder."""

    name: str
    version: str
    root: str
    """The folder on Python's search path; `.` for the top folder."""
    modules: tuple[str, ...]
    """Top-level module names."""
    sources: tuple[str, ...]
    """The package's own Python files, without tests."""
    tests: tuple[str, ...]
    """Python files with tests."""
    requires: tuple[str, ...]
    """The requirements that the distribution declares."""
    test_requires: tuple[str, ...]
    """Projects that its tests import in addition."""


def test_folder(test: str) -> str | None:
    """The outermost folder of tests that a test file is in, if there is one."""
    folders = Path(test).parent.parts
    depth = next((number for number, part in enumerate(folders, 1) if part in TEST_FOLDERS), None)
    return None if depth is None else "/".join(folders[:depth])


def read_layout(folder: Path, *, name: str, version: str) -> Layout:
    """Raises Skipped if there is nothing to import or to test."""
    metadata = read_metadata(folder)
    name = metadata.name or name
    root, modules = _modules(folder, name)
    version = metadata.version or _written_version(folder, root, modules) or version
    sources, tests = _files(folder, root, modules)
    if not tests:
        raise Skipped("its source distribution has no tests")
    if not sources:
        raise Skipped("it has no Python source of its own")
    imported = _imported(folder, [*tests, *_supports(folder, tests)], {*modules})
    return Layout(
        name=name,
        version=version,
        root=root,
        modules=modules,
        sources=tuple(sources),
        tests=tuple(tests),
        requires=metadata.requires or (),
        test_requires=tuple(_test_requires(metadata, imported)),
    )


def _test_requires(metadata: Metadata, imported: list[str]) -> Iterator[str]:
    """What is declared for tests, and what they import in addition. The test runner is chosen elsewhere."""
    declared = {project_of(one): one for one in metadata.test_requires}
    declared.pop("pytest", None)
    yield from declared.values()
    yield from (one for one in imported if normal_name(one) not in declared)


def project_of(requirement: str) -> str:
    """The normalised name in a requirement such as `hypothesis[zoneinfo]>=6; python_version > "3.8"`."""
    named = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return normal_name(named[0]) if named else ""


def _written_version(folder: Path, root: str, modules: tuple[str, ...]) -> str:
    """The `__version__` that a module of the package sets to plain text."""
    for module in modules:
        for name in (f"{module}/__init__.py", f"{module}/__version__.py", f"{module}/_version.py", f"{module}.py"):
            place = folder / root / name
            text = place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""
            if found := re.search(r"""^__version__\s*=\s*["'](\d[\w.+!]*)["']""", text, re.MULTILINE):
                return found[1]
    return ""


def _modules(folder: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """The folder of the top-level modules, and their names."""
    for root in ROOTS:
        place = folder / root
        if not place.is_dir():
            continue
        found = [one.parent.name for one in place.glob("*/__init__.py")]
        found += [one.stem for one in place.glob("*.py")]
        found = sorted({one for one in found if one not in NOT_PACKAGES and not TEST_FILE.fullmatch(f"{one}.py")})
        wanted = normal_name(name).replace("-", "_")
        short = wanted.removeprefix("python_").removeprefix("py_")
        named = [one for one in found if one.lower() in (wanted, short)]
        if root in ("src", "lib") and found:
            return root, tuple(found)
        if named:
            return root, tuple(named)
        packages = [one for one in found if (place / one / "__init__.py").is_file()]
        if len(packages) == 1 or (root != "." and packages):
            return root, tuple(packages)
    raise Skipped("it has no Python module or package of its name to import")


def _files(folder: Path, root: str, modules: tuple[str, ...]) -> tuple[list[str], list[str]]:
    own = [folder / root / f"{module}.py" for module in modules]
    for module in modules:
        own += sorted((folder / root / module).rglob("*.py"))
    sources, tests = [], []
    for path in own:
        relative = path.relative_to(folder)
        if not path.is_file():
            continue
        in_tests = any(part in TEST_FOLDERS for part in relative.parent.parts)
        if in_tests or TEST_FILE.fullmatch(path.name) or path.name == "conftest.py":
            if TEST_FILE.fullmatch(path.name):
                tests.append(relative.as_posix())
        else:
            sources.append(relative.as_posix())
    for top in sorted(folder.iterdir()):
        if top.is_dir() and top.name in TEST_FOLDERS:
            tests += [path.relative_to(folder).as_posix() for path in sorted(top.rglob("*.py")) if _is_test(path)]
        elif top.is_file() and TEST_FILE.fullmatch(top.name):
            tests.append(top.name)
    return sources, sorted(set(tests))


def _is_test(path: Path) -> bool:
    return TEST_FILE.fullmatch(path.name) is not None


def _supports(folder: Path, tests: list[str]) -> list[str]:
    """Python files beside the tests, which tests may share."""
    folders = {(folder / test).parent for test in tests} - {folder}
    found = {path.relative_to(folder).as_posix() for place in folders for path in place.glob("*.py")}
    return sorted(found - set(tests))


def _imported(folder: Path, files: list[str], own: set[str]) -> list[str]:
    """The projects whose modules are imported at the top level of files."""
    local = {part for file in files for part in (*Path(file).parent.parts, Path(file).stem)}
    names: set[str] = set()
    for file in files:
        try:
            tree = ast.parse((folder / file).read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in tree.body:
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    names -= {*sys.stdlib_module_names, *own, *local, "pytest", "__future__"}
    return sorted({PROJECT_OF.get(one, one) for one in names})

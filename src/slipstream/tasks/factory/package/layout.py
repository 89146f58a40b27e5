"""Finds the layout of an unpacked source distribution: its modules, sources, tests and requirements.

Invariants: files are read and parsed, never run.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

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
    facts = _facts(folder)
    name, version = facts.get("Name", "") or name, facts.get("Version", "") or version
    root, modules = _modules(folder, name)
    sources, tests = _files(folder, root, modules)
    if not tests:
        raise Skipped("its source distribution has no tests")
    if not sources:
        raise Skipped("it has no Python source of its own")
    return Layout(
        name=name,
        version=version,
        root=root,
        modules=modules,
        sources=tuple(sources),
        tests=tuple(tests),
        requires=tuple(_requires(facts)),
        test_requires=tuple(_imported(folder, [*tests, *_supports(folder, tests)], {*modules})),
    )


class _Facts(dict[str, str]):
    requires: list[str]


def _facts(folder: Path) -> _Facts:
    """The headers of PKG-INFO, or else the fields of pyproject.toml."""
    facts = _Facts()
    facts.requires = []
    place = folder / "PKG-INFO"
    if place.is_file():
        read = HeaderParser().parsestr(place.read_text(encoding="utf-8", errors="replace"))
        facts.update({key: str(read[key]) for key in ("Name", "Version") if read[key]})
        facts.requires = [str(value) for value in read.get_all("Requires-Dist", [])]
        return facts
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return facts
    facts.update({key.title(): str(project[key]) for key in ("name", "version") if isinstance(project.get(key), str)})
    facts.requires = [str(one) for one in project.get("dependencies", [])]
    return facts


def _requires(facts: _Facts) -> Iterator[str]:
    for one in facts.requires:
        if not re.search(r"\bextra\s*==", one):
            yield one


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

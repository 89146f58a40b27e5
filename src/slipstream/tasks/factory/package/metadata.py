"""What a project declares about itself: its name, its version, what it requires. Files are read and parsed, never run.

Input: the folder of a source distribution or of a checkout. Output: a Metadata; fields that are computed when a package
is built stay empty.
"""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

TEST_GROUPS = ("test", "tests", "testing")
"""Names of extras and of dependency groups with what tests need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    name: str = ""
    version: str = ""
    requires: tuple[str, ...] | None = None
    """None if nothing is said of them."""
    test_requires: tuple[str, ...] = ()


def read_metadata(folder: Path) -> Metadata:
    """From PKG-INFO, or else from pyproject.toml, setup.cfg and setup.py, in this order."""
    if (folder / "PKG-INFO").is_file():
        return _of_distribution(folder / "PKG-INFO")
    found = (_of_pyproject(folder), _of_setup_cfg(folder), _of_setup_py(folder))
    return Metadata(
        name=next((one.name for one in found if one.name), ""),
        version=next((one.version for one in found if one.version), ""),
        requires=next((one.requires for one in found if one.requires is not None), ()),
        test_requires=next((one.test_requires for one in found if one.test_requires), ()),
    )


def _of_distribution(place: Path) -> Metadata:
    read = HeaderParser().parsestr(place.read_text(encoding="utf-8", errors="replace"))
    requires = (str(value) for value in read.get_all("Requires-Dist", []))
    return Metadata(
        name=str(read["Name"] or ""),
        version=str(read["Version"] or ""),
        requires=tuple(one for one in requires if not re.search(r"\bextra\s*==", one)),
    )


def _of_pyproject(folder: Path) -> Metadata:
    try:
        read = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Metadata()
    project = _table(read.get("project"))
    groups = {**_table(project.get("optional-dependencies")), **_table(read.get("dependency-groups"))}
    return Metadata(
        name=_text(project.get("name")),
        version=_text(project.get("version")),
        requires=tuple(_texts(project["dependencies"])) if "dependencies" in project else None,
        test_requires=tuple(one for name in TEST_GROUPS for one in _texts(groups.get(name))),
    )


def _of_setup_cfg(folder: Path) -> Metadata:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string((folder / "setup.cfg").read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return Metadata()

    def lines(section: str, name: str) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, parser.get(section, name, fallback="").splitlines())))

    version = parser.get("metadata", "version", fallback="")
    return Metadata(
        name=parser.get("metadata", "name", fallback=""),
        version="" if ":" in version else version,
        requires=lines("options", "install_requires") or None,
        test_requires=tuple(one for name in TEST_GROUPS for one in lines("options.extras_require", name)),
    )


def _of_setup_py(folder: Path) -> Metadata:
    try:
        tree = ast.parse((folder / "setup.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return Metadata()
    known = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == "setup"]
    given = {one.arg: one.value for call in calls for one in call.keywords if one.arg}
    values = {name: _literal(known.get(node.id, node) if isinstance(node, ast.Name) else node)
              for name, node in given.items()}  # fmt: skip
    return Metadata(
        name=_text(values.get("name")),
        version=_text(values.get("version")),
        requires=tuple(_texts(values.get("install_requires"))),
        test_requires=tuple(_texts(values.get("tests_require"))),
    )


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    for one in value if isinstance(value, list | tuple) else ():
        if isinstance(one, str):
            yield one

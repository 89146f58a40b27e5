"""A small repository with pytest beside it, for gradings in real sandboxes."""

import asyncio
import compileall
import functools
import importlib
import py_compile
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.graders.base import GradeContext
from slipstream.graders.tests import TestsGrader
from slipstream.patches.apply import Entry, make_patch
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import Artifact, Grading, SandboxLimits, SandboxSpec, Verdict

BROKEN = """def total(values):
    result = 0
    for value in values[1:]:
        result += value
    return result


def mean(values):
    return total(values) / len(values)


def largest(values):
    return max(values)
"""
FIXED = BROKEN.replace("values[1:]", "values")
TESTS = """import json
import unittest

import pytest

from calc import largest, mean, total


@pytest.fixture
def values():
    return [1, 2, 3]


def test_total(values):
    assert total(values) == 6


@pytest.mark.parametrize("number", [2, 4])
def test_mean(number):
    assert mean([number, number]) == number


def test_largest(values):
    assert largest(values) == 3


class TestJson(unittest.TestCase):
    def test_written(self):
        self.assertEqual(json.dumps([largest([1, 2])]), "[2]")
"""
REPOSITORY = {
    "calc/__init__.py": BROKEN,
    "tests/test_calc.py": TESTS,
    "tests/test_other.py": "from calc import largest\n\n\ndef test_one():\n    assert largest([1]) == 1\n",
    "pyproject.toml": '[project]\nname = "calc"\n\n[tool.pytest.ini_options]\naddopts = "-q"\n',
    "setup.cfg": "[metadata]\nname = calc\n",
}
FAIL_TO_PASS = [
    "tests/test_calc.py::test_total",
    "tests/test_calc.py::test_mean[2]",
    "tests/test_calc.py::test_mean[4]",
]
PASS_TO_PASS = [
    "tests/test_calc.py::test_largest",
    "tests/test_calc.py::TestJson::test_written",
    "tests/test_other.py::test_one",
]
SPEC: dict[str, Any] = {
    "command": ["python3"],
    "fail_to_pass": FAIL_TO_PASS,
    "pass_to_pass": PASS_TO_PASS,
    "drop": ["tests/**"],
    "timeout_s": 30.0,
}
ENV = {"PYTHONPATH": "/work:/work/.deps"}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def add_pytest(folder: Path) -> None:
    """Copy pytest, and what it needs, to where a sandbox can import it from."""
    shutil.copytree(_compiled_pytest().name, folder, dirs_exist_ok=True)


@functools.cache
def _compiled_pytest() -> tempfile.TemporaryDirectory[str]:
    """Made once in a process, since compiling takes seconds."""
    made = tempfile.TemporaryDirectory(prefix="slipstream-graded-pytest-")
    folder = Path(made.name)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging"):
        source = Path(str(importlib.import_module(name).__file__)).parent
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        if name == "pluggy":  # which looks up its own version
            (info,) = source.parent.glob("pluggy-*.dist-info")
            shutil.copytree(info, folder / info.name)
    shutil.copy(str(importlib.import_module("py").__file__), folder / "py.py")
    compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    folder.chmod(0o755)  # copied with the rest
    return made


def make_tree(folder: Path) -> Path:
    """The repository, with pytest in it, where sandboxes may read it."""
    for place in (folder, *list(folder.parents)[:2]):
        place.chmod(0o755)
    write_files(folder, REPOSITORY)
    add_pytest(folder / ".deps")
    return folder


def patch_of(new: Mapping[str, str | Entry | None], old: Mapping[str, str] = REPOSITORY) -> bytes:
    """What turns the files of a repository into others."""

    def entry(what: str | Entry | None) -> Entry | None:
        return Entry(data=what.encode()) if isinstance(what, str) else what

    return make_patch({path: entry(old.get(path)) for path in new}, {path: entry(what) for path, what in new.items()})


def sandbox_of(tree: Path, **more: Any) -> SandboxSpec:
    limits = SandboxLimits(memory_mb=256, processes=64, disk_mb=64)
    return SandboxSpec(**{"tree": str(tree), "env": ENV, "limits": limits, **more})


def grade_all(
    sandbox: SandboxSpec, works: Mapping[str, tuple[Mapping[str, Any], bytes]], provider: SandboxProvider | None = None
) -> dict[str, Verdict]:
    """Grade patches, each under a grading of its own, two at a time."""
    provider = provider or LocalProvider()

    async def main() -> dict[str, Verdict]:
        room = asyncio.Semaphore(2)

        async def one(spec: Mapping[str, Any], patch: bytes) -> Verdict:
            context = GradeContext(provider=provider, sandbox=sandbox)
            async with room:
                return await TestsGrader().grade(Grading(kind="tests", spec=spec), Artifact(patch=patch), context)

        try:
            verdicts = await asyncio.gather(*(one(spec, patch) for spec, patch in works.values()))
        finally:
            await provider.aclose()
        return dict(zip(works, verdicts, strict=True))

    return asyncio.run(main())


def grade(sandbox: SandboxSpec, patch: bytes, provider: SandboxProvider | None = None, **changed: Any) -> Verdict:
    return grade_all(sandbox, {"": ({**SPEC, **changed}, patch)}, provider)[""]

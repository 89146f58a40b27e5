"""Packages that yield no tasks are skipped, with a sentence that says why."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tiny_package import fetch_tiny, write_source

from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.tasks.factory.make import make_tasks
from slipstream.tasks.factory.package.fetch import Package
from slipstream.tasks.factory.package.install import (
    Interpreter,
    add_interpreter,
    built_wheel,
    find_interpreter,
    run_inside,
)
from slipstream.tasks.factory.package.runner import first_error, open_workers, spec_of
from slipstream.tasks.factory.package.sources import Requirement, Skipped
from slipstream.tasks.factory.package.suite import Suite, find_suite

needs_sandboxes = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

NETWORK = """import socket

import pytest


@pytest.mark.parametrize("number", range(8))
def test_number(number):
    socket.create_connection(("192.0.2.1", 80), timeout=0.2)
"""
HOUR = "import time\n\n\ndef test_slow():\n    time.sleep(3600)\n"
UNLOADED = "import nothing_of_that_name\n"
BACKEND = """import sys


def build_wheel(place):
    print("gcc -c missing.c", file=sys.stderr)
    print("cc1: fatal error: missing.c: No such file or directory", file=sys.stderr)
    sys.exit("the command gcc failed with a long list of arguments")
"""


T = TypeVar("T")


def with_provider(use: Callable[[SandboxProvider], Awaitable[T]]) -> T:
    async def main() -> T:
        provider = LocalProvider()
        try:
            return await use(provider)
        finally:
            await provider.aclose()

    return asyncio.run(main())


@needs_sandboxes
def test_tests_that_cannot_be_used_are_a_reason(tmp_path: Path) -> None:
    source = write_source(tmp_path / "tinypack-1.2")
    for name, text in (("network", NETWORK), ("hour", HOUR), ("unloaded", UNLOADED)):
        (source / f"tests/test_{name}.py").write_text(text)

    async def reasons(provider: SandboxProvider) -> dict[str, str]:
        wanted = Requirement(name="tinypack", version="1.2", path=source)
        package = await fetch_tiny(wanted, tmp_path / "trees", tmp_path, provider=provider)
        found: dict[str, str] = {}
        async with open_workers(provider, package.spec, num_at_once=2) as workers:
            for name in ("network", "hour", "unloaded"):
                layout = replace(package.layout, tests=(f"tests/test_{name}.py",))
                limit_s = 1.0 if name == "hour" else 60.0
                with pytest.raises(Skipped) as raised:
                    await find_suite(Package(layout=layout, tree=package.tree), workers, timeout_s=limit_s)
                found[name] = str(raised.value)
        return found

    assert with_provider(reasons) == {
        "network": "only 0 of its 8 tests always pass without a network; 5 are needed",
        "hour": "its tests take more than 1 s: raise the limit, or leave the package out",
        "unloaded": "none of its tests can be loaded in a sandbox without a network; tests/test_unloaded.py: "
        "ModuleNotFoundError: No module named 'nothing_of_that_name'",
    }


@needs_sandboxes
def test_a_test_that_hangs_is_left_out_and_the_others_are_kept(tmp_path: Path) -> None:
    source = write_source(tmp_path / "tinypack-1.2")
    (source / "tests/test_hour.py").write_text(f"{HOUR}\n\ndef test_quick():\n    pass\n")

    async def suite(provider: SandboxProvider) -> Suite:
        wanted = Requirement(name="tinypack", version="1.2", path=source)
        package = await fetch_tiny(wanted, tmp_path / "trees", tmp_path, provider=provider)
        async with open_workers(provider, package.spec, num_at_once=3) as workers:
            return await find_suite(package, workers, test_timeout_s=10.0)

    found = with_provider(suite)
    assert (
        "tests/test_hour.py::test_quick" in found.tests and "tests/test_core.py::TestCounter::test_adds" in found.tests
    )
    assert "tests/test_hour.py::test_slow" not in found.tests


@needs_sandboxes
def test_the_hosts_packages_are_not_seen(tmp_path: Path) -> None:
    source = write_source(tmp_path / "tinypack-1.2")
    code = (
        "import sys; print(sys.prefix, [one for one in sys.path if one.endswith('-packages') and one[:5] != '/work'])"
    )

    async def told(provider: SandboxProvider) -> str:
        wanted = Requirement(name="tinypack", version="1.2", path=source)
        package = await fetch_tiny(wanted, tmp_path / "trees", tmp_path, provider=provider)
        add_interpreter(package.tree, await find_interpreter(provider))
        _, output = await run_inside(package.spec, provider, ["python3", "-c", code])
        return output.strip()

    assert with_provider(told) == "/work/.deps []"


@pytest.mark.parametrize(("version", "is_needed"), [((3, 10), True), ((3, 11), False)])
def test_what_the_runner_needs_depends_on_the_interpreter(version: tuple[int, int], is_needed: bool) -> None:
    needed = Interpreter(path="/usr/bin/python3", version=version).runners_own
    assert ("tomli" in needed) is is_needed and "pluggy" in needed and "colorama" not in needed


@needs_sandboxes
def test_a_package_that_does_not_build_is_skipped_with_the_compilers_words(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for place in (tree, *list(tree.parents)[:2]):
        place.chmod(0o755)
    (tree / "backend.py").write_text(BACKEND)
    asked = {"build-backend": "backend", "backend-path": ["."]}
    with pytest.raises(Skipped) as raised:
        with_provider(lambda provider: built_wheel(spec_of(tree, "."), asked, provider))
    assert str(raised.value) == (
        "it does not build without a network: cc1: fatal error: missing.c: No such file or directory"
    )


def test_the_last_line_is_told_where_no_line_speaks_of_an_error() -> None:
    assert first_error("one\ntwo\n\n") == "two"
    assert first_error("") == "no output"


def test_a_package_that_is_skipped_is_in_the_report_and_the_others_go_on(tmp_path: Path) -> None:
    async def fetch(wanted: Requirement, trees: Path, downloads: Path, *, provider: SandboxProvider) -> Package:
        raise Skipped(f"there is no {wanted.name}")

    async def make(provider: SandboxProvider) -> list[tuple[str, str]]:
        report = await make_tasks(["one==1", "two==2"], tmp_path / "set", provider=provider, fetcher=fetch)
        return [(package.name, package.skipped) for package in report.packages]

    assert with_provider(make) == [("one==1", "there is no one"), ("two==2", "there is no two")]
    told = json.loads((tmp_path / "set/report.json").read_text())
    assert (told["num_passed"], told["packages"][1]["skipped"]) == (0, "there is no two")

"""Images laid out as those of the public data sets: the agent's shell and the grader enter the environment that such an
image activates only in root's `.bashrc`, and work is judged there."""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
from pathlib import Path

import pytest
from containers import PYTHON, needs_engine
from graded_tree import add_pytest
from stand_in import BROKEN, FIX, NEW_TESTS, OLD_TESTS, R2EGYM, SWEBENCH, write_rows

from slipstream.errors import SandboxError
from slipstream.graders.base import GradeContext
from slipstream.graders.registry import find_grader
from slipstream.sandbox.base import Changes
from slipstream.sandbox.oci.provider import OciProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.swe.r2egym import read_r2egym
from slipstream.tasks.swe.swebench import read_swebench
from slipstream.types import Artifact, Task

pytestmark = needs_engine

ACTIVATE = "export PATH=/opt/miniconda3/envs/testbed/bin:$PATH CONDA_DEFAULT_ENV=testbed\n"


def environment(folder: Path) -> None:
    """A Python environment of its own, with pytest; nothing else in the image has it."""
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    add_pytest(packages)
    shutil.copytree(Path(str(importlib.import_module("pygments").__file__)).parent, packages / "pygments")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")


def image(folder: Path, kind: str) -> str:
    """A Dockerfile of an image in the layout of a data set."""
    testbed = folder / "testbed"
    for path, text in {"calc/__init__.py": BROKEN, "tests/test_calc.py": OLD_TESTS}.items():
        (testbed / path).parent.mkdir(parents=True)
        (testbed / path).write_text(text)
    lines = [f"FROM {PYTHON}", "COPY testbed /testbed"]
    if kind == "conda":
        environment(folder / "env")
        (folder / "activate").write_text(ACTIVATE)
        (folder / "bashrc").write_text("source /opt/miniconda3/bin/activate\n")
        lines += [
            "COPY env /opt/miniconda3/envs/testbed",
            "COPY activate /opt/miniconda3/bin/activate",
            "COPY bashrc /root/.bashrc",
        ]
    else:
        environment(testbed / ".venv")
        (folder / "r2e_tests").mkdir()
        (folder / "r2e_tests/test_1.py").write_text(NEW_TESTS)
        (testbed / "run_tests.sh").write_text(".venv/bin/python -W ignore -m pytest -rA r2e_tests\n")
        lines += ["COPY r2e_tests /r2e_tests"]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    return f"dockerfile:{folder}"


async def played(provider: OciProvider, task: Task, script: str) -> tuple[str, float]:
    """What the agent's shell prints, and what its work is worth."""
    assert task.sandbox is not None
    sandbox = await open_sandbox(provider, task.sandbox, timeout_s=120)
    try:
        shell = await sandbox.shell()
        said = (await shell.run(script, timeout_s=60)).output.text()
        assert isinstance(sandbox, Changes)
        patch = (await sandbox.changes(task.patch_of)).patch
    finally:
        await sandbox.aclose()
    context = GradeContext(provider=provider, sandbox=task.sandbox)
    verdict = await find_grader("tests").grade(task.grading, Artifact(patch=patch), context)
    return said, verdict.reward


@pytest.mark.parametrize(
    ("kind", "more", "prefix"),
    [
        ("conda", {}, "/opt/miniconda3/envs/testbed"),
        ("conda", {"parser": "log"}, "/opt/miniconda3/envs/testbed"),
        ("conda", {"entry": "source /opt/miniconda3/bin/activate"}, "/opt/miniconda3/envs/testbed"),
        ("venv", {}, "/testbed/.venv"),
        ("venv", {"parser": "log"}, "/testbed/.venv"),
    ],
)
def test_agent_and_grader_are_in_the_images_environment(
    tmp_path: Path, kind: str, more: dict[str, str], prefix: str
) -> None:
    read, row = (read_swebench, SWEBENCH) if kind == "conda" else (read_r2egym, R2EGYM)
    if more.get("parser") == "log" and kind == "conda":  # its command is a program of the environment
        script = tmp_path / "run.sh"
        script.write_text("cd /testbed; python -m pytest -rA {tests}\n")
        more = {**more, "eval_script": str(script)}
    rows = write_rows(tmp_path / "rows.jsonl", json.loads(json.dumps(row)))
    (task,) = read(path=rows, base=image(tmp_path, kind), timeout_s=60.0, **more)

    async def main() -> None:
        provider = OciProvider()
        try:
            look = "python -c 'import sys, pytest; print(sys.prefix)'; python -m pytest -q -p no:cacheprovider tests"
            said, reward = await played(provider, task, f"{look}; {FIX}")
            assert said.startswith(f"{prefix}\n") and "1 passed" in said
            assert reward == 1.0
            assert await played(provider, task, "true") == ("", 0.0)
        finally:
            await provider.aclose()

    asyncio.run(main())


def test_an_image_without_the_environment_is_named(tmp_path: Path) -> None:
    (task,) = read_swebench(path=write_rows(tmp_path / "rows.jsonl", SWEBENCH), base=PYTHON)
    assert task.sandbox is not None
    spec = task.sandbox

    async def main() -> None:
        provider = OciProvider()
        try:
            with pytest.raises(
                SandboxError, match=rf"{PYTHON} cannot be entered.*there is no `python`.*tasks.args.python"
            ):
                await open_sandbox(provider, spec, timeout_s=120)
        finally:
            await provider.aclose()

    asyncio.run(main())

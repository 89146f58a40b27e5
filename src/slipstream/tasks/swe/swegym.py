"""Reads SWE-Gym. The format is SWE-bench's; images, repositories and commands are its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from slipstream.tasks.swe.options import CONDA, RowContext, reader_of
from slipstream.tasks.swe.rows import Row
from slipstream.tasks.swe.swebench import Repo, grading_by_repo, instance_task, known_repo, versions
from slipstream.types import Task

_PATH = ("export PYTHONPATH=${PYTHONPATH:-}:$(pwd)",)
REPOS: Mapping[str, Repo] = {
    "python/mypy": Repo(
        command="pytest -n0 -rA -k", of_version=versions("1.7 1.8 1.9 1.10 1.11", command="pytest -rA -k")
    ),
    "getmoto/moto": Repo(command="pytest -n0 -rA", install="python -m pip install -e ."),
    "conan-io/conan": Repo(command="pytest -n0 -rA", install="true", before=_PATH),
    "dask/dask": Repo(command="pytest -n0 -rA  --color=no", install="python -m pip install --no-deps -e ."),
    "project-monai/monai": Repo(install="python setup.py develop"),
    "iterative/dvc": Repo(install='python -m pip install -e ".[tests,dev,all_remotes,all,testing]"'),
    "bokeh/bokeh": Repo(command="pytest -rA -n0"),
    "modin-project/modin": Repo(command="pytest -n0 -rA"),
    "hypothesisworks/hypothesis": Repo(
        command="pytest -n0 -rA --tb=no --no-header", install="python -m pip install -e hypothesis-python/"
    ),
    "pydantic/pydantic": Repo(
        parser="pytest_pydantic",
        command="pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
    ),
    "pandas-dev/pandas": Repo(
        command="pytest -rA --tb=long",
        install="python -m pip install -ve . --no-build-isolation -Ceditable-verbose=true",
    ),
    "facebookresearch/hydra": Repo(command="pytest -rA --tb=long", install="pip install -e ."),
}
"""By name in lower case. Only the repository itself is installed again before the tests: its requirements are in the
image, and a sandbox has no network to download them."""


def image_of(instance_id: str) -> str:
    return f"xingyaoww/sweb.eval.x86_64.{instance_id}:latest".replace("__", "_s_").lower()


def swegym_task(row: Row, context: RowContext) -> Task:
    row = Row(where=row.where, fields={**row.fields, "repo": row.text("repo").lower()})
    cases = _mypy_cases(row) if row.text("repo") == "python/mypy" else None
    grading = grading_by_repo(row, known_repo(row, REPOS, context), context, cases)
    return instance_task(row, context, image=image_of(row.text("instance_id")), grading=grading)


read_swegym = reader_of(swegym_task, images=CONDA)


def _mypy_cases(row: Row) -> list[str]:
    """mypy's tests are cases in data files, chosen by their names."""
    names = re.findall(r"\[case ([^\]]+)\]", row.text("test_patch"))
    return [shlex.quote(" or ".join(dict.fromkeys(names)))]

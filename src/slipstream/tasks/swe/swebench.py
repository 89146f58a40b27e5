"""Reads SWE-bench, Verified and Lite.

Rows of version 5 name their image, test script and parser; for older rows these follow from the repository and its
version, by the table below, which lists what the benchmark's own harness runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slipstream.graders.testing.logs import PARSERS
from slipstream.names import did_you_mean
from slipstream.tasks.swe.building import (
    END,
    NO_LATER_HISTORY,
    START,
    changed_paths,
    fail_to_pass,
    ignoring_failure,
    in_testbed,
    kept_settings,
    make_task,
    reported,
    script_for,
    test_patterns,
    with_exit_code,
)
from slipstream.tasks.swe.options import CONDA, ParserChoice, RowContext, log_parser_named, reader_of
from slipstream.tasks.swe.rows import Row
from slipstream.types import Json, Task

NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Files of a test patch that are not tests."""
INSTALL = "python -m pip install -e ."
RUNTESTS = "./tests/runtests.py --verbosity 2"
UTF8 = ("export LANG=en_US.UTF-8", "export LC_ALL=en_US.UTF-8", "export LANGUAGE=en_US:en")

PARSER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("pytest", "astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pytest_options", "pydicom", "requests", "pylint"), "pytest_short_options"),
    **dict.fromkeys(("pytest_v2", "astropy", "scikit", "sphinx"), "pytest_any_order"),
    "matplotlib": "pytest_mouse_buttons",
    "django": "django",
    "seaborn": "seaborn",
    "sympy": "sympy",
}
"""By the names of the `swebench` package, without `parse_log_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repo:
    """How a repository's tests are run."""

    parser: str = "pytest"
    command: str = "pytest -rA"
    install: str = INSTALL
    """Run again on the work, before the tests."""
    before: tuple[str, ...] = ()
    """Run before the tests, in the same shell."""
    pytest: str | None = None
    """The arguments of pytest, where the command is not pytest's own but runs it."""
    of_version: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What differs in some versions."""

    @property
    def pytest_arguments(self) -> str | None:
        """What pytest is given beside the tests; None if the tests are not run by pytest."""
        return self.pytest if not self.command.startswith("pytest ") else self.command.removeprefix("pytest ")

    def at(self, version: str) -> Repo:
        changes = self.of_version.get(version, {})
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]


def versions(*names: str, **changes: object) -> dict[str, Mapping[str, object]]:
    return dict.fromkeys(" ".join(names).split(), changes)


REPOS: Mapping[str, Repo] = {
    "astropy/astropy": Repo(
        parser="pytest_any_order",
        install="python -m pip install -e .[test] --verbose",
        of_version=versions(
            "0.1 0.2 0.3 0.4 1.1 1.2 1.3", command="pytest -rA -vv -o console_output_style=classic --tb=no"
        ),
    ),
    "django/django": Repo(
        parser="django",
        command=f"{RUNTESTS} --settings=test_sqlite --parallel 1",
        of_version={
            **versions("1.4 1.5 1.6", install="python setup.py install"),
            **versions(
                "1.7 1.8 1.10 1.11 2.0 2.1 2.2",
                install="python setup.py install",
                before=(*UTF8, "export PYTHONIOENCODING=utf8"),
            ),
            **versions(
                "1.9",
                command=RUNTESTS,
                install="python setup.py install",
                before=(*UTF8, "export PYTHONIOENCODING=utf8"),
            ),
            **versions(
                "3.0 3.1 3.2",
                before=("sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen", *UTF8),
            ),
        },
    ),
    "matplotlib/matplotlib": Repo(
        parser="pytest_mouse_buttons",
        of_version={
            **versions("3.8 3.9", install='python -m pip install --no-build-isolation -e ".[dev]"'),
            **versions("1.0 1.1 1.2 1.3 1.4 1.5 2.0 2.1 2.2", install="python setup.py build; python setup.py install"),
        },
    ),
    "marshmallow-code/marshmallow": Repo(install="python -m pip install -e '.[dev]'"),
    "mwaskom/seaborn": Repo(
        parser="seaborn",
        command="pytest --no-header -rA",
        install="python -m pip install -e .[dev]",
        of_version=versions("0.11", install=INSTALL),
    ),
    "pallets/flask": Repo(),
    "psf/requests": Repo(parser="pytest_short_options", install="python -m pip install ."),
    "pvlib/pvlib-python": Repo(install="python -m pip install -e .[all]"),
    "pydata/xarray": Repo(),
    "pydicom/pydicom": Repo(parser="pytest_short_options"),
    "pylint-dev/astroid": Repo(),
    "pylint-dev/pylint": Repo(parser="pytest_short_options"),
    "pytest-dev/pytest": Repo(),
    "pyvista/pyvista": Repo(),
    "scikit-learn/scikit-learn": Repo(
        parser="pytest_any_order",
        install="python -m pip install -v --no-use-pep517 --no-build-isolation -e .",
    ),
    "sphinx-doc/sphinx": Repo(
        parser="pytest_any_order",
        command="tox --current-env -epy39 -v --",
        pytest="-rA",
        install="python -m pip install -e .[test]",
    ),
    "sqlfluff/sqlfluff": Repo(),
    "sympy/sympy": Repo(
        parser="sympy",
        command="PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    ),
}


def image_of(instance_id: str) -> str:
    """The harness's name on Docker Hub, which allows neither double underscores nor capitals."""
    return f"swebench/sweb.eval.x86_64.{instance_id}:latest".replace("__", "_1776_").lower()


def swebench_task(row: Row, context: RowContext) -> Task:
    image = row.text("image", "") or row.text("docker_image", "") or image_of(row.text("instance_id"))
    return instance_task(row, context, image=image, grading=_grading(row, context))


read_swebench = reader_of(swebench_task, images=CONDA)


def instance_task(row: Row, context: RowContext, *, image: str, grading: Mapping[str, Json]) -> Task:
    """The task of a row in SWE-bench's format."""
    return make_task(
        row,
        context,
        id=row.text("instance_id"),
        image=image,
        problem=row.text("problem_statement"),
        setup=(NO_LATER_HISTORY,),
        grading=grading,
    )


def _grading(row: Row, context: RowContext) -> dict[str, Json]:
    script = row.text("eval_script", "")
    if not script or context.options.eval_script:
        return grading_by_repo(row, known_repo(row, REPOS, context), context)
    if row.text("eval_type", "pass_and_fail") != "pass_and_fail":
        raise row.wrong(f'the evaluation "{row.text("eval_type")}" is not supported: only pass_and_fail is')
    repo = REPOS.get(row.text("repo"), Repo()).at(row.text("version", ""))
    repo = replace(repo, parser=_parser_of(row, context))
    is_pytest = repo.pytest_arguments is not None and repo.parser not in ("django", "sympy")
    if context.uses_report(row, is_pytest=is_pytest):
        return grading_by_repo(row, repo, context)
    return _grading_by_script(row, script, repo.parser)


def known_repo(row: Row, repos: Mapping[str, Repo], context: RowContext) -> Repo:
    """How the tests of a row's repository are run."""
    name, options = row.text("repo"), context.options
    if name in repos:
        found = repos[name].at(row.text("version", ""))
    elif options.eval_script or options.parser is ParserChoice.REPORT:
        found = Repo()
    else:
        raise row.wrong(
            f'the test command of "{name}" is not known{did_you_mean(name, repos)}; if pytest runs its tests, use '
            "parser=report, else give an eval_script"
        )
    return replace(found, parser=log_parser_named(options.log_parser, PARSER_NAMES)) if options.log_parser else found


def grading_by_repo(row: Row, repo: Repo, context: RowContext, selected: list[str] | None = None) -> dict[str, Json]:
    """The grading of a row without a test script. The grader applies the test patch. `selected` replaces the files as
    what the command runs."""
    files = files_to_test(row.text("test_patch"), row.text("repo")) if selected is None else []
    install = [] if context.options.on_host else [ignoring_failure(in_testbed((*repo.before, repo.install)))]
    common: dict[str, Json] = {
        **_expected(row),
        "test_patch": row.text("test_patch"),
        "setup": [*install],
        "drop": test_patterns(changed_paths(row, "patch")),
    }
    arguments = repo.pytest_arguments
    if context.uses_report(row, is_pytest=arguments is not None):
        chosen = " ".join([arguments or "", *(selected or [])])
        return {**common, **reported(context, chosen, repo.parser, "swebench"), "tests": [*files]}
    words = [*files] if selected is None else selected
    command = " ".join([repo.command, *words])
    script = context.options.own_script(" ".join(words)) or script_for(command, repo.before)
    return {**common, "command": script, "parser": repo.parser, "markers": [START, END]}


def _parser_of(row: Row, context: RowContext) -> str:
    """The log parser that a row of version 5 names, or the reader's."""
    name = context.options.log_parser or row.text("log_parser")
    parser = log_parser_named(name, PARSER_NAMES)
    if parser not in PARSERS:
        raise row.wrong(f'the log parser "{name}" is not supported: only those for Python are')
    return parser


def _grading_by_script(row: Row, script: str, parser: str) -> dict[str, Json]:
    """The grading of a row of version 5. Its script applies the test patch."""
    tests: list[Json] = [f"/{path}" for path in changed_paths(row, "test_patch")]
    return {
        **_expected(row),
        "command": with_exit_code(script),
        "parser": parser,
        "markers": [START, END],
        "drop": [*test_patterns(changed_paths(row, "patch")), *tests],
    }


def _expected(row: Row) -> dict[str, Json]:
    return {
        "rules": "swebench",
        "fail_to_pass": [*fail_to_pass(row)],
        "pass_to_pass": [*row.texts("PASS_TO_PASS")],
        "oracle": row.text("patch", ""),
        "keep": kept_settings(changed_paths(row, "patch")),
    }


def files_to_test(test_patch: str, repo: str) -> list[str]:
    """The arguments of the test command: the files of the test patch; for Django's runner, as modules."""
    files = [path for path in re.findall(r"diff --git a/.* b/(.*)", test_patch) if not path.endswith(NO_TESTS)]
    if repo != "django/django":
        return files
    return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]

"""The options of the readers, and how they change a data set's tasks.

Input: a function that turns a row into a task, and how the data set's images are entered. Output: a reader.
Invariants: agent and grader enter the same environment; rows that are left out are named with the reason.
"""

from __future__ import annotations

import inspect
import logging
import posixpath
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.tasks.swe.checkouts import DEPS, Checkouts, MissingRepository
from slipstream.tasks.swe.rows import Row, read_rows
from slipstream.types import Activation, AgentLimits, SandboxLimits, Task

log = logging.getLogger(__name__)

TESTBED = "/testbed"
DEFAULT_TOOLS = ("bash", "edit", "search", "finish")
LIMITS = SandboxLimits(memory_mb=8192, processes=1024, disk_mb=8192, file_mb=2048)
HOST = "host"
_SOURCES = ("src", "lib")
"""Folders of a repository that may hold its packages."""

CONDA = Activation(
    path=("/opt/miniconda3/envs/testbed/bin", "/opt/miniconda3/condabin"),
    env={"CONDA_DEFAULT_ENV": "testbed", "CONDA_PREFIX": "/opt/miniconda3/envs/testbed"},
    python="/opt/miniconda3/envs/testbed/bin/python",
)
"""The environment of the images of SWE-bench, SWE-Gym and SWE-smith, which activate it only in root's `.bashrc`."""
VENV = Activation(
    path=(f"{TESTBED}/.venv/bin", "/root/.local/bin", "/root/.cargo/bin"),
    env={"VIRTUAL_ENV": f"{TESTBED}/.venv"},
    python=f"{TESTBED}/.venv/bin/python",
)
"""The environment of R2E-Gym's images."""


class ParserChoice(StrEnum):
    """How tests are run and their results read."""

    AUTO = "auto"
    """`report` where the tests are pytest's, else `log`."""
    REPORT = "report"
    """By Slipstream's own reporter. What pytest prints is also read by the data set's rule, for comparison."""
    LOG = "log"
    """By the data set's own command and rule, which believes what is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The options of a reader, beside `path` and `num`."""

    base: str = "{image}"
    """The base of sandboxes; `{image}` is the image's name and `{id}` the task's id."""
    tree: str = ""
    """A folder with the repository's files, used instead of the image's; may contain `{id}`."""
    tools: tuple[str, ...] = DEFAULT_TOOLS
    timeout_s: float = 0.0
    """The time limit of one task's tests; 0 for the data set's default."""
    parser: ParserChoice = ParserChoice.AUTO
    eval_script: str = ""
    """The path of a bash script that runs a row's tests, used for all rows in place of the data set's command. In it,
    `{tests}` stands for the test files. Its log is read by `log_parser`."""
    log_parser: str = ""
    """The name of a log parser, for rows whose repository is unknown or whose parser is to be another."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the agent and the tests."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The agent's: `turns`, `context_tokens`, `tool_seconds`."""
    sandbox_limits: Mapping[str, float] = field(default_factory=dict)
    """`memory_mb`, `processes`, `disk_mb`, `file_mb`, `cpu_s`, `cpus`."""
    setup: tuple[str, ...] = ()
    """More set-up commands for the agent's and the grader's sandboxes."""
    python: str = ""
    """The path of the environment's Python; by default where the data set's images have it."""
    entry: str = ""
    """A bash script that enters the environment, where variables do not suffice."""
    ids: tuple[str, ...] = ()
    """Only these tasks."""
    repos: str = ""
    """A folder with git repositories: tasks run on this machine's programs, without images, on the files of their base
    commit. Rows whose repository or commit is not there are left out."""
    trees: str = "~/.cache/slipstream/trees"
    """Where those files are kept."""
    deps: str = ""
    """With `repos`: a folder of installed Python packages; may contain `{id}`, `{repo}` and `{version}`."""

    @property
    def on_host(self) -> bool:
        return self.base == HOST or bool(self.repos)

    def own_script(self, tests: str) -> str:
        """The text of `eval_script` with the tests in place; empty without one."""
        if not self.eval_script:
            return ""
        try:
            text = Path(self.eval_script).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as raised:
            raise ConfigError(f"eval_script={self.eval_script} cannot be read: {raised}") from None
        return text.replace("{tests}", tests)

    def activation(self, images: Activation) -> Activation:
        """How programs enter the environment of the data set's images, or of what replaces them."""
        found = images
        if self.repos:
            found = Activation(path=(f"{TESTBED}/{DEPS}/bin",), python=f"{TESTBED}/{DEPS}/bin/python")
        elif self.base == HOST:
            found = Activation()
        if self.python:
            found = replace(found, path=(posixpath.dirname(self.python),), python=self.python)
        return replace(found, path=(), env={}, script=self.entry) if self.entry else found

    def agent_limits(self) -> AgentLimits:
        return _limited(AgentLimits(), self.limits, "limits")

    def limits_of_sandbox(self) -> SandboxLimits:
        return _limited(LIMITS, self.sandbox_limits, "sandbox_limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowContext:
    """What a row becomes a task with."""

    options: ReaderOptions
    activation: Activation
    timeout_s: float
    checkouts: Checkouts | None = None

    @property
    def python(self) -> str:
        """The interpreter that runs the tests."""
        return "python" if self.activation.python or self.activation.script else "python3"

    def uses_report(self, row: Row, *, is_pytest: bool) -> bool:
        """Whether a row's tests are run by our own reporter."""
        options = self.options
        if options.parser is ParserChoice.REPORT and not is_pytest:
            raise row.wrong("its tests are not run by pytest, which parser=report needs: use parser=auto or parser=log")
        if options.eval_script and options.parser is not ParserChoice.REPORT:
            return False
        return is_pytest and options.parser is not ParserChoice.LOG

    def tree(self, row: Row, id: str) -> tuple[str, dict[str, str]]:
        """The folder with the row's files, if they are not the image's, and the variables that it needs."""
        if self.checkouts is None:
            return filled(self.options.tree, id=id), row.statuses("env") if row.fields.get("env") else {}
        repo, version = row.text("repo"), row.text("version", "")
        deps = filled(self.options.deps, id=id, repo=repo.replace("/", "__"), version=version)
        folder = self.checkouts.tree(repo, row.text("base_commit"), deps)
        sources = [name for name in _SOURCES if (folder / name).is_dir()]
        paths = [f"{TESTBED}/{name}" for name in sources] + [TESTBED, f"{TESTBED}/{DEPS}"]
        return str(folder), {"PYTHONPATH": ":".join(paths)}


def filled(template: str, **values: str) -> str:
    """A base, tree or folder with its placeholders filled in."""
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError) as raised:
        known = ", ".join(f"{{{name}}}" for name in values)
        raise ConfigError(f"{template!r} may contain {known}, and nothing else in braces: {raised}") from None


Limits = TypeVar("Limits", AgentLimits, SandboxLimits)


def _limited(limits: Limits, changes: Mapping[str, float], name: str) -> Limits:
    known = {one.name: type(getattr(limits, one.name)) for one in fields(limits)}
    for key, value in changes.items():
        if key not in known:
            raise ConfigError(f'there is no "{key}" in {name}{did_you_mean(key, known)}; known are {", ".join(known)}')
        if value <= 0:
            raise ConfigError(f"{name}.{key}={value}: it must be more than 0")
    return replace(limits, **{key: known[key](value) for key, value in changes.items()})


Reader = Callable[..., tuple[Task, ...]]
"""Reads the tasks of a data set's file: `path`, the first `num` of them, and the fields of ReaderOptions."""


def reader_of(task_of: Callable[[Row, RowContext], Task], *, images: Activation, timeout_s: float = 1_800.0) -> Reader:
    """Make the reader of a data set from a function that turns a row into a task, how its images are entered, and the
    default time limit."""

    def read(*, path: str, num: int | None = None, **given: Any) -> tuple[Task, ...]:
        options = ReaderOptions(**{**given, "parser": ParserChoice(given.get("parser", ParserChoice.AUTO))})
        context = RowContext(
            options=options,
            activation=options.activation(images),
            timeout_s=options.timeout_s or timeout_s,
            checkouts=Checkouts(options.repos, options.trees) if options.repos else None,
        )
        return _tasks(path, num, context, task_of)

    read.__signature__ = _signature()  # type: ignore[attr-defined]
    return read


def _tasks(
    path: str, num: int | None, context: RowContext, task_of: Callable[[Row, RowContext], Task]
) -> tuple[Task, ...]:
    wanted = set(context.options.ids)
    found: list[Task] = []
    for row in read_rows(path):
        if num is not None and len(found) >= num:
            break
        if wanted and row.fields.get("instance_id") not in wanted:
            continue
        try:
            found.append(task_of(row, context))
        except MissingRepository as raised:
            log.warning("%s is left out: %s", row.where, raised)
    missing = wanted - {task.id for task in found}
    if missing and num is None and context.checkouts is None:
        raise ConfigError(f"{path} has no row {sorted(missing)[0]}: correct tasks.args.ids")
    return tuple(found)


def _signature() -> inspect.Signature:
    """The parameters of a reader, for whoever checks its arguments."""
    hints = typing.get_type_hints(ReaderOptions)
    kind = inspect.Parameter.KEYWORD_ONLY
    plain = ReaderOptions()
    options = [
        inspect.Parameter(one.name, kind, annotation=hints[one.name], default=getattr(plain, one.name))
        for one in fields(ReaderOptions)
    ]
    path = inspect.Parameter("path", kind, annotation=str)
    num = inspect.Parameter("num", kind, annotation=int | None, default=None)
    return inspect.Signature([path, num, *options], return_annotation=tuple[Task, ...])


def log_parser_named(name: str, known: Mapping[str, str]) -> str:
    """The log parser that is meant by a name of ours or of the `swebench` package."""
    short = name.removeprefix("parse_log_")
    return known.get(short, short)

"""The settings of the `tests` grader in a task's grading."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from slipstream.graders.replay.grading import ReplaySpec
from slipstream.graders.spec import GraderSpec
from slipstream.graders.testing.logs import PARSERS
from slipstream.graders.testing.rules import Rules
from slipstream.names import did_you_mean

REPORT = "report"


class LogRule(GraderSpec):
    """How a data set reads what its tests print."""

    parser: str
    rules: Rules = Rules.SWEBENCH

    @field_validator("parser")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PARSERS:
            raise ValueError(f'there is no log parser "{name}"{did_you_mean(name, PARSERS)}')
        return name


class TestsSpec(GraderSpec):
    command: str | list[str]
    """For the parser "report": the interpreter, then arguments for pytest. For the others: a script for bash, or the
    argument list of a program."""
    parser: str = REPORT
    """"report": our own reporter on pytest. Else the name of a log parser (`testing.logs.PARSERS`)."""
    rules: Rules = Rules.STRICT
    log_rule: LogRule | None = None
    """For "report": the data set's own rule. Tests are named as its parser names them and imported as their repository
    has it, and the verdict's component `log_rule` is what the rule says of the printed log: for comparison, since the
    work can print anything."""
    fail_to_pass: list[str] = Field(default_factory=list)
    pass_to_pass: list[str] = Field(default_factory=list)
    expected: dict[str, str] | None = None
    """All statuses, for the rules "r2egym"."""
    tests: list[str] = Field(default_factory=list)
    """For "report": what pytest runs; by default the files of the expected tests."""
    folder: str = ""
    """The folder that the patch applies to; by default the sandbox's working directory."""
    drop: list[str] = Field(default_factory=list)
    """Patterns of paths, such as tests, where changes are left out. Changes to environments, compiled files,
    conftest.py and the like always are."""
    keep: list[str] = Field(default_factory=list)
    """Exceptions: paths whose changes count although they would otherwise be left out or inspected."""
    forbid: list[str] = Field(default_factory=list)
    """Patterns of paths whose change makes the work worth 0."""
    restore: dict[str, str | None] = Field(default_factory=dict)
    """Hidden files, written last; null removes a file."""
    test_patch: str = ""
    """Hidden changes, applied last. The work's changes to the same files are left out."""
    sandbox_setup: list[str] | None = None
    """Replaces the sandbox's own set-up if that hides from the agent what grading needs."""
    setup: list[str] = Field(default_factory=list)
    """Shell commands run with the work in place, before the hidden tests are written. They must succeed on the task's
    own files: end one with `|| true` if it succeeds only with the right work."""
    env: dict[str, str] = Field(default_factory=dict)
    markers: list[str] = Field(default_factory=list)
    """Two lines of the log that enclose the results; none for the whole log."""
    oracle: str = ""
    """A patch that solves the task, for checking tasks and for the twin run."""
    twin: bool = True
    """Also run work that passed on twins of the tests in fail_to_pass, if there is an oracle."""
    replay: ReplaySpec | None = None
    """Calls to make on work that passed its tests, and their expected results."""
    canaries: bool = True
    """For "report": run two randomly named tests among the others."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Choose it by the time the reference solution takes: slower work is worth 0."""

    @field_validator("parser")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != REPORT and name not in PARSERS:
            raise ValueError(f'there is no log parser "{name}"{did_you_mean(name, PARSERS)}')
        return name

    @field_validator("command")
    @classmethod
    def _not_empty(cls, command: str | list[str]) -> str | list[str]:
        if not command:
            raise ValueError("it is empty: write the command that runs the tests")
        return command

    @model_validator(mode="after")
    def _fits(self) -> TestsSpec:
        if self.parser == REPORT and isinstance(self.command, str):
            raise ValueError('for the parser "report" the command is a list: the interpreter, then pytest\'s arguments')
        if (self.rules is Rules.R2EGYM) != (self.expected is not None):
            raise ValueError('"expected" belongs to the rules "r2egym": give both or neither')
        if self.expected is None and not self.fail_to_pass:
            raise ValueError("fail_to_pass is empty: name at least one test that only the right work passes")
        if self.replay is not None and (self.parser != REPORT or self.setup):
            raise ValueError('"replay" is for the parser "report" without a setup: leave it out')
        if self.log_rule is not None and self.parser != REPORT:
            raise ValueError('"log_rule" is for the parser "report": the others read the log anyway')
        if len(self.markers) not in (0, 2):
            raise ValueError(f"markers has {len(self.markers)} lines: give two, or none")
        return self

"""The settings of the `tests` grader, as a task's grading has them."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from slipstream.graders.replay.judge import ReplaySpec
from slipstream.graders.spec import GraderSpec
from slipstream.graders.testing.logs import PARSERS
from slipstream.graders.testing.rules import Rules
from slipstream.names import did_you_mean

REPORT = "report"


class TestsSpec(GraderSpec):
    command: str | list[str]
    """For the parser "report": the interpreter, then arguments for pytest. For the others: a script for bash, or the
    argument list of a program."""
    parser: str = REPORT
    """"report": our own reporter on pytest. Else the name of a log parser (`testing.logs.PARSERS`)."""
    rules: Rules = Rules.STRICT
    fail_to_pass: list[str] = Field(default_factory=list)
    pass_to_pass: list[str] = Field(default_factory=list)
    expected: dict[str, str] | None = None
    """All statuses, for the rules "r2egym"."""
    tests: list[str] = Field(default_factory=list)
    """For "report": what pytest is asked to run; the files of the expected tests if it is empty."""
    folder: str = ""
    """The folder that the patch is of; the sandbox's working directory if it is empty."""
    drop: list[str] = Field(default_factory=list)
    """Patterns of paths, such as the tests', where changes are left out. Environments, compiled files, conftest.py and
    the like always are."""
    keep: list[str] = Field(default_factory=list)
    """Paths that count although changes there are left out, or looked into, otherwise."""
    forbid: list[str] = Field(default_factory=list)
    """Patterns of paths whose change makes the work worth 0."""
    restore: dict[str, str | None] = Field(default_factory=dict)
    """Hidden files, written last; null for one that must not be there."""
    test_patch: str = ""
    """Hidden changes, made last. What it touches is dropped from the work."""
    sandbox_setup: list[str] | None = None
    """In place of the sandbox's own set-up, where that takes away from the agent what grading needs."""
    setup: list[str] = Field(default_factory=list)
    """Shell commands run after the work is in place, and before the hidden tests are. They must go well on the task's
    own files: end one with `|| true` if that takes the right work."""
    env: dict[str, str] = Field(default_factory=dict)
    markers: list[str] = Field(default_factory=list)
    """Two lines of the log, between which the results stand; none for all of it."""
    oracle: str = ""
    """A patch that solves the task, for those who check tasks. The grader runs twin tests on it."""
    twin: bool = True
    """Run work that passed on twins of the tests in fail_to_pass as well, where there is an oracle."""
    replay: ReplaySpec | None = None
    """Calls to be made on work whose tests came out as they must, and what they must return."""
    canaries: bool = True
    """For "report": run two tests of random name among the others."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Set it from what the reference solution takes: work that is slower is worth 0."""

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
            raise ValueError("write the command that runs the tests")
        return command

    @model_validator(mode="after")
    def _fits(self) -> TestsSpec:
        if self.parser == REPORT and isinstance(self.command, str):
            raise ValueError('for the parser "report" the command is a list: the interpreter, then pytest\'s arguments')
        if (self.rules is Rules.R2EGYM) != (self.expected is not None):
            raise ValueError('"expected" belongs to the rules "r2egym": give both or neither')
        if self.expected is None and not self.fail_to_pass:
            raise ValueError("fail_to_pass is empty: name at least one test that the work must make pass")
        if self.replay is not None and (self.parser != REPORT or self.setup):
            raise ValueError('"replay" is for the parser "report" without a setup: leave it out')
        if len(self.markers) not in (0, 2):
            raise ValueError("markers are two lines, or none")
        return self

"""The errors of the package, named by what failed. Standard library only.

SlipstreamError
├── ConfigError            bad input: one sentence that names the value and the remedy; ends the command
├── AgentError             what the agent did: part of its rollout, never retried
│   ├── ToolError          a wrong call, shown to the model as the tool's answer
│   ├── SandboxFileError   a path that cannot be read or written, shown likewise
│   ├── SandboxLimitError  a limit of the sandbox was reached, shown likewise
│   ├── SandboxBroken      the agent destroyed its own sandbox: a trusted ending
│   └── ContextOverflow    the conversation no longer fits the model: an ending too
├── InfrastructureError    not the agent's doing: retried, then recorded as untrusted
│   ├── ModelError         the endpoint or engine
│   ├── ToolFailure        a tool raised something other than a ToolError
│   ├── SandboxError       the sandbox provider or the host
│   └── GraderError        the grader
├── ReplayError            a recorded attempt cannot be resumed: the job starts over and keeps all its retries
└── RunError               ends the run, which can be resumed once the cause is fixed
    ├── JournalError       the run store cannot be written
    ├── UserCodeError      a grader or tool fails every attempt at the same line
    ├── UngradedError      no rollout of a step has a verdict
    ├── LearnerError       the embedded learner failed, or its checkpoint cannot be written or read
    └── BridgeError        an outside trainer failed, or cannot use what it was given
"""

from __future__ import annotations

import errno
import os
import traceback
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where in user code (a grader, a tool, a script) an error was raised."""

    kind: str
    """The type of what was raised: `KeyError`."""
    place: str
    """`letters.py, line 14, in grade`."""
    trace: str = ""
    """The traceback, from the first line of user code on."""
    may_pass: bool = False
    """Whether the cause may lie outside that code (network, disk, memory), so that a retry may succeed."""


class SlipstreamError(Exception):
    """The root: anything Slipstream raises on purpose."""

    origin: Origin | None = None
    """Set where user code raised it."""


class ConfigError(SlipstreamError):
    """Bad input. The message names the value that was wrong and what to do."""

    def __init__(self, message: str, *, key: str = "", value: object = None, remedies: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.key = key
        """The setting at fault, dotted as on the command line; empty if it is not one setting."""
        self.value = value
        self.remedies = remedies
        """Settings as `key=value`, each of which resolves it by itself; empty where none is obvious."""

    @classmethod
    def setting(cls, key: str, value: object, problem: str, *remedies: str) -> Self:
        """`key=value: problem`."""
        shown = str(value).lower() if isinstance(value, bool) else value
        return cls(f"{key}={shown}: {problem}", key=key, value=value, remedies=remedies)


class AgentError(SlipstreamError):
    """What the agent, or a program it ran, did. It belongs to its rollout and is never retried."""


class ToolError(AgentError):
    """The model used a tool wrongly. The message is the tool's answer, so it says how to do better."""


class SandboxFileError(AgentError):
    """A path in the sandbox is missing, not a regular file, too large, or may not be touched."""


class SandboxLimitError(AgentError):
    """A limit of the sandbox (processes, memory, disk) stopped the operation."""


class SandboxBroken(AgentError):
    """The agent destroyed its own sandbox."""


class ContextOverflow(AgentError):
    """The conversation no longer fits the model's window."""


class InfrastructureError(SlipstreamError):
    """A fault of the provider, host, engine or grader. The dispatcher retries it."""


class ModelError(InfrastructureError):
    """The model endpoint or engine failed."""


class ToolFailure(InfrastructureError):
    """A tool failed in a way that is no answer to the model."""


class SandboxError(InfrastructureError):
    """The sandbox provider or the host failed."""


class GraderError(InfrastructureError):
    """The grader could not reach a verdict."""


class ReplayError(SlipstreamError):
    """An attempt cannot be resumed from its recorded turns. Nothing is wrong with the job: it starts over."""


class RunError(SlipstreamError):
    """The run cannot continue. What it recorded is kept, and it can be resumed once the cause is fixed."""


class JournalError(RunError):
    """The run store could not be written, so nothing after this would be kept."""


class UserCodeError(RunError):
    """A grader or tool of the user's fails every attempt in the same way."""


class UngradedError(RunError):
    """No rollout of a step or an evaluation has a verdict."""


class LearnerError(RunError):
    """The embedded learner failed. Its weights are unchanged."""


class BridgeError(RunError):
    """An outside trainer failed, or refused what it was given."""


class boundary:  # noqa: N801 - it reads as a statement
    """Errors of ours pass; any other exception becomes `error`, prefixed with `what`."""

    __slots__ = ("_error", "_what")

    def __init__(self, error: type[InfrastructureError | LearnerError], what: str) -> None:
        self._error = error
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        if isinstance(raised, Exception) and not isinstance(raised, SlipstreamError):
            failed = self._error(f"{self._what}: {described(raised)}")
            failed.origin = origin_of(raised)
            raise failed from raised


def described(raised: BaseException) -> str:
    """What was raised, and where if it was in user code: `KeyError: 'x' (letters.py, line 14, in grade)`."""
    origin = origin_of(raised)
    return f"{type(raised).__name__}: {raised}" + (f" ({origin.place})" if origin else "")


def origin_of(raised: BaseException) -> Origin | None:
    """Where in user code `raised` comes from; None if no line of user code is in its traceback.

    User code is what belongs neither to this package, nor to Python, nor to an installed library.
    """
    frames = traceback.extract_tb(raised.__traceback__)
    owners = [_owner(frame.filename) for frame in frames]
    if _Owner.USER not in owners:
        return None
    first = owners.index(_Owner.USER)
    last = frames[len(owners) - 1 - owners[::-1].index(_Owner.USER)]
    lines = [*traceback.format_list(frames[first:][-MAX_FRAMES:]), *traceback.format_exception_only(raised)]
    return Origin(
        kind=type(raised).__name__,
        place=f"{_shown_path(last.filename)}, line {last.lineno}, in {last.name}",
        trace="Traceback (from the first line of user code):\n" + "".join(lines).rstrip(),
        may_pass=_may_pass(raised),
    )


MAX_FRAMES = 20
"""A deeper traceback shows the last of its frames."""


class _Owner(Enum):
    OURS = "ours"
    LIBRARY = "library"
    USER = "user"


_OURS = f"{Path(__file__).parent}{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.path.realpath(os.__file__)).parent}{os.sep}"


def _owner(filename: str) -> _Owner:
    if filename.startswith(_OURS):
        return _Owner.OURS
    is_installed = f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename
    is_library = is_installed or filename.startswith("<") or os.path.realpath(filename).startswith(_STANDARD_LIBRARY)
    return _Owner.LIBRARY if is_library else _Owner.USER


def _shown_path(filename: str) -> str:
    try:
        return filename.removeprefix(f"{Path.cwd()}{os.sep}")
    except OSError:  # the working directory is gone
        return filename


_MISTAKES = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
    AssertionError,
)


def _may_pass(raised: BaseException | None) -> bool:
    """Whether the error or its cause may come from outside: the network, the disk, a shortage, or a library that
    reports anything but a plain mistake in calling it."""
    if raised is None:
        return False
    frames = traceback.extract_tb(raised.__traceback__)
    of_library = bool(frames) and _owner(frames[-1].filename) is _Owner.LIBRARY
    outside = isinstance(raised, OSError | MemoryError | EOFError | SlipstreamError)
    cause = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    return outside or (of_library and not isinstance(raised, _MISTAKES)) or _may_pass(cause)


def is_shortage(raised: BaseException) -> bool:
    """Whether the machine is out of processes, threads, memory or descriptors just now, which may pass."""
    return isinstance(raised, MemoryError) or (isinstance(raised, OSError) and raised.errno in _SHORTAGES)


_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

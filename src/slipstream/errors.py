"""Errors, named by the boundary that failed. Standard library only.

SlipstreamError
├── ConfigError            bad input: one sentence that names the value and the remedy; ends the command
├── ToolError              shown to the model as the tool's answer; an ordinary part of a rollout
└── InfrastructureError    never the agent's doing: tried again, then recorded as untrusted
    ├── ModelError         the endpoint or engine
    ├── ToolFailure        a tool raised what is not a ToolError
    ├── SandboxError       the provider or the host
    │   ├── SandboxFileError   a path that cannot be read or written (asked for by the agent, so tools show it)
    │   └── SandboxLimitError  a limit of the sandbox was reached (the agent's doing, so tools show it)
    ├── GraderError
    ├── ReplayError        a recorded attempt cannot be gone on with: the job starts over, at no cost to its retries
    ├── JournalError       the run store could not be written: ends the run, since nothing after it would be kept
    ├── UserCodeError      a grader or tool fails every attempt alike: ends the run, to be resumed once it is fixed
    ├── LearnerError       the embedded learner made no step, or its checkpoint cannot be written or read
    └── BridgeError        a trainer

ContextOverflow is no failure: it says that the conversation no longer fits the model.
SandboxBroken is no failure either: the agent broke its own sandbox, which is a trusted ending.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an error of user code (a grader, a tool, a script) comes from."""

    kind: str
    """The type of what was raised: `KeyError`."""
    place: str
    """`letters.py, line 14, in grade`."""
    trace: str = ""
    """The traceback, from the first line of user code on."""
    may_pass: bool = False
    """Whether the cause may lie outside that code (network, disk, memory), so that another try may succeed."""


class SlipstreamError(Exception):
    """The root: anything Slipstream raises on purpose."""


class ConfigError(SlipstreamError):
    """Bad input. The message names the value that was wrong and what to do."""


class ToolError(SlipstreamError):
    """What the model did wrong with a tool, told so that it can do better."""


class ContextOverflow(SlipstreamError):
    """The conversation does not fit the model's window any more."""


class SandboxBroken(SlipstreamError):
    """The agent destroyed its own sandbox."""


class InfrastructureError(SlipstreamError):
    """A fault of provider, host, engine or grader."""

    origin: Origin | None = None
    """Set where user code raised it."""


class ModelError(InfrastructureError):
    """The model endpoint or engine failed."""


class ToolFailure(InfrastructureError):
    """A tool failed in a way that is no answer to the model."""


class SandboxError(InfrastructureError):
    """The sandbox's provider or host failed."""


class SandboxFileError(SandboxError):
    """A path in the sandbox is missing, not a regular file, too large, or may not be touched."""


class SandboxLimitError(SandboxError):
    """A limit of the sandbox (processes, memory, disk) stopped what was asked for."""


class GraderError(InfrastructureError):
    """The grader could not come to a verdict."""


class ReplayError(InfrastructureError):
    """An attempt cannot go on from its recorded turns. Nothing is wrong with the job: it starts over."""


class JournalError(InfrastructureError):
    """The run store could not be written."""


class UserCodeError(InfrastructureError):
    """Code of the user's fails in every attempt, in the same way."""


class LearnerError(InfrastructureError):
    """The embedded learner could not go on. Its weights are as they were."""


class BridgeError(InfrastructureError):
    """A trainer failed, or refused what it was given."""


@contextmanager
def boundary(error: type[InfrastructureError], what: str) -> Iterator[None]:
    """Name whatever crosses this boundary: errors of ours pass, anything else becomes `error`."""
    try:
        yield
    except SlipstreamError:
        raise
    except Exception as raised:
        failed = error(f"{what}: {described(raised)}")
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
"""Of a traceback that is shown; of deeper ones, the last."""


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
    """Whether what was raised, or what caused it, may come from outside: the network, the disk, a shortage, or
    something that a library says and that is no plain mistake in calling it."""
    if raised is None:
        return False
    frames = traceback.extract_tb(raised.__traceback__)
    of_library = bool(frames) and _owner(frames[-1].filename) is _Owner.LIBRARY
    outside = isinstance(raised, OSError | MemoryError | EOFError | SlipstreamError)
    cause = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    return outside or (of_library and not isinstance(raised, _MISTAKES)) or _may_pass(cause)


def is_shortage(raised: BaseException) -> bool:
    """Whether the machine has no process, thread, memory or descriptor to spare just now, which may pass."""
    return isinstance(raised, MemoryError) or (isinstance(raised, OSError) and raised.errno in _SHORTAGES)


_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

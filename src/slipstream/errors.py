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
    ├── LearnerError       the embedded learner made no step, or its checkpoint cannot be written or read
    └── BridgeError        a trainer

ContextOverflow is no failure: it says that the conversation no longer fits the model.
SandboxBroken is no failure either: the agent broke its own sandbox, which is a trusted ending.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


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
        raise error(f"{what}: {type(raised).__name__}: {raised}") from raised


def is_shortage(raised: BaseException) -> bool:
    """Whether the machine has no process, thread, memory or descriptor to spare just now, which may pass."""
    return isinstance(raised, MemoryError) or (isinstance(raised, OSError) and raised.errno in _SHORTAGES)


_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

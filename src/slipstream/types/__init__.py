"""The values that packages exchange. Standard library only.

One frozen value per arrow: Task -> Job -> Turn* -> Rollout. All are keyword-only and slotted; per-token data travels
in one record whose lengths are checked when it is made. Token arrays are `array.array`: four bytes a token, equal by
value, readable by numpy without a copy. They are never mutated after they were put into a value.
"""

from __future__ import annotations

from slipstream.types.conversation import MAX_CALL_DEPTH, CallProblem, Image, Message, Role, ToolCall, ToolSpec
from slipstream.types.endings import TRUST_OF, Ending, EndReason, Trust
from slipstream.types.ids import NO_TOKENS, Json, TokenIds, token_ids
from slipstream.types.rollouts import (
    Failure,
    ForkReason,
    Group,
    Job,
    JobKey,
    Rollout,
    Span,
    SpanKind,
    Turn,
    Verdict,
    job_seed,
    turn_seed,
)
from slipstream.types.sampling import NO_LIMIT, EngineLoad, EngineWork, Sampled, SampleParams, StopReason
from slipstream.types.tasks import (
    SET_MARK,
    Activation,
    AgentLimits,
    Artifact,
    Brief,
    File,
    FileTree,
    Grading,
    SandboxLimits,
    SandboxSpec,
    Task,
    set_of,
)
from slipstream.types.training import Batch, Row, Sample, UpdateResult

__all__ = [
    "MAX_CALL_DEPTH",
    "NO_LIMIT",
    "NO_TOKENS",
    "SET_MARK",
    "TRUST_OF",
    "Activation",
    "AgentLimits",
    "Artifact",
    "Batch",
    "Brief",
    "CallProblem",
    "EndReason",
    "Ending",
    "EngineLoad",
    "EngineWork",
    "Failure",
    "File",
    "FileTree",
    "ForkReason",
    "Grading",
    "Group",
    "Image",
    "Job",
    "JobKey",
    "Json",
    "Message",
    "Role",
    "Rollout",
    "Row",
    "Sample",
    "SampleParams",
    "Sampled",
    "SandboxLimits",
    "SandboxSpec",
    "Span",
    "SpanKind",
    "StopReason",
    "Task",
    "TokenIds",
    "ToolCall",
    "ToolSpec",
    "Trust",
    "Turn",
    "UpdateResult",
    "Verdict",
    "job_seed",
    "set_of",
    "token_ids",
    "turn_seed",
]

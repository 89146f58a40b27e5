"""The values that packages exchange. Standard library only.

One frozen value per arrow: Task -> Job -> Turn* -> Rollout. All are keyword-only and slotted; per-token data travels
in one record whose lengths are checked when it is made. Token arrays are `array.array`: four bytes a token, equal by
value, readable by numpy without a copy. They are never mutated after they were put into a value.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What `json.loads` returns."""

TokenIds: TypeAlias = "array[int]"


def token_ids(ids: Iterable[int] = ()) -> TokenIds:
    """A compact, typed copy of `ids`."""
    return array("i", ids)


NO_TOKENS = token_ids()

# ---------------------------------------------------------------- why a rollout ended, and what that is worth


class Trust(StrEnum):
    """How a rollout may be used in training. TRUST_OF is the only place that maps endings to it."""

    TRUSTED = "trusted"
    MASKED = "masked"
    UNTRUSTED = "untrusted"
    ABSENT = "absent"

    @property
    def graded(self) -> bool:
        """Whether a verdict is required."""
        return self in (Trust.TRUSTED, Trust.MASKED)

    @property
    def in_baseline(self) -> bool:
        """Whether its reward counts in the group's baseline."""
        return self in (Trust.TRUSTED, Trust.MASKED)

    @property
    def in_loss(self) -> bool:
        """Whether its sampled tokens are trained on."""
        return self is Trust.TRUSTED


class EndReason(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    STUCK = "stuck"
    BROKE_SANDBOX = "broke_sandbox"
    TURN_LIMIT = "turn_limit"
    TOO_LATE = "too_late"
    """Out of turns, if their number is part of the task (`agent.out_of_turns=failed`)."""
    TOKEN_LIMIT = "token_limit"
    TOOL_TIME_LIMIT = "tool_time_limit"
    WAITED = "waited"
    """It ran out of time waiting for the engine or a slot."""
    DEADLINE = "deadline"
    """A deadline of the dispatcher passed."""
    INFRASTRUCTURE = "infrastructure"
    NO_VERDICT = "no_verdict"
    """It ended well, but the grader failed."""
    CANCELLED = "cancelled"

    @property
    def trust(self) -> Trust:
        return TRUST_OF[self]


TRUST_OF: Mapping[EndReason, Trust] = {
    EndReason.FINISHED: Trust.TRUSTED,
    EndReason.STUCK: Trust.TRUSTED,
    EndReason.BROKE_SANDBOX: Trust.TRUSTED,
    EndReason.TOO_LATE: Trust.TRUSTED,
    EndReason.TURN_LIMIT: Trust.MASKED,
    EndReason.TOKEN_LIMIT: Trust.MASKED,
    EndReason.TOOL_TIME_LIMIT: Trust.MASKED,
    EndReason.WAITED: Trust.UNTRUSTED,
    EndReason.DEADLINE: Trust.UNTRUSTED,
    EndReason.INFRASTRUCTURE: Trust.UNTRUSTED,
    EndReason.NO_VERDICT: Trust.UNTRUSTED,
    EndReason.CANCELLED: Trust.ABSENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the agent's part ended: `Ending(reason=EndReason.FINISHED, answer="42")`."""

    reason: EndReason
    answer: str | None = None
    detail: str = ""


# ---------------------------------------------------------------- conversation


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class CallProblem(StrEnum):
    """What is wrong with a malformed tool call."""

    BAD_JSON = "bad_json"
    UNCLOSED = "unclosed"
    NO_NAME = "no_name"
    BAD_SHAPE = "bad_shape"
    TOO_DEEP = "too_deep"
    SEVERAL = "several"
    """Several calls in one reply, in a chat format that has one."""


MAX_CALL_DEPTH = 64
"""How deep the arguments of a call may be nested: whatever copies, stores or sends them recurses, and a model may
write more levels than Python's stack has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as the model wrote it. With a problem set, only `raw` is certain."""

    id: str
    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    problem: CallProblem | None = None
    raw: str = ""

    def __post_init__(self) -> None:
        """Every call a model writes becomes one of these, so arguments that something later would fail on are dropped
        here, and the call gets a problem."""
        problem = _problem_with(self.arguments)
        if problem is not None:
            object.__setattr__(self, "arguments", {})
            object.__setattr__(self, "problem", self.problem or problem)


def _problem_with(arguments: Mapping[str, Json]) -> CallProblem | None:
    level: list[Json] = list(arguments.values())
    for _ in range(MAX_CALL_DEPTH):
        if any(isinstance(value, float) and not math.isfinite(value) for value in level):
            return CallProblem.BAD_JSON  # NaN, Infinity and 1e999, which Python reads and JSON cannot say
        nested = [value for value in level if isinstance(value, dict | list)]
        if not nested:
            return None
        level = [inner for value in nested for inner in (value.values() if isinstance(value, dict) else value)]
    return CallProblem.TOO_DEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    data: bytes
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. `calls` and `thinking` are an assistant's, `call_id` and `name` a tool's."""

    role: Role
    content: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    images: tuple[Image, ...] = ()
    hints: tuple[str, ...] = ()
    """The names of the hints that a tool's content ends with."""
    is_error: bool = False
    """A tool's: the call did not do what was asked. The model reads the content alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as described to a model."""

    name: str
    description: str
    parameters: Mapping[str, Json]


# ---------------------------------------------------------------- sampling


class StopReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


NO_LIMIT = 2**31 - 1
"""For `SampleParams.max_tokens`: all that the window leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParams:
    """Sampling settings. The defaults sample from the model's own distribution, as training requires."""

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()

    def of_call(self, *, max_tokens: int, seed: int) -> SampleParams:
        """These settings for one call: `dataclasses.replace`, in half the time."""
        return SampleParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            stop_ids=self.stop_ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens of one completion: per token its id, its logprob under what was sampled from, its policy version.

    `logprobs` is None where the server gave none: evaluation works without, training does not.
    """

    ids: TokenIds
    logprobs: array[float] | None
    versions: array[int]
    stop: StopReason
    num_cached: int | None = field(default=None, compare=False)
    """Tokens of the prompt that the engine had in its cache, if it reports that. The span of the call keeps it."""

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.versions)} | ({len(self.logprobs)} if self.logprobs is not None else set())
        if len(lengths) != 1:
            raise ValueError(f"per-token lengths differ: {sorted(lengths)}")

    @staticmethod
    def at_version(
        ids: Iterable[int],
        logprobs: Iterable[float] | None,
        *,
        version: int,
        stop: StopReason,
        num_cached: int | None = None,
    ) -> Sampled:
        """All tokens sampled by one version of the policy."""
        kept = token_ids(ids)
        return Sampled(
            ids=kept,
            logprobs=None if logprobs is None else array("f", logprobs),
            versions=array("i", [version]) * len(kept),
            stop=stop,
            num_cached=num_cached,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine reports about itself now; None where it does not."""

    running: int
    waiting: int
    kv_used: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    kv_tokens: int | None = None
    """Tokens the KV cache holds when full."""
    tokens_per_s: float | None = None
    """Sampled lately, by all requests together."""
    prefill_tokens_s: float | None = None
    """Prompt tokens computed in a second of doing so, on average so far."""
    slots: int | None = None
    """Requests that are answered at once."""
    contexts: int | None = None
    """Contexts that the cache holds at most, however short; None if only their tokens count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """Sums over engine steps of about the same size."""

    num_steps: int
    """In each of them every sequence that is being sampled gets a token. 0: prompts alone were computed."""
    num_rows: int
    """Tokens requested in them, one for each sequence and step."""
    num_held: int
    """Tokens in the cache of those sequences, counted in each step."""
    num_prompt: int
    """Tokens of prompts that were computed in them."""
    seconds: float
    cpu_s: float
    """Of these, how long the engine's thread had a core."""


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """The agent's own limits. Reaching one is the agent's doing: graded, in the baseline, not in the loss."""

    turns: int = 50
    context_tokens: int = 32_768
    tool_seconds: float = 1_800.0
    """Seconds spent inside tools, over the whole rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """All that the agent may see of a task."""

    instruction: str
    system: str = ""
    tools: tuple[str, ...] = ()
    limits: AgentLimits = AgentLimits()
    resources: Mapping[str, Json] = field(default_factory=dict, repr=False, hash=False)
    """What the tools work on: a document read chunk by chunk, the path of an index, the seed of an environment. The
    model sees only what a tool shows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTree:
    """The files below a folder, as data. Paths are relative to it."""

    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links and where they point, which was not looked at."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is there but not included, and why: FIFOs, sockets, devices, what is too large or unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    memory_mb: int = 2048
    """All its processes together, files in memory included; of one process alone where nothing better is available."""
    processes: int = 256
    disk_mb: int = 512
    """All that the sandbox may write, together."""
    file_mb: int = 256
    """One file."""
    cpu_s: int = 7200
    """CPU time of all its processes together."""
    cpus: float = field(default=1.0, repr=False)
    """Cores that it counts for under a limit of them; that is not enforced, so it is no part of a task's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """How all programs of a sandbox, the agent's shell and the grader's tests alike, enter an environment that its base
    holds, such as a conda environment."""

    path: tuple[str, ...] = ()
    """Folders that come first in PATH."""
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables to set; `SandboxSpec.env` wins."""
    script: str = ""
    """A bash script, run in the workdir as the sandbox starts; programs get the variables that it leaves exported. Only
    for environments that variables alone cannot enter."""
    python: str = ""
    """The path that `python` must then have. Checked when a sandbox opens; empty for no check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox looks like when the agent first sees it."""

    base: str = "host"
    """`host`: a minimal read-only view of this machine's programs. Else a folder that is the root of one (an unpacked
    image), or the name of an image, whichever the provider takes."""
    workdir: str = "/work"
    tree: str = ""
    """A folder of this machine whose files the workdir begins with. All sandboxes share it, and none can change it."""
    files: Mapping[str, File] = field(default_factory=dict)
    """Written before anything runs; relative paths are below `workdir`."""
    setup: tuple[str, ...] = ()
    """Shell commands run in `workdir`, in order; each must exit with 0."""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = SandboxLimits()
    activation: Activation = field(default=Activation(), repr=False, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How the work is judged: the grader's name and what it needs. Only the grade stage receives it."""

    kind: str
    spec: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: str
    brief: Brief
    grading: Grading
    sandbox: SandboxSpec | None = SandboxSpec()
    """None for a task whose tools need none."""
    artifact: tuple[str, ...] = ()
    """Files that are the work, taken out of the sandbox when the agent ends; its answer is always taken."""
    patch_of: str = ""
    """A folder of the sandbox whose changes are the work, as a patch."""

    @property
    def instruction(self) -> str:
        return self.brief.instruction

    @property
    def extra(self) -> Mapping[str, Json]:
        """What only the grader sees."""
        extra = self.grading.spec.get("extra")
        return extra if isinstance(extra, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What the agent leaves: its answer and the named files that exist."""

    answer: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Named files that were there and could not be taken, and why."""
    patch: bytes = b""
    """The changes to the folder that the task names, in git's form."""


# ---------------------------------------------------------------- jobs and rollouts


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class JobKey:
    """Names one sample of a task in a step. The attempt's number is not part of it."""

    phase: str
    step: int
    task_id: str
    sample: int

    def __str__(self) -> str:
        return f"{self.phase}/{self.step}/{self.task_id}/{self.sample}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    key: JobKey
    seed: int
    weight: int = 1
    """How many of the sandbox limit's units its sandbox takes; 0 if it has none."""
    group_size: int = 1
    """How many places its group has."""
    memory_mb: int = field(default=0, compare=False)
    """Of its sandbox and of its grader's, where they have one. This and the next follow from the task, so they are no
    part of what a job is, and not on record."""
    cpus: float = field(default=0.0, compare=False)


def job_seed(run_seed: int, key: JobKey) -> int:
    """A seed that depends on the run and on the job alone: the same after a resume, in any order."""
    digest = hashlib.blake2b(f"{run_seed}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class ForkReason(StrEnum):
    """Why a turn's prompt does not continue its whole parent."""

    CONTEXT_EDIT = "context_edit"
    """A tool rewrote the conversation."""
    SUB_AGENT = "sub_agent"
    """A conversation of its own, trained on with the rollout."""
    NESTED = "nested"
    """A judge's or a summariser's conversation, never trained on."""
    TEMPLATE = "template"
    """The family's template does not continue what was sampled, so the conversation was rendered again."""
    TRIMMED = "trimmed"
    """The engine sampled past the end of the reply, and what came after it was left out."""
    PARALLEL = "parallel"
    """Its parent was already continued by another turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call.

    The prompt is the first `num_kept` tokens of the parent's prompt and sample, followed by `added`; so no prompt is
    stored twice, and keeping less than the whole parent is a fork. Without a parent the prompt is `added`.

    Example: a parent of 10 tokens in and 4 sampled, then a tool answer of 6 tokens:
    `Turn(index=1, parent=0, num_kept=14, added=<6 ids>, sampled=<...>)`.
    """

    index: int
    branch: int = 0
    parent: int | None = None
    num_kept: int = 0
    added: TokenIds = field(default_factory=lambda: NO_TOKENS)
    sampled: Sampled | None = None
    """None under the chat dialogue, which sees no tokens."""
    messages: tuple[Message, ...] = ()
    """The messages that came in with this turn, then the model's reply."""
    trainable: bool = True
    fork: ForkReason | None = None
    """Why it keeps less than its whole parent, or has none; None if it continues it, or is the first."""


class SpanKind(StrEnum):
    """The kind of a span. docs/spans.md says what each one counts."""

    WAIT_INIT = "wait_init"
    INIT = "init"
    WAIT_RUN = "wait_run"
    RUN = "run"
    RELEASE = "release"
    WAIT_GRADE = "wait_grade"
    GRADE = "grade"
    WAIT_TURN = "wait_turn"
    """Held by the turn gate between two turns."""
    MODEL = "model"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time of one attempt, on the clock of the event loop."""

    kind: SpanKind
    start_s: float
    end_s: float
    attempt: int = 1
    name: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise ValueError(f"a reward of {self.reward}: it must be a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An infrastructure failure of one attempt: where, which error, what it said."""

    attempt: int
    stage: str
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The turns of one job, why it ended, and what it was worth."""

    job: Job
    attempt: int
    ending: Ending
    turns: tuple[Turn, ...] = ()
    verdict: Verdict | None = None
    spans: tuple[Span, ...] = ()
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        if (self.verdict is not None) != self.trust.graded:
            raise ValueError(f"a rollout that ended by {self.ending.reason} with verdict {self.verdict}")

    @property
    def trust(self) -> Trust:
        return self.ending.reason.trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one task in one step, for a baseline."""

    phase: str
    step: int
    task_id: str
    rollouts: tuple[Rollout, ...]
    left_out: tuple[Rollout, ...] = ()
    """Started, but not learnt from: cancelled, surplus, or of a replaced group. Only counted."""
    earlier: tuple[Rollout, ...] = ()
    """Learnt from in an earlier batch: for the baseline alone."""


# ---------------------------------------------------------------- training data


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One merged token sequence of a rollout.

    Everything that was not sampled by the policy carries mask 0, logprob 0.0 and version -1. So does, in a sample that
    forks off, what was sampled before the fork: it is trained on in the sample it stems from.
    """

    key: JobKey
    branch: int
    """The branch of its last turn."""
    ids: TokenIds
    mask: array[int]
    logprobs: array[float]
    versions: array[int]
    turns: tuple[int, ...]
    """The turns whose samples it holds, by index."""
    num_truncated: int = 0
    """Sampled tokens that were cut off its end, whole turns at a time."""
    fork: ForkReason | None = None
    """Why it is a sample of its own; None for the one that the rollout began with."""

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"per-token lengths differ: {sorted(lengths)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sample as a learner gets it."""

    sample: Sample
    advantage: float
    in_loss: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    rows: tuple[Row, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    version: int | None = None
    """The policy's version that the update starts from; None if the trainer does not say. Older tokens are off
    policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of an update: the policy's version after it, and its metrics."""

    version: int
    metrics: Mapping[str, float] = field(default_factory=dict)

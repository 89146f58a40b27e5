"""A task: what the agent sees, its sandbox, its grading; and the work that it leaves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slipstream.types.ids import Json

SET_MARK = "/"
"""Between the name of a set of a mixture and the id that a task has in it."""


def set_of(task_id: str, sets: Collection[str]) -> str:
    """The set of a mixture that a task is from; empty if it is from none of these."""
    name, mark, _ = task_id.partition(SET_MARK)
    return name if mark and name in sets else ""


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

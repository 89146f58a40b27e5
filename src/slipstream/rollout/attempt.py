"""One attempt at a job, in this process: sandbox, agent, artifact, grade.

Input: a task and a job; if it resumes an attempt, what is on record of that. Output: a Rollout; and in the journal each
turn as it is taken, and the artifact, each once.
Invariants: turns are written while the agent runs. At most one sandbox is open at a time. The agent's is closed before
the grader's opens, and only `grade` touches the task's grading. The dialogue is closed when the agent's run is over,
however it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from slipstream.agent.loop import Runner
from slipstream.agent.nested import NestedDialogue
from slipstream.dialogue.base import Dialogue, TurnLog
from slipstream.errors import (
    GraderError,
    InfrastructureError,
    SandboxBroken,
    SandboxError,
    SandboxFileError,
    SandboxLimitError,
    boundary,
)
from slipstream.graders.base import GradeContext, Grader, grade_work, needs_sandbox
from slipstream.rollout.turn_writer import TurnWriter
from slipstream.sandbox.base import Changes, Sandbox, SandboxProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.seams import Journal, PastAttempt, RunEnded, TurnTaken
from slipstream.types import Artifact, Ending, EndReason, Grading, Job, Message, Rollout, SandboxSpec, Span, Task, Turn

MAX_ARTIFACT_BYTES = 16 << 20
"""Of one file, and of the patch."""
MAX_FILES_BYTES = 64 << 20
"""Of all files together."""


class DialogueMaker(Protocol):
    """Opens the conversation of one attempt."""

    def __call__(self, job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDeps:
    """What all attempts of a run share."""

    provider: SandboxProvider
    journal: Journal
    make_dialogue: DialogueMaker
    make_runner: Callable[[Task], Runner]
    find_grader: Callable[[str], Grader]
    start_timeout_s: float = 60.0
    expect: Callable[[SandboxSpec], None] = lambda spec: None
    """Called with the sandbox of each job that is to come."""
    turn_writer: TurnWriter = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "turn_writer", TurnWriter(self.journal))


def weight_of_grading(job: Job, grader: Grader, grading: Grading, ended: RunEnded) -> int:
    """Sandbox units that grading this will take."""
    return max(1, job.weight) if ended.ending.reason.trust.graded and needs_sandbox(grader, grading.spec) else 0


class _Judge:
    """The run's model as a judge for a grader, opened on first use."""

    def __init__(self, open_dialogue: Callable[[], Dialogue]) -> None:
        self._open = open_dialogue
        self._dialogue: Dialogue | None = None

    async def ask(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        if self._dialogue is None:
            self._dialogue = self._open()
        return await NestedDialogue(self._dialogue).ask(messages, max_tokens=max_tokens)

    def close(self) -> None:
        if self._dialogue is not None:
            self._dialogue.close()


class RolloutAttempt:
    """An Attempt (see `dispatch.base`)."""

    def __init__(self, deps: AttemptDeps, task: Task, job: Job, number: int, past: PastAttempt | None = None) -> None:
        self._deps = deps
        self._task = task
        self._job = job
        self._number = number
        self._past_turns = () if past is None else past.turns
        self._grader = deps.find_grader(task.grading.kind)
        self._spans: list[Span] = []
        self._log = TurnLog(
            seed=job.seed, on_turn=self._record_turn, on_span=self._record_span, settle=deps.journal.flush
        )
        self._sandbox: Sandbox | None = None
        self._ended = None if past is None else past.run_ended
        if self._ended is not None:
            self._log.restore(self._past_turns)

    @property
    def grade_weight(self) -> int:
        if self._ended is None:
            return 0
        return weight_of_grading(self._job, self._grader, self._task.grading, self._ended)

    async def init(self) -> None:
        if self._task.sandbox is None:
            return
        with boundary(SandboxError, "opening the sandbox"):
            self._sandbox = await open_sandbox(
                self._deps.provider, self._task.sandbox, timeout_s=self._deps.start_timeout_s
            )

    async def run(self) -> None:
        dialogue = self._deps.make_dialogue(self._job, self._number, self._task, self._log)
        runner = self._deps.make_runner(self._task)
        try:
            async with self._deps.turn_writer.guarded():
                with boundary(InfrastructureError, "running the agent"):
                    ending = await runner.run(
                        self._task.brief, self._sandbox, dialogue, self._past_turns, on_span=self._record_span
                    )
        finally:
            dialogue.close()
        try:
            artifact = await self._take_artifact(ending)
        except SandboxBroken as raised:  # untrusted, breaking it just after the last turn would pay
            ending = Ending(reason=EndReason.BROKE_SANDBOX, answer=ending.answer, detail=str(raised))
            artifact = Artifact(answer=ending.answer)
        self._ended = RunEnded(key=self._job.key, attempt=self._number, ending=ending, artifact=artifact)
        self._deps.journal.append(self._ended)
        await self._deps.journal.flush()

    async def release(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.aclose()

    async def grade(self) -> Rollout:
        if self._ended is None:
            raise GraderError("there is nothing to grade: the agent's run did not end")
        ending = self._ended.ending
        if not ending.reason.trust.graded:
            return self.as_ended(ending)
        judge = _Judge(self._open_judge)
        context = GradeContext(
            provider=self._deps.provider,
            sandbox=self._task.sandbox or SandboxSpec(),
            start_timeout_s=self._deps.start_timeout_s,
            task=self._task,
            turns=tuple(self._log.turns),
            judge=judge,
        )
        try:
            verdict = await grade_work(self._grader, self._task.grading, self._ended.artifact, context)
        finally:
            judge.close()
        return replace(self.as_ended(Ending(reason=EndReason.NO_VERDICT)), ending=ending, verdict=verdict)

    def as_ended(self, ending: Ending) -> Rollout:
        return Rollout(
            job=self._job,
            attempt=self._number,
            ending=ending,
            turns=tuple(self._log.turns),
            spans=tuple(self._spans),
        )

    async def aclose(self) -> None:
        await self.release()

    async def _take_artifact(self, ending: Ending) -> Artifact:
        """The answer and the named files. A file that the agent made unreadable, or that a limit of its sandbox keeps
        from being read, is its own doing, and becomes a problem of the artifact."""
        files: dict[str, bytes] = {}
        problems: dict[str, str] = {}
        patch = b""
        if self._sandbox is not None and ending.reason is not EndReason.BROKE_SANDBOX:
            room = MAX_FILES_BYTES
            for path in self._task.artifact:
                try:
                    files[path] = await self._sandbox.read(path, max_bytes=min(MAX_ARTIFACT_BYTES, room))
                    room -= len(files[path])
                except (SandboxFileError, SandboxLimitError) as raised:
                    problems[path] = str(raised)
            patch = await self._take_patch(self._sandbox, problems)
        return Artifact(answer=ending.answer, files=files, problems=problems, patch=patch)

    async def _take_patch(self, sandbox: Sandbox, problems: dict[str, str]) -> bytes:
        folder = self._task.patch_of
        if not folder:
            return b""
        if not isinstance(sandbox, Changes):
            raise SandboxError(f"the changes to {folder} are the work, and this kind of sandbox does not track changes")
        try:
            changed = await sandbox.changes(folder, max_bytes=MAX_ARTIFACT_BYTES)
        except (SandboxFileError, SandboxLimitError) as raised:
            problems[folder] = str(raised)
            return b""
        problems.update(changed.left_out)
        return changed.patch

    def _open_judge(self) -> Dialogue:
        """A conversation with the run's model, of which only the spans are recorded."""
        log = TurnLog(seed=self._job.seed, on_turn=lambda turn: None, on_span=self._record_span)
        return self._deps.make_dialogue(self._job, self._number, self._task, log)

    def _record_turn(self, turn: Turn) -> None:
        self._deps.journal.append(TurnTaken(key=self._job.key, attempt=self._number, turn=turn))
        self._deps.turn_writer.took()  # durable soon, a resumed run need not sample it again

    def _record_span(self, span: Span) -> None:
        self._spans.append(span if span.attempt == self._number else replace(span, attempt=self._number))

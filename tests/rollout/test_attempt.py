"""One attempt: sandbox, agent, artifact, grade, each in its own time and place."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from slipstream.agent.loop import ToolAgent
from slipstream.dialogue.base import Dialogue, Terms, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import GraderError, SandboxError
from slipstream.graders.base import GradeContext, Grader
from slipstream.graders.registry import find_grader
from slipstream.model.scripted import Line, Scene, ScriptedChat, act, replies
from slipstream.record import MemoryJournal
from slipstream.rollout.attempt import Crew, RolloutAttempt
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.fake import FakeProvider, FakeSandbox
from slipstream.seams import JobAdmitted, RunEnded, TurnTaken
from slipstream.tools import Toolset
from slipstream.types import (
    Artifact,
    Brief,
    Ending,
    EndReason,
    File,
    Grading,
    Job,
    JobKey,
    SampleParams,
    SandboxSpec,
    SpanKind,
    Task,
    Verdict,
)

JOB = Job(key=JobKey(phase="eval", step=0, task_id="t", sample=0), seed=1)
TASK = Task(
    id="t",
    brief=Brief(instruction="Write out.", tools=("write_file", "finish")),
    grading=Grading(kind="exact", spec={"expected": "yes"}),
    sandbox=SandboxSpec(files={"given": File(data=b"g")}),
    artifact=("out", "missing"),
)


class WatchedProvider(FakeProvider):
    """Knows every sandbox it opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[FakeSandbox] = []

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        sandbox = await super().open(spec)
        self.opened.append(sandbox)
        return sandbox


def make_crew(
    script: Callable[[Scene], Line],
    *,
    provider: SandboxProvider,
    journal: MemoryJournal,
    grader: Callable[[str], Grader] = find_grader,
) -> Crew:
    model = ScriptedChat(script)

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        terms = Terms(params=SampleParams(), max_context_tokens=1000, gate=OpenGate(), key=job.key, attempt=attempt)
        return ChatDialogue(model, terms, log)

    return Crew(
        provider=provider,
        journal=journal,
        make_dialogue=make_dialogue,
        make_runner=lambda task: ToolAgent(Toolset.named(task.brief.tools)),
        find_grader=grader,
    )


def test_the_artifact_leaves_the_sandbox_and_is_graded_after_it_is_closed() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()

    async def main() -> None:
        script = replies(act("write_file", path="out", content="7\n"), act("finish", answer="yes"))
        journal.append(JobAdmitted(job=JOB))
        attempt = RolloutAttempt(make_crew(script, provider=provider, journal=journal), TASK, JOB, 1)
        await attempt.init()
        await attempt.run()
        assert [sandbox.closed for sandbox in provider.opened] == [False]
        await attempt.release()
        assert [sandbox.closed for sandbox in provider.opened] == [True]
        rollout = await attempt.grade()
        await attempt.aclose()
        assert rollout.verdict == Verdict(reward=1.0)
        assert rollout.ending == Ending(reason=EndReason.FINISHED, answer="yes")
        assert len(rollout.turns) == 2
        assert [span.kind for span in rollout.spans] == [SpanKind.MODEL, SpanKind.TOOL] * 2

    asyncio.run(main())
    events = list(journal.events())
    assert [type(event) for event in events[1:]] == [TurnTaken, TurnTaken, RunEnded]
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.artifact.answer == "yes"
    assert ended.artifact.files == {"out": b"7\n"}
    assert "missing" in ended.artifact.problems


def test_the_agent_never_sees_the_grading_and_the_grader_never_the_agents_sandbox() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()
    seen: list[str] = []
    given: list[tuple[Grading, Artifact, GradeContext]] = []

    def script(scene: Scene) -> Line:
        seen.append(scene.prompt_text)
        return act("finish", answer="no")

    class Watching:
        needs_sandbox = True

        def check(self, spec: object) -> None:
            pass

        async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
            given.append((grading, artifact, context))
            assert all(sandbox.closed for sandbox in provider.opened)
            return Verdict(reward=0.0)

    secret = replace(TASK, grading=Grading(kind="watching", spec={"expected": "a secret"}))

    async def main() -> None:
        journal.append(JobAdmitted(job=JOB))
        crew = make_crew(script, provider=provider, journal=journal, grader=lambda kind: Watching())
        attempt = RolloutAttempt(crew, secret, JOB, 1)
        assert attempt.grade_weight == 0
        await attempt.init()
        await attempt.run()
        assert attempt.grade_weight == 1
        await attempt.release()
        await attempt.grade()

    asyncio.run(main())
    assert not any("secret" in text for text in seen)
    assert not any(b"secret" in file.data for file in provider.opened[0].files.values())
    assert given[0][0] == secret.grading


def test_an_unforeseen_error_of_a_grader_is_a_grader_error_and_grading_can_be_tried_again() -> None:
    provider, journal = FakeProvider(), MemoryJournal()
    tries: list[int] = []

    class Fickle:
        needs_sandbox = False

        def check(self, spec: object) -> None:
            pass

        async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
            tries.append(1)
            if len(tries) == 1:
                raise ZeroDivisionError
            return Verdict(reward=0.5)

    async def main() -> None:
        journal.append(JobAdmitted(job=JOB))
        crew = make_crew(replies(act("finish")), provider=provider, journal=journal, grader=lambda kind: Fickle())
        attempt = RolloutAttempt(crew, TASK, JOB, 1)
        await attempt.init()
        await attempt.run()
        await attempt.release()
        with pytest.raises(GraderError, match="ZeroDivisionError"):
            await attempt.grade()
        assert (await attempt.grade()).verdict == Verdict(reward=0.5)

    asyncio.run(main())


def test_a_failed_attempt_shows_what_there_was() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()

    def script(scene: Scene) -> Line:
        if scene.num_calls == 1:
            provider.opened[0].die()
        return act("write_file", path="out", content="7\n")

    async def main() -> None:
        journal.append(JobAdmitted(job=JOB))
        attempt = RolloutAttempt(make_crew(script, provider=provider, journal=journal), TASK, JOB, 1)
        await attempt.init()
        with pytest.raises(SandboxError):
            await attempt.run()
        await attempt.release()
        rollout = attempt.as_ended(Ending(reason=EndReason.INFRASTRUCTURE))
        assert len(rollout.turns) == 2
        assert rollout.verdict is None
        await attempt.aclose()
        await attempt.aclose()

    asyncio.run(main())


def test_grading_before_the_run_is_refused() -> None:
    attempt = RolloutAttempt(make_crew(replies(), provider=FakeProvider(), journal=MemoryJournal()), TASK, JOB, 1)
    with pytest.raises(GraderError, match="nothing to grade"):
        asyncio.run(attempt.grade())


def test_a_task_without_a_sandbox_opens_none() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()
    bare = replace(TASK, sandbox=None, artifact=(), brief=Brief(instruction="Say yes.", tools=("finish",)))

    async def main() -> None:
        journal.append(JobAdmitted(job=JOB))
        crew = make_crew(replies(act("finish", answer="yes")), provider=provider, journal=journal)
        attempt = RolloutAttempt(crew, bare, JOB, 1)
        await attempt.init()
        await attempt.run()
        await attempt.release()
        assert (await attempt.grade()).verdict == Verdict(reward=1.0)

    asyncio.run(main())
    assert provider.opened == []

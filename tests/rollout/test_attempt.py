"""One attempt: sandbox, agent, artifact, grade, each in its own time and place."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from slipstream.agent.loop import ToolAgent
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import GraderError, JournalError, ModelError, SandboxError
from slipstream.graders.base import GradeContext, Grader
from slipstream.graders.registry import find_grader
from slipstream.model.scripted import Line, ScriptedCall, ScriptedChat, act, replies
from slipstream.record import MemoryJournal
from slipstream.rollout.attempt import MAX_ARTIFACT_BYTES, MAX_FILES_BYTES, AttemptDeps, RolloutAttempt
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.fake import FakeProvider, FakeSandbox
from slipstream.seams import JobAdmitted, PastAttempt, RolloutDone, RunEnded, TurnTaken
from slipstream.tools import Effect, Tool, Toolset, tool
from slipstream.types import (
    Artifact,
    Brief,
    Ending,
    EndReason,
    File,
    Grading,
    Job,
    JobKey,
    Role,
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
    script: Callable[[ScriptedCall], Line],
    *,
    provider: SandboxProvider,
    journal: MemoryJournal,
    grader: Callable[[str], Grader] = find_grader,
) -> AttemptDeps:
    model = ScriptedChat(script)

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        terms = CallContext(
            params=SampleParams(), max_context_tokens=1000, gate=OpenGate(), key=job.key, attempt=attempt
        )
        return ChatDialogue(model, terms, log)

    return AttemptDeps(
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


def test_what_has_no_room_beside_the_other_files_of_an_artifact_is_named() -> None:
    journal = MemoryJournal()
    paths = tuple(f"f{number}" for number in range(MAX_FILES_BYTES // MAX_ARTIFACT_BYTES + 1))
    files = dict.fromkeys(paths, File(data=bytes(MAX_ARTIFACT_BYTES)))
    task = replace(TASK, sandbox=SandboxSpec(files=files), artifact=paths)

    async def main() -> None:
        journal.append(JobAdmitted(job=JOB))
        crew = make_crew(replies(act("finish", answer="yes")), provider=FakeProvider(), journal=journal)
        attempt = RolloutAttempt(crew, task, JOB, 1)
        await attempt.init()
        await attempt.run()
        await attempt.release()
        await attempt.aclose()

    asyncio.run(main())
    ended = list(journal.events())[-1]
    assert isinstance(ended, RunEnded)
    assert tuple(ended.artifact.files) == paths[:-1]
    assert tuple(ended.artifact.problems) == paths[-1:]


def test_the_agent_never_sees_the_grading_and_the_grader_never_the_agents_sandbox() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()
    seen: list[str] = []
    given: list[tuple[Grading, Artifact, GradeContext]] = []

    def script(scene: ScriptedCall) -> Line:
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

    def script(scene: ScriptedCall) -> Line:
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


def stopped_after(num_turns: int, journal: MemoryJournal, script: Callable[[ScriptedCall], Line]) -> PastAttempt:
    """An attempt as far as its first turns, in the journal and as a resumed run gets it."""

    async def main() -> tuple[TurnTaken, ...]:
        whole = MemoryJournal()
        attempt = RolloutAttempt(make_crew(script, provider=FakeProvider(), journal=whole), TASK, JOB, 1)
        await attempt.init()
        await attempt.run()
        await attempt.aclose()
        return tuple(event for event in whole.events() if isinstance(event, TurnTaken))

    taken = asyncio.run(main())[:num_turns]
    journal.append(JobAdmitted(job=JOB))
    for event in taken:
        journal.append(event)
    return PastAttempt(attempt=1, turns=tuple(event.turn for event in taken))


def by_replies(*lines: Line) -> Callable[[ScriptedCall], Line]:
    """Says the line after those that are in the conversation, so it continues in another process too."""
    return lambda scene: lines[sum(message.role is Role.ASSISTANT for message in scene.messages)]


def test_an_attempt_that_goes_on_writes_each_turn_once_and_leaves_the_whole_rollout() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()
    asked: list[str] = []
    say = by_replies(act("write_file", path="out", content="7\n"), act("finish", answer="yes"))

    def script(scene: ScriptedCall) -> Line:
        asked.append(scene.session)
        return say(scene)

    past = stopped_after(1, journal, say)

    async def main() -> None:
        attempt = RolloutAttempt(make_crew(script, provider=provider, journal=journal), TASK, JOB, 1, past)
        await attempt.init()
        await attempt.run()
        await attempt.release()
        rollout = await attempt.grade()
        assert [turn.index for turn in rollout.turns] == [0, 1]
        assert rollout.turns[:1] == past.turns
        assert rollout.verdict == Verdict(reward=1.0)
        journal.append(RolloutDone(rollout=rollout))
        await journal.flush()

    asyncio.run(main())
    assert asked == ["eval/0/t/0#1"]
    *_, first, second, ended, _ = journal.events()
    assert isinstance(first, TurnTaken) and isinstance(second, TurnTaken) and isinstance(ended, RunEnded)
    assert (first.turn.index, second.turn.index) == (0, 1)
    assert ended.artifact.files == {"out": b"7\n"}, "the last turn's call was made now"


def test_where_the_run_has_ended_the_recorded_artifact_is_graded_without_the_agents_sandbox() -> None:
    provider, journal = WatchedProvider(), MemoryJournal()
    turns = stopped_after(2, journal, replies(act("write_file", path="out", content="7\n"), act("finish"))).turns
    ended = RunEnded(
        key=JOB.key,
        attempt=1,
        ending=Ending(reason=EndReason.FINISHED, answer="yes"),
        artifact=Artifact(answer="yes", files={"out": b"7\n"}),
    )
    journal.append(ended)
    past = PastAttempt(attempt=1, turns=turns, run_ended=ended)

    async def main() -> None:
        attempt = RolloutAttempt(make_crew(replies(), provider=provider, journal=journal), TASK, JOB, 1, past)
        rollout = await attempt.grade()
        await attempt.aclose()
        assert rollout.verdict == Verdict(reward=1.0)
        assert (rollout.ending, rollout.turns) == (ended.ending, turns)
        journal.append(RolloutDone(rollout=rollout))
        await journal.flush()

    asyncio.run(main())
    assert provider.opened == []
    assert [type(event) for event in journal.events()] == [JobAdmitted, TurnTaken, TurnTaken, RunEnded, RolloutDone]


def run_with(tools: tuple[Tool, ...], script: Callable[[ScriptedCall], Line], journal: MemoryJournal) -> None:
    """One attempt without a sandbox, as far as its run."""

    async def main() -> None:
        journal.append(JobAdmitted(job=JOB))
        toolset = Toolset([*tools, *Toolset.named(["finish"]).tools.values()])
        crew = make_crew(script, provider=FakeProvider(), journal=journal)
        attempt = RolloutAttempt(
            replace(crew, make_runner=lambda task: ToolAgent(toolset)),
            replace(TASK, sandbox=None, artifact=()),
            JOB,
            1,
        )
        await attempt.run()

    asyncio.run(main())


def test_a_turn_is_written_while_its_tools_run() -> None:
    journal = MemoryJournal()
    kept: list[int] = []

    @tool(effect=Effect.PURE)
    async def wait() -> str:
        """Give others time."""
        for _ in range(5):
            await asyncio.sleep(0)
        kept.append(len(list(journal.reopened().events())))
        return "waited"

    run_with((wait,), replies(act("wait"), act("wait"), act("finish")), journal)
    assert kept == [2, 3]


def test_a_journal_that_fails_ends_the_run_at_once() -> None:
    @tool(effect=Effect.PURE)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    with pytest.raises(JournalError, match="told to fail"):
        run_with((hang,), replies(act("hang")), MemoryJournal(fail_after_flushes=0))


class ClosedDialogue(ChatDialogue):
    """Notes when it is closed."""

    def __init__(
        self, script: Callable[[ScriptedCall], Line], terms: CallContext, log: TurnLog, closed: list[str]
    ) -> None:
        super().__init__(ScriptedChat(script), terms, log)
        self._closed = closed
        self._session = terms.session

    def close(self) -> None:
        self._closed.append(self._session)


@pytest.mark.parametrize("raised", [None, ModelError, asyncio.CancelledError])
def test_the_dialogue_is_closed_once_however_the_run_ended(raised: type[BaseException] | None) -> None:
    closed: list[str] = []
    runs: list[asyncio.Task[None]] = []

    def script(scene: ScriptedCall) -> Line:
        assert closed == []
        if raised is ModelError:
            raise RuntimeError("told to fail")
        if raised is asyncio.CancelledError:
            runs[0].cancel()
        return act("finish", answer="yes")

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        terms = CallContext(
            params=SampleParams(), max_context_tokens=1000, gate=OpenGate(), key=job.key, attempt=attempt
        )
        return ClosedDialogue(script, terms, log, closed)

    async def main() -> None:
        journal = MemoryJournal()
        journal.append(JobAdmitted(job=JOB))
        crew = replace(make_crew(script, provider=FakeProvider(), journal=journal), make_dialogue=make_dialogue)
        attempt = RolloutAttempt(crew, TASK, JOB, 3)
        await attempt.init()
        runs.append(asyncio.create_task(attempt.run()))
        with nullcontext() if raised is None else pytest.raises(raised):
            await runs[0]
        assert closed == ["eval/0/t/0#3"]
        await attempt.aclose()

    asyncio.run(main())
    assert closed == ["eval/0/t/0#3"]

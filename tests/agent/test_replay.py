"""An attempt that is resumed from its recorded turns: as if it had never stopped, or not at all."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from slipstream.agent.answers import NO_CALL
from slipstream.agent.config import AgentConfig, CondenseConfig, HintRules
from slipstream.agent.loop import ToolAgent
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ReplayError, SandboxBroken
from slipstream.model.scripted import Line, ScriptedCall, ScriptedChat, ScriptedModel, act
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.sandbox.fake import Answer, Command, FakeProvider, Files, few_programs
from slipstream.simulate.clock import run_virtual
from slipstream.tools import ContextEdit, Effect, Hint, Observation, Tool, ToolContext, Toolset, class_tool, tool
from slipstream.tools.base import Finish
from slipstream.tools.editor import edit
from slipstream.types import (
    AgentLimits,
    Brief,
    Ending,
    EndReason,
    File,
    ForkReason,
    Image,
    JobKey,
    Message,
    Role,
    SampleParams,
    SandboxSpec,
    Span,
    SpanKind,
    ToolCall,
    Turn,
)

RENDERER = Renderer("qwen3", ByteTokenizer())
Kind = Literal["tokens", "chat"]


@dataclass
class Seen:
    ending: Ending
    taken: list[Turn]
    """The turns that were taken now, and so written."""
    log: list[Turn]
    """All turns of the attempt."""
    spans: list[Span]
    asked: list[tuple[str, int | None, str]]
    """Of each model call: its session, its seed and its prompt."""
    commands: list[Command]


@dataclass
class Stage:
    """The same task, to be run whole or from recorded turns."""

    script: Callable[[int, ScriptedCall], Line]
    """From the number of replies before this one."""
    tools: Sequence[Tool] = ()
    kind: Kind = "tokens"
    limits: AgentLimits = AgentLimits(turns=12, context_tokens=100_000)
    files: dict[str, bytes] = field(default_factory=lambda: {"/note": b"a note\n"})
    program: Callable[[Command, Files], Any] = few_programs
    config: AgentConfig = AgentConfig()

    def run(self, past: Sequence[Turn] = (), **changed: Any) -> Seen:
        return run_virtual(replace(self, **changed)._run(past))

    async def _run(self, past: Sequence[Turn]) -> Seen:
        asked: list[tuple[str, int | None, str]] = []
        seen = Seen(Ending(reason=EndReason.FINISHED), [], [], [], asked, [])
        log = TurnLog(seed=3, on_turn=seen.taken.append, on_span=seen.spans.append)
        spec = SandboxSpec(files={path: File(data=data) for path, data in self.files.items()})
        sandbox = await FakeProvider(self.program).open(spec)
        toolset = Toolset([*Toolset.named(["bash", "finish"]).tools.values(), *self.tools])
        brief = Brief(instruction="Do it.", system="Be good.", limits=self.limits)
        try:
            seen.ending = await ToolAgent(toolset, self.config).run(
                brief, sandbox, self._dialogue(asked, log), past, on_span=seen.spans.append
            )
        finally:
            seen.commands.extend(sandbox.commands)
        seen.log.extend(log.turns)
        return seen

    def _dialogue(self, asked: list[tuple[str, int | None, str]], log: TurnLog) -> Dialogue:
        def script(scene: ScriptedCall) -> Line:
            asked.append((scene.session, scene.seed, scene.prompt_text))
            if self.kind == "chat":
                return self.script(sum(message.role is Role.ASSISTANT for message in scene.messages), scene)
            return self.script(scene.prompt_text.count("<|im_start|>assistant") - 1, scene)

        terms = CallContext(
            params=SampleParams(max_tokens=500),
            max_context_tokens=self.limits.context_tokens,
            gate=OpenGate(),
            key=JobKey(phase="eval", step=0, task_id="t", sample=0),
            attempt=4,
        )
        if self.kind == "chat":
            return ChatDialogue(ScriptedChat(script), terms, log)
        model = ScriptedModel(
            script, decode=RENDERER.decode, encode=RENDERER.encode_reply, encode_text=RENDERER.encode_text
        )
        return TokenDialogue(RENDERER, model, terms, log)


def lines(*said: Line) -> Callable[[int, ScriptedCall], Line]:
    return lambda number, scene: said[number]


def two_calls(*calls: tuple[str, dict[str, Any]]) -> Message:
    made = tuple(ToolCall(id=f"c{place}", name=name, arguments=args) for place, (name, args) in enumerate(calls))
    return Message(role=Role.ASSISTANT, calls=made)


@tool(effect=Effect.PURE)
async def look(at: int) -> Observation:
    """Look."""
    return Observation(text=f"thing {at}", is_error=at == 2, hints=(Hint(name="near", text="Nearer."),))


@tool(effect=Effect.PURE)
async def see() -> Observation:
    """See."""
    return Observation(text="this", images=(Image(data=b"picture"),))


LONG = lines(
    act("bash", command="cat /note"),
    two_calls(("look", {"at": 1}), ("bash", {"command": "echo between"}), ("look", {"at": 2})),
    "I think about it.<|im_end|>",
    "<tool_call>{oops}</tool_call><|im_end|>",
    act("nothing", at=1),
    act("bash", command="cat /missing"),
    act("finish", answer="42"),
)


@pytest.mark.parametrize("kind", ["tokens", "chat"])
@pytest.mark.parametrize("num_past", range(1, 8))
def test_it_goes_on_exactly_as_the_unbroken_one(kind: Kind, num_past: int) -> None:
    stage = Stage(LONG, tools=(look,), kind=kind, limits=AgentLimits(turns=7, context_tokens=100_000))
    whole = stage.run()
    rest = stage.run(whole.taken[:num_past])
    assert rest.log == whole.taken
    assert rest.taken == whole.taken[num_past:]
    assert rest.asked == whole.asked[num_past:]
    assert rest.ending == whole.ending == Ending(reason=EndReason.FINISHED, answer="42")
    assert len(whole.asked) == len(whole.taken) == 7


def test_pictures_are_read_back_too() -> None:
    stage = Stage(lines(act("see"), act("see"), act("finish")), tools=(see,), kind="chat")
    whole = stage.run()
    assert stage.run(whole.taken[:2]).log == whole.taken
    assert whole.taken[1].messages[0].images == (Image(data=b"picture"),)


def test_a_pure_call_is_not_made_again_and_a_sandboxed_one_is() -> None:
    looked: list[int] = []

    @tool(effect=Effect.PURE)
    async def peek(at: int) -> str:
        """Peek."""
        looked.append(at)
        return f"at {at}: {len(looked)}"

    stage = Stage(
        lines(
            two_calls(("peek", {"at": 1}), ("bash", {"command": "echo a"})),
            act("bash", command="echo b"),
            act("peek", at=2),
            act("finish"),
        ),
        tools=(peek,),
    )
    whole = stage.run()
    assert looked == [1, 2]
    rest = stage.run(whole.taken[:3])
    assert looked == [1, 2, 2], "only the call of the last turn, which may not have been made"
    assert rest.commands == ["echo a", "echo b"]
    replayed = [span.counts.get("replayed", 0) for span in rest.spans if span.kind is SpanKind.TOOL]
    assert replayed[-2:] == [0, 0]


@pytest.mark.parametrize("kind", ["tokens", "chat"])
def test_a_shortened_observation_is_compared_with_the_whole_one(kind: Kind) -> None:
    script = lines(act("bash", command="echo on"), act("bash", command="cat /note"), act("finish"), act("finish"))
    stage = Stage(script, kind=kind, limits=AgentLimits(turns=4, context_tokens=3_000))
    note = "".join(f"line {number}\n" for number in range(5_000))
    whole = stage.run(files={"/note": note.encode()})
    if kind == "tokens":
        assert "characters left out" in whole.taken[2].messages[0].content
    assert stage.run(whole.taken[:3], files={"/note": note.encode()}).log == whole.taken
    with pytest.raises(ReplayError, match="before, but"):
        stage.run(whole.taken[:3], files={"/note": note.replace("line 4", "LINE 4").encode()})


def test_another_observation_ends_the_attempt() -> None:
    stage = Stage(lines(act("bash", command="cat /note"), act("bash", command="echo on"), act("finish")))
    past = stage.run().taken[:2]
    with pytest.raises(ReplayError, match=r"turn 0: bash answered 'a note' before, but 'another' on replay"):
        stage.run(past, files={"/note": b"another\n"})


def test_the_last_turns_calls_have_nothing_to_be_compared_with() -> None:
    stage = Stage(lines(act("bash", command="cat /note"), act("finish")))
    rest = stage.run(stage.run().taken[:1], files={"/note": b"another\n"})
    assert [message.content for message in rest.taken[0].messages[:-1]] == ["another"]


def test_a_call_that_fails_now_and_did_not_before_is_another_observation() -> None:
    def silent(code: int) -> Callable[[Command, Files], Answer]:
        return lambda command, files: (code, "[exit code 1]" if code == 0 else "")

    stage = Stage(lines(act("bash", command="x"), act("bash", command="x"), act("finish")), program=silent(0))
    past = stage.run().taken[:2]
    with pytest.raises(ReplayError, match="turn 0"):
        stage.run(past, program=silent(1))


@pytest.mark.parametrize("num_past", [1, 2])
def test_an_external_call_is_never_made_again_and_nothing_else_is_either(num_past: int) -> None:
    sent: list[str] = []

    @tool(effect=Effect.EXTERNAL)
    async def send(text: str) -> str:
        """Send."""
        sent.append(text)
        return "sent"

    stage = Stage(
        lines(two_calls(("bash", {"command": "echo a"}), ("send", {"text": "hi"})), act("bash", command="echo b")),
        tools=(send,),
        limits=AgentLimits(turns=2, context_tokens=100_000),
    )
    past = stage.run().taken[:num_past]
    sandboxes: list[Files] = []

    def watched(command: Command, files: Files) -> Answer:
        sandboxes.append(files)
        return 0, ""

    with pytest.raises(ReplayError, match="turn 0 called send"):
        stage.run(past, program=watched)
    assert sent == ["hi"]
    assert sandboxes == []


def test_an_external_call_waits_until_its_turn_is_durable() -> None:
    happened: list[str] = []

    @tool(effect=Effect.EXTERNAL)
    async def send() -> str:
        """Send."""
        happened.append("sent")
        return "sent"

    async def settle() -> None:
        await asyncio.sleep(1)
        happened.append("durable")

    async def main() -> None:
        stage = Stage(lines(act("look", at=1), act("send"), act("finish")), tools=(send, look))
        log = TurnLog(
            seed=3,
            on_turn=lambda turn: happened.append(f"turn {turn.index}"),
            on_span=lambda span: None,
            settle=settle,
        )
        toolset = Toolset([*Toolset.named(["finish"]).tools.values(), send, look])
        await ToolAgent(toolset).run(
            Brief(instruction="?"), None, stage._dialogue([], log), (), on_span=lambda span: None
        )

    run_virtual(main())
    assert happened == ["turn 0", "turn 1", "durable", "sent", "turn 2"]


def pages(wrong: str = "") -> Tool:
    """A tool that keeps a place, and rewrites the conversation to it."""

    class Page:
        def __init__(self) -> None:
            self.number = 0

        async def call(self, notes: str, *, ctx: ToolContext) -> ContextEdit:
            """Read on."""
            self.number += 1
            page = Message(role=Role.USER, content=f"page {self.number}{wrong}, notes {notes}")
            return ContextEdit(messages=(*ctx.opening, page), note=f"page {self.number}")

    return class_tool(Page, name="read_on", effect=Effect.STATE)


def reader(number: int, scene: ScriptedCall) -> Line:
    """Reads four pages; a command is run on the second, in a turn of its own and then beside the reading on."""
    text = scene.prompt_text
    if "page 4" in text:
        return act("finish", answer="done")
    if "page 2" in text and "a note" not in text:
        return act("bash", command="cat /note")
    if "page 2" in text:
        return two_calls(("bash", {"command": "echo lost"}), ("read_on", {"notes": "c"}), ("look", {"at": 1}))
    return act("read_on", notes="n")


@pytest.mark.parametrize("kind", ["tokens", "chat"])
@pytest.mark.parametrize("num_past", range(1, 7))
def test_a_rewritten_conversation_goes_on_exactly_as_the_unbroken_one(kind: Kind, num_past: int) -> None:
    stage = Stage(reader, tools=(pages(), look), kind=kind, limits=AgentLimits(turns=6, context_tokens=100_000))
    whole = stage.run()
    rest = stage.run(whole.taken[:num_past])
    assert [turn.branch for turn in whole.taken] == [0, 1, 2, 2, 3, 4]
    assert rest.log == whole.taken
    assert rest.asked == whole.asked[num_past:]
    assert rest.ending == whole.ending == Ending(reason=EndReason.FINISHED, answer="done")


def test_another_rewriting_ends_the_attempt() -> None:
    past = Stage(reader, tools=(pages(), look)).run().taken[:3]
    with pytest.raises(ReplayError, match="turn 0 rewrote the conversation to something else on replay"):
        Stage(reader, tools=(pages(wrong="!"), look)).run(past)

    class Stays:
        async def call(self, notes: str) -> str:
            """Stay."""
            return notes

    stays = class_tool(Stays, name="read_on", effect=Effect.STATE)
    with pytest.raises(ReplayError, match="turn 0 rewrote the conversation before, and does not on replay"):
        Stage(reader, tools=(stays, look)).run(past)


def worker(number: int, scene: ScriptedCall) -> Line:
    """Prints six pages, and knows how far it came only from what it sees."""
    page = max((page for page in range(1, 7) if f"page {page}" in scene.prompt_text), default=0)
    if "window is nearly full" in scene.prompt_text:
        return f"up to page {page}" + ("" if scene.messages else "<|im_end|>")
    return act("finish", answer="done") if page == 6 else act("bash", command=f"echo page {page + 1} {'x' * 300}")


@pytest.mark.parametrize("kind", ["tokens", "chat"])
def test_a_condensed_conversation_goes_on_exactly_as_the_unbroken_one(kind: Kind) -> None:
    limits = AgentLimits(turns=12, context_tokens=5_000 if kind == "tokens" else 700)
    config = AgentConfig(condense=CondenseConfig(on=True, at=0.5), hints=HintRules(on=True, turns_left=True))
    stage = Stage(worker, kind=kind, limits=limits, config=config)
    whole = stage.run()
    assert [turn.fork for turn in whole.taken].count(ForkReason.CONDENSED) >= 2
    assert whole.ending == Ending(reason=EndReason.FINISHED, answer="done")
    for num_past in range(1, len(whole.taken) + 1):
        rest = stage.run(whole.taken[:num_past])
        assert rest.log == whole.taken
        assert rest.asked == whole.asked[num_past:]
        assert rest.ending == whole.ending


def test_a_conversation_beside_it_does_not_go_on() -> None:
    @tool(effect=Effect.PURE)
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        assert ctx.model is not None
        return await ctx.model.ask([Message(role=Role.USER, content="Really?")], max_tokens=50)

    def script(number: int, scene: ScriptedCall) -> Line:
        if "Really?" in scene.prompt_text:
            return "Yes.<|im_end|>"
        return act("finish" if number else "ask")

    stage = Stage(script, tools=(ask,))
    past = stage.run().taken
    with pytest.raises(ReplayError, match=r"turn 1 is on a separate branch \(nested\)"):
        stage.run(past[:2])


def test_turns_with_a_hole_do_not_go_on() -> None:
    past = Stage(LONG, tools=(look,)).run().taken
    with pytest.raises(ReplayError, match="turn 2 after turn 1; turn 1 was expected"):
        Stage(LONG, tools=(look,)).run([past[0], past[2]])


def test_a_finish_as_the_last_call_ends_it_without_asking() -> None:
    stage = Stage(lines(act("bash", command="echo a"), act("finish", answer="42")))
    rest = stage.run(stage.run().taken)
    assert rest.ending == Ending(reason=EndReason.FINISHED, answer="42")
    assert rest.asked == []


def test_a_last_turn_without_a_call_is_answered() -> None:
    stage = Stage(lines("Hm.<|im_end|>", act("finish")))
    rest = stage.run(stage.run().taken[:1])
    assert [message.content for message in rest.taken[0].messages[:-1]] == [NO_CALL]
    assert rest.ending.reason is EndReason.FINISHED


def test_the_turn_limit_counts_the_turns_before() -> None:
    def busy(number: int, scene: ScriptedCall) -> Line:
        return act("bash", command=f"echo {number}")

    stage = Stage(busy, limits=AgentLimits(turns=5, context_tokens=100_000))
    whole = stage.run()
    for num_past in (2, 5):
        rest = stage.run(whole.taken[:num_past])
        assert (rest.ending, rest.log) == (whole.ending, whole.taken)
        assert rest.ending.reason is EndReason.TURN_LIMIT


def test_the_window_counts_the_turns_before() -> None:
    def busy(number: int, scene: ScriptedCall) -> Line:
        return act("bash", command=f"echo {number} {'x' * 300}")

    stage = Stage(busy, limits=AgentLimits(turns=50, context_tokens=4_000))
    whole = stage.run()
    assert whole.ending.reason is EndReason.TOKEN_LIMIT
    for num_past in range(1, len(whole.taken) + 1):
        rest = stage.run(whole.taken[:num_past])
        assert (rest.ending, rest.log) == (whole.ending, whole.taken)


@pytest.mark.parametrize(
    "script",
    [
        lambda number, scene: act("bash", command="echo again"),
        lambda number, scene: act("bash", command="exit 3"),
        lambda number, scene: act("look", at=2),  # fails, and is read back
        lambda number, scene: "lorem ipsum<|im_end|>",
        lambda number, scene: act("look", at=number % 2 + 1),  # one of two fails, and both are read back
        lambda number, scene: act("bash", command="cat /note" if number % 2 else "exit 3"),
    ],
    ids=["same", "failing", "failing and pure", "idle", "alternating and pure", "alternating"],
)
def test_a_stuck_agent_is_given_up_at_the_same_turn(script: Callable[[int, ScriptedCall], Line]) -> None:
    stage = Stage(script, tools=(look,))
    whole = stage.run()
    assert whole.ending.reason is EndReason.STUCK
    for num_past in range(1, len(whole.taken) + 1):
        rest = stage.run(whole.taken[:num_past])
        assert (rest.ending, rest.log) == (whole.ending, whole.taken)


def test_the_time_of_tools_that_are_run_again_counts() -> None:
    def sleepy(number: int, scene: ScriptedCall) -> Line:
        return act("bash", command=f"sleep {20 + number}")

    stage = Stage(sleepy, limits=AgentLimits(turns=50, context_tokens=100_000, tool_seconds=100))
    whole = stage.run()
    assert whole.ending.reason is EndReason.TOOL_TIME_LIMIT
    for num_past in range(1, len(whole.taken) + 1):
        rest = stage.run(whole.taken[:num_past])
        assert (rest.ending, rest.log) == (whole.ending, whole.taken)
    replayed = [span.counts.get("replayed", 0) for span in rest.spans if span.kind is SpanKind.TOOL]
    assert replayed == [1] * (len(replayed) - 1) + [0]


def test_a_sandbox_that_breaks_where_it_did_not_is_another_observation_and_not_the_agents_doing() -> None:
    broken: list[bool] = []

    @tool(effect=Effect.SANDBOX)
    async def touch() -> str:
        """Touch."""
        if broken:
            raise SandboxBroken("it fell apart")
        return "fine"

    stage = Stage(lines(act("touch"), act("touch"), act("finish")), tools=(touch,))
    past = stage.run().taken[:2]
    broken.append(True)
    with pytest.raises(ReplayError, match="touch succeeded before, but broke the sandbox on replay"):
        stage.run(past)
    assert stage.run(past[:1]).ending.reason is EndReason.BROKE_SANDBOX, "the last turn's calls are its own"


def test_a_tool_that_ends_the_rollout_where_it_did_not_is_another_observation() -> None:
    ends: list[bool] = []

    @tool(effect=Effect.SANDBOX)
    async def step() -> str | Finish:
        """Step."""
        return Finish(answer="on") if ends else "on"

    stage = Stage(lines(act("step"), act("step"), act("finish")), tools=(step,))
    past = stage.run().taken[:2]
    ends.append(True)
    with pytest.raises(ReplayError, match="but a Finish on replay"):
        stage.run(past)


def test_tools_see_the_conversation_as_it_was() -> None:
    seen: list[list[str]] = []

    @tool(effect=Effect.SANDBOX)
    async def note(*, ctx: ToolContext) -> str:
        """Note."""
        seen.append([message.content for message in ctx.messages])
        return f"note {len(ctx.messages)}"

    stage = Stage(lines(act("note"), act("note"), act("note"), act("finish")), tools=(note,))
    whole = stage.run()
    before, seen = seen, []
    stage.run(whole.taken[:3])
    assert seen == before


def test_the_sandbox_is_given_what_the_record_says_and_no_more() -> None:
    stage = Stage(LONG, tools=(look,))
    whole = stage.run()
    assert stage.run(whole.taken).commands == whole.commands == ["cat /note", "echo between", "cat /missing"]


HINTED = lines(
    act("look", at=2),
    two_calls(("bash", {"command": "echo between"}), ("look", {"at": 2})),
    "I think about it.<|im_end|>",
    "<tool_call>{oops}</tool_call><|im_end|>",
    act("grep", pattern="note"),
    act("edit", command="str_replace", path="/note", old_str="A note", new_str="Another"),
    act("finish"),
    act("edit", command="str_replace", path="/note", old_str="a note", new_str="another note"),
    act("look", at=1),
    act("look", at=1),
    act("finish"),
    act("edit", command="undo", path="/note"),
    act("finish", answer="42"),
)
GIVEN = [
    (),
    ("near",),
    ("near", "repeated_failure"),
    ("no_call",),
    ("malformed_call",),
    ("unknown_tool",),
    ("missed_edit",),
    ("finish_unchanged",),
    ("few_turns",),
    ("near",),
    ("near", "few_tokens", "repeated_call"),
    ("finish_unchecked",),
    ("few_turns",),
]


@pytest.mark.parametrize("num_past", range(1, 14))
def test_hints_are_given_as_in_the_unbroken_one(num_past: int) -> None:
    stage = Stage(
        HINTED,
        tools=(look, edit),
        limits=AgentLimits(turns=13, context_tokens=6_100),
        config=AgentConfig(hints=HintRules(on=True)),
    )
    whole = stage.run()
    assert [turn.messages[-2].hints for turn in whole.taken] == GIVEN
    assert all(turn.fork is None for turn in whole.taken)
    rest = stage.run(whole.taken[:num_past])
    assert (rest.log, rest.asked) == (whole.taken, whole.asked[num_past:])
    assert rest.ending == whole.ending == Ending(reason=EndReason.FINISHED, answer="42")


def test_a_stuck_agent_is_given_up_at_the_same_turn_with_hints_or_without() -> None:
    stage = Stage(lambda number, scene: act("look", at=2), tools=(look,))
    hinted = replace(stage, config=AgentConfig(hints=HintRules(on=True)))
    whole = hinted.run()
    assert whole.taken[-1].messages[0].hints == ("near", "repeated_failure")
    assert whole.ending == stage.run().ending
    for num_past in range(1, len(whole.taken) + 1):
        rest = hinted.run(whole.taken[:num_past])
        assert (rest.ending, rest.log) == (whole.ending, whole.taken)

"""A window that is nearly full: the agent is asked for a summary and goes on from it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from slipstream.agent.condense import ASK, HINT, NO_SUMMARY
from slipstream.agent.config import AgentConfig, CondenseConfig, HintRules
from slipstream.agent.loop import ToolAgent
from slipstream.batch.merge import merge
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ConfigError
from slipstream.model.scripted import Line, ScriptedCall, ScriptedChat, ScriptedModel, act
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.simulate.clock import run_virtual
from slipstream.tools import Effect, Tool, Toolset, tool
from slipstream.types import (
    NO_LIMIT,
    AgentLimits,
    Brief,
    Ending,
    EndReason,
    ForkReason,
    Job,
    JobKey,
    Message,
    Role,
    Rollout,
    SampleParams,
    StopReason,
    ToolCall,
    Turn,
    Verdict,
)

RENDERER = Renderer("qwen3", ByteTokenizer())
KEY = JobKey(phase="eval", step=0, task_id="t", sample=0)
ON = AgentConfig(condense=CondenseConfig(on=True, at=0.6))
WINDOW = 4_000


@tool(effect=Effect.PURE)
async def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + "word " * 200


@dataclass
class Seen:
    ending: Ending
    turns: list[Turn]
    prompts: list[str] = field(default_factory=list)
    max_tokens: list[int] = field(default_factory=list)

    @property
    def forks(self) -> list[ForkReason | None]:
        return [turn.fork for turn in self.turns]

    def summary(self) -> Turn:
        """The first turn that was asked for one."""
        return next(turn for turn in self.turns if HINT in turn.messages[-2].hints)


def run(
    script: Callable[[ScriptedCall], Line],
    config: AgentConfig = ON,
    *,
    tools: tuple[Tool, ...] = (read,),
    is_chat: bool = False,
    window: int = WINDOW,
    turns: int = 14,
    max_tokens: int = 1_024,
) -> Seen:
    seen = Seen(Ending(reason=EndReason.FINISHED), [])

    def watched(scene: ScriptedCall) -> Line:
        seen.prompts.append(scene.prompt_text)
        seen.max_tokens.append(scene.params.max_tokens)
        return script(scene)

    async def main() -> Seen:
        terms = CallContext(
            params=SampleParams(max_tokens=max_tokens), max_context_tokens=window, gate=OpenGate(), key=KEY, attempt=1
        )
        log = TurnLog(seed=0, on_turn=seen.turns.append, on_span=lambda span: None)
        model = ScriptedModel(
            watched, decode=RENDERER.decode, encode=RENDERER.encode_reply, encode_text=RENDERER.encode_text
        )
        dialogue: Dialogue = TokenDialogue(RENDERER, model, terms, log)
        if is_chat:
            dialogue = ChatDialogue(ScriptedChat(watched), terms, log)
        toolset = Toolset([*Toolset.named(["finish"]).tools.values(), *tools])
        brief = Brief(instruction="Read it all.", system="Be good.", limits=AgentLimits(turns=turns))
        seen.ending = await ToolAgent(toolset, config).run(brief, None, dialogue, (), on_span=lambda span: None)
        return seen

    return run_virtual(main())


def reader(scene: ScriptedCall) -> Line:
    """Reads pages 1 to 8, and knows how far it came only from what it sees."""
    if ASK in scene.prompt_text:
        return f"read up to page {_page(scene)}<|im_end|>"
    page = _page(scene)
    return act("finish", answer=str(page)) if page == 8 else act("read", page=page + 1)


def _page(scene: ScriptedCall) -> int:
    return max((page for page in range(1, 9) if f"page {page}" in scene.prompt_text), default=0)


def test_it_goes_on_where_it_would_have_ended() -> None:
    assert run(reader, AgentConfig()).ending.reason is EndReason.TOKEN_LIMIT
    seen = run(reader)
    assert seen.ending == Ending(reason=EndReason.FINISHED, answer="8")
    assert seen.forks[:5] == [None, None, None, ForkReason.CONDENSED, None]
    assert seen.forks.count(ForkReason.CONDENSED) == 4
    asked, after = seen.turns[2], seen.turns[3]
    assert asked == seen.summary()
    assert asked.messages[-2].role is Role.TOOL, "the request rides in the tool's answer"
    assert asked.messages[-2].content.endswith(ASK)
    assert [message.role for message in after.messages[:-1]] == [Role.SYSTEM, Role.USER]
    assert after.messages[1].content.startswith("Read it all.\n\n")
    assert after.messages[1].content.endswith("\nread up to page 2")
    assert (after.parent, after.branch) == (2, 1)
    assert "word word" not in seen.prompts[3]


@pytest.mark.parametrize("trained", [True, False])
def test_the_summary_is_trained_on_as_chosen(trained: bool) -> None:
    seen = run(reader, AgentConfig(condense=CondenseConfig(on=True, at=0.6, trained=trained)))
    rollout = Rollout(
        job=Job(key=KEY, seed=0),
        attempt=1,
        ending=seen.ending,
        turns=tuple(seen.turns),
        verdict=Verdict(reward=1.0),
    )
    first, second, *_ = merge(rollout).samples
    assert (first.fork, second.fork) == (None, ForkReason.CONDENSED)
    said = bytes(token for token, mask in zip(first.ids, first.mask, strict=True) if mask and token < 256).decode()
    assert ("read up to page 2" in said) is trained
    assert said.count('"name": "read"') == 2
    given = bytes(token for token, mask in zip(second.ids, second.mask, strict=True) if not mask and token < 256)
    assert b"read up to page 2" in given, "what goes on from it reads it, and does not learn it again"


def test_a_summary_has_its_own_limit_and_ordinary_replies_leave_room_for_it() -> None:
    def wordy(scene: ScriptedCall) -> Line:
        return "so much to say " * 1_000 if ASK in scene.prompt_text else reader(scene)

    seen = run(
        wordy, AgentConfig(condense=CondenseConfig(on=True, at=0.6, max_tokens=100)), turns=4, max_tokens=NO_LIMIT
    )
    sampled = seen.summary().sampled
    assert sampled is not None
    assert (len(sampled.ids), sampled.stop) == (100, StopReason.LENGTH)
    assert seen.turns[3].messages[1].content.endswith("so much to say so much to")
    for turn, most in zip(seen.turns[:2], seen.max_tokens, strict=False):
        assert 100 < WINDOW - turn.num_kept - len(turn.added) - most < 300


def test_no_summary_takes_more_than_an_eighth_of_the_window() -> None:
    assert run(reader).max_tokens[2] == WINDOW // 8


def test_a_call_in_place_of_a_summary_is_not_run() -> None:
    read_pages: list[int] = []

    @tool(effect=Effect.PURE)
    async def read(page: int) -> str:
        """Read a page."""
        read_pages.append(page)
        return f"page {page}: " + "word " * 200

    def eager(scene: ScriptedCall) -> Line:
        if NO_SUMMARY in scene.prompt_text:
            return act("finish")
        return act("read", page=len(read_pages) + 1)

    seen = run(eager, tools=(read,))
    assert read_pages == [1, 2]
    assert seen.summary().messages[-1].calls == (
        ToolCall(id="call_2_0", name="read", arguments={"page": 3}, raw=seen.summary().messages[-1].calls[0].raw),
    )
    assert seen.ending.reason is EndReason.FINISHED


def test_other_hints_stand_before_the_request_and_the_turn_is_counted() -> None:
    seen = run(reader, AgentConfig(condense=ON.condense, hints=HintRules(on=True, turns_left=True)))
    assert seen.summary().messages[-2].hints == ("turns_left", HINT)
    left = [message.content for turn in seen.turns for message in turn.messages if "turns_left" in message.hints]
    assert [f"{number} turns are left" in text for number, text in zip((13, 12, 10), left, strict=False)] == [True] * 3


def test_it_is_not_told_to_come_to_an_end_because_the_window_is_full() -> None:
    def hints(*, on: bool) -> set[str]:
        seen = run(reader, AgentConfig(condense=CondenseConfig(on=on, at=0.8), hints=HintRules(on=True)))
        return {name for turn in seen.turns for message in turn.messages for name in message.hints}

    assert hints(on=False) == {"few_tokens"}
    assert hints(on=True) - {"few_turns"} == {HINT}


def test_it_is_not_asked_again_at_once_where_the_task_itself_fills_the_window() -> None:
    seen = run(reader, AgentConfig(condense=CondenseConfig(on=True, at=0.01)), turns=8)
    assert [HINT in turn.messages[-2].hints for turn in seen.turns] == [False, True] * 4
    assert seen.ending.reason is EndReason.TURN_LIMIT


def test_an_answer_too_long_for_the_window_is_cut_so_that_there_is_room_to_sum_up() -> None:
    @tool(effect=Effect.PURE, max_output_chars=100_000)
    async def dump() -> str:
        """Print everything."""
        return "x" * 50_000

    def script(scene: ScriptedCall) -> Line:
        if ASK in scene.prompt_text:
            return "it was long<|im_end|>"
        return act("finish") if "it was long" in scene.prompt_text else act("dump")

    seen = run(script, tools=(dump,))
    assert seen.ending.reason is EndReason.FINISHED
    assert "characters left out" in seen.summary().messages[-2].content


def test_an_agent_behind_a_chat_server_is_asked_too() -> None:
    seen = run(reader_of_chat, is_chat=True, window=900)
    assert seen.ending == Ending(reason=EndReason.FINISHED, answer="8")
    assert ForkReason.CONDENSED in seen.forks


def reader_of_chat(scene: ScriptedCall) -> Line:
    said = reader(scene)
    return said.removesuffix("<|im_end|>") if isinstance(said, str) else said


def test_an_agent_condenses_by_itself_with_the_tool() -> None:
    def script(scene: ScriptedCall) -> Line:
        if "all is read" in scene.prompt_text:
            return act("finish")
        if "summary is empty" in scene.prompt_text:
            return act("condense", summary="all is read")
        return act("condense", summary=" ") if "page 2" in scene.prompt_text else act("read", page=_page(scene) + 1)

    (condense,) = Toolset.named(["condense"]).tools.values()
    seen = run(script, AgentConfig(), tools=(read, condense))
    assert seen.ending.reason is EndReason.FINISHED
    assert seen.forks == [None, None, None, None, ForkReason.CONTEXT_EDIT]
    *opening, told = seen.turns[-1].messages[:-1]
    assert opening == [Message(role=Role.SYSTEM, content="Be good.")]
    assert told.content.startswith("Read it all.\n\n")
    assert told.content.endswith("all is read")
    assert all(turn.trainable for turn in seen.turns)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.condense\.at"):
        CondenseConfig(at=1.0)

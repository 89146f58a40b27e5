"""The agent loop, driven by a scripted model through the real dialogue, renderer and tools."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from slipstream.agent.answers import CUT_OFF, NO_CALL
from slipstream.agent.config import AgentConfig
from slipstream.agent.loop import ToolAgent
from slipstream.dialogue.base import CallContext, TurnLog
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ModelError, SandboxBroken, ToolFailure
from slipstream.model.scripted import Line, ScriptedCall, ScriptedModel, act, replies
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.sandbox.fake import FakeProvider
from slipstream.simulate.clock import run_virtual
from slipstream.tools import ContextEdit, Effect, Hint, Observation, Tool, ToolContext, Toolset, tool
from slipstream.types import (
    AgentLimits,
    Brief,
    Ending,
    EndReason,
    ForkReason,
    JobKey,
    Message,
    Role,
    SampleParams,
    SandboxSpec,
    Span,
    SpanKind,
    ToolCall,
    Trust,
    Turn,
)

RENDERER = Renderer("qwen3", ByteTokenizer())


@dataclass
class Seen:
    ending: Ending
    turns: list[Turn]
    spans: list[Span]
    prompts: list[str] = field(default_factory=list)

    def told(self, turn: int) -> list[str]:
        """What the model was told before its reply of that turn."""
        return [message.content for message in self.turns[turn].messages[:-1]]


def run(
    script: Callable[[ScriptedCall], Line],
    *,
    extra: tuple[Tool, ...] = (),
    limits: AgentLimits | None = None,
    max_tokens: int = 500,
    config: AgentConfig | None = None,
) -> Seen:
    prompts: list[str] = []

    def watched(scene: ScriptedCall) -> Line:
        prompts.append(scene.prompt_text)
        return script(scene)

    async def main() -> Seen:
        limits_ = limits or AgentLimits(turns=10, context_tokens=100_000)
        turns: list[Turn] = []
        spans: list[Span] = []
        model = ScriptedModel(
            watched, decode=RENDERER.decode, encode=RENDERER.encode_reply, encode_text=RENDERER.encode_text
        )
        terms = CallContext(
            params=SampleParams(max_tokens=max_tokens),
            max_context_tokens=limits_.context_tokens,
            gate=OpenGate(),
            key=JobKey(phase="eval", step=0, task_id="t", sample=0),
            attempt=1,
        )
        dialogue = TokenDialogue(RENDERER, model, terms, TurnLog(seed=0, on_turn=turns.append, on_span=spans.append))
        sandbox = await FakeProvider().open(SandboxSpec())
        toolset = Toolset([*Toolset.named(["bash", "finish"]).tools.values(), *extra])
        brief = Brief(instruction="Do it.", system="Be good.", limits=limits_)
        agent = ToolAgent(toolset, config or AgentConfig())
        ending = await agent.run(brief, sandbox, dialogue, (), on_span=spans.append)
        await sandbox.aclose()
        return Seen(ending, turns, spans, prompts)

    return run_virtual(main())


def test_it_goes_on_until_the_model_finishes() -> None:
    seen = run(replies(act("bash", command="echo hello"), act("finish", answer="42")))
    assert seen.ending == Ending(reason=EndReason.FINISHED, answer="42")
    assert seen.told(0) == ["Be good.", "Do it."]
    assert seen.told(1) == ["hello"]
    assert [span.name for span in seen.spans if span.kind is SpanKind.TOOL] == ["bash", "finish"]


def test_several_calls_of_a_turn_are_all_run_and_answered_in_order() -> None:
    both = Message(
        role=Role.ASSISTANT,
        calls=tuple(ToolCall(id="x", name="bash", arguments={"command": f"echo {word}"}) for word in ("a", "b")),
    )
    assert run(replies(both, act("finish"))).told(1) == ["a", "b"]


def test_the_model_sees_what_was_wrong_with_its_call_and_can_mend_it() -> None:
    seen = run(
        replies(
            "<tool_call>{oops}</tool_call><|im_end|>",
            act("bassh", command="ls"),
            act("bash", comand="echo hi"),
            act("bash", command="echo mended"),
            act("finish"),
        )
    )
    assert "not valid JSON" in seen.told(1)[0]
    assert 'no tool "bassh" (did you mean "bash"?)' in seen.told(2)[0]
    assert '"comand"' in seen.told(3)[0] and '"command"' in seen.told(3)[0]
    assert seen.told(4) == ["mended"]
    assert "not valid JSON" in seen.prompts[1]
    assert seen.ending.reason is EndReason.FINISHED


def test_a_reply_without_a_call_is_answered_and_does_not_fork_the_sample() -> None:
    seen = run(replies("<think>Hm.</think>I think I am done.<|im_end|>", act("finish")))
    assert seen.told(1) == [NO_CALL]
    assert seen.turns[1].num_kept == len(seen.prompts[0].encode()) - _saved(seen.prompts[0]) + _sampled(seen.turns[0])


def _sampled(turn: Turn) -> int:
    assert turn.sampled is not None
    return len(turn.sampled.ids)


def _saved(text: str) -> int:
    """How many bytes a text is longer than its tokens: special tokens are one each."""
    return len(text.encode()) - len(RENDERER.encode_text(text))


@pytest.mark.parametrize(
    ("config", "reason", "trust"),
    [
        (AgentConfig(), EndReason.TURN_LIMIT, Trust.MASKED),
        (AgentConfig(out_of_turns="failed"), EndReason.TOO_LATE, Trust.TRUSTED),
    ],
)
def test_turns_run_out(config: AgentConfig, reason: EndReason, trust: Trust) -> None:
    def script(scene: ScriptedCall) -> Line:
        return act("bash", command=f"echo {len(scene.prompt_text)}")

    seen = run(script, limits=AgentLimits(turns=3, context_tokens=100_000), config=config)
    assert seen.ending == Ending(reason=reason, detail="3 turns are used up")
    assert seen.ending.reason.trust is trust
    assert len(seen.turns) == 3


def test_nonsense_ends_stuck() -> None:
    seen = run(lambda scene: "lorem ipsum<|im_end|>")
    assert seen.ending.reason is EndReason.STUCK
    assert seen.ending.detail == "3 turns in a row without a call that could be run"
    assert len(seen.turns) == 3


LONG = f"<think>{'hm ' * 300}"
"""More than the 500 tokens that a reply may have here: it is cut off."""


def test_a_reply_that_is_cut_off_is_told_so() -> None:
    seen = run(replies(LONG, act("finish")))
    assert seen.told(1) == [CUT_OFF]
    assert seen.ending.reason is EndReason.FINISHED


def test_a_call_that_is_cut_off_is_told_so_too() -> None:
    seen = run(replies(f'<tool_call>{{"name": "bash", "arguments": {{"command": "{"x" * 600}', act("finish")))
    (told,) = seen.told(1)
    assert "it was not closed" in told and told.endswith(CUT_OFF)


@pytest.mark.parametrize(
    ("config", "reason", "trust"),
    [
        (AgentConfig(), EndReason.TOKEN_LIMIT, Trust.MASKED),
        (AgentConfig(cut_replies="failed"), EndReason.STUCK, Trust.TRUSTED),
    ],
)
def test_replies_that_are_always_cut_off_end_at_a_limit(config: AgentConfig, reason: EndReason, trust: Trust) -> None:
    seen = run(lambda scene: LONG, config=config)
    assert (seen.ending.reason, seen.ending.reason.trust, len(seen.turns)) == (reason, trust, 3)


def test_a_cut_reply_whose_call_was_complete_is_no_cut() -> None:
    both = f"{RENDERER.decode(RENDERER.encode_reply(act('bash', command='echo hi')))[:-10]}{'x ' * 400}"
    seen = run(replies(both, act("finish")))
    assert seen.told(1) == ["hi"]


def test_a_large_observation_is_shortened_to_what_the_window_leaves() -> None:
    @tool(effect=Effect.PURE)
    async def count() -> str:
        """Count to 9,999."""
        return "\n".join(map(str, range(1, 10_000)))

    limits = AgentLimits(turns=10, context_tokens=4_000)
    seen = run(replies(act("count"), act("bash", command="echo on"), act("finish")), extra=(count,), limits=limits)
    (told,) = seen.told(1)
    assert told.startswith("1\n2\n") and told.endswith("9999") and "the context window is nearly full" in told
    assert seen.ending.reason is EndReason.FINISHED
    used = len(seen.turns[1].added) + len(seen.turns[0].added) + _sampled(seen.turns[0])
    assert 4_000 - 4_000 // 8 - 100 < used <= 4_000 - 4_000 // 8, "a reserve for the reply is left, and no more"


def test_a_conversation_that_outgrows_the_window_ends_at_the_token_limit() -> None:
    seen = run(
        lambda scene: act("bash", command=f"echo {len(scene.prompt_text)} {'x' * 300}"),
        limits=AgentLimits(turns=50, context_tokens=4_000),
    )
    assert seen.ending.reason is EndReason.TOKEN_LIMIT
    assert len(seen.turns) > 1


def test_time_in_tools_is_the_agents_own_limit() -> None:
    seen = run(
        lambda scene: act("bash", command=f"sleep {40 + scene.num_calls}"),
        limits=AgentLimits(turns=50, context_tokens=100_000, tool_seconds=100),
    )
    assert seen.ending.reason is EndReason.TOOL_TIME_LIMIT
    assert sum(span.seconds for span in seen.spans if span.kind is SpanKind.TOOL) == pytest.approx(100, abs=6)


def test_a_hanging_command_is_told_and_the_agent_goes_on() -> None:
    seen = run(replies(act("bash", command="sleep 100000"), act("finish")))
    assert "timed out after 60 s" in seen.told(1)[0]
    assert seen.ending.reason is EndReason.FINISHED


def test_a_context_edit_rewrites_the_conversation() -> None:
    @tool(effect=Effect.PURE)
    async def summarise(memory: str, *, ctx: ToolContext) -> ContextEdit:
        """Start afresh from a memory."""
        return ContextEdit(messages=(ctx.messages[0], Message(role=Role.USER, content=f"Memory: {memory}")))

    seen = run(
        replies(act("bash", command="echo long"), act("summarise", memory="long was said"), act("finish")),
        extra=(summarise,),
    )
    assert "Do it." not in seen.prompts[2]
    assert "Memory: long was said" in seen.prompts[2]
    assert [(turn.branch, turn.parent) for turn in seen.turns] == [(0, None), (0, 0), (1, 1)]
    assert seen.ending.reason is EndReason.FINISHED


def test_a_broken_sandbox_is_the_agents_doing_and_a_failing_tool_is_not() -> None:
    @tool(effect=Effect.PURE)
    async def smash() -> Observation:
        """Break everything."""
        raise SandboxBroken("the agent killed its own sandbox")

    @tool(effect=Effect.PURE)
    async def crash() -> Observation:
        """Crash."""
        raise ZeroDivisionError("a defect of the tool")

    assert run(replies(act("smash")), extra=(smash,)).ending.reason is EndReason.BROKE_SANDBOX
    with pytest.raises(ToolFailure, match="ZeroDivisionError"):
        run(replies(act("crash")), extra=(crash,))


def test_a_failing_model_is_an_error_and_not_an_ending() -> None:
    def broken(scene: ScriptedCall) -> str:
        raise ModelError("the engine is gone")

    with pytest.raises(ModelError):
        run(broken)


def test_a_tool_may_ask_the_model_and_that_is_not_trained_on() -> None:
    @tool(effect=Effect.PURE)
    async def summarise(ctx: ToolContext) -> str:
        """Sum up."""
        assert ctx.model is not None
        return "in short: " + await ctx.model.ask([Message(role=Role.USER, content="Sum up.")], max_tokens=50)

    seen = run(
        replies(act("summarise"), Message(role=Role.ASSISTANT, content="much"), act("finish")), extra=(summarise,)
    )
    assert [(turn.trainable, turn.fork) for turn in seen.turns] == [
        (True, None),
        (False, ForkReason.NESTED),
        (True, None),
    ]
    assert seen.told(2) == ["in short: much"]


def test_a_question_that_does_not_fit_is_told_to_the_agent() -> None:
    @tool(effect=Effect.PURE)
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        assert ctx.model is not None
        return await ctx.model.ask([Message(role=Role.USER, content="x" * 3000)], max_tokens=50)

    limits = AgentLimits(turns=3, context_tokens=2500)
    seen = run(replies(act("ask"), act("finish")), extra=(ask,), limits=limits)
    assert seen.ending.reason is EndReason.FINISHED
    assert "too long for the model" in seen.told(1)[0]


def test_hints_ride_inside_the_tool_response_and_are_counted_by_name() -> None:
    @tool(effect=Effect.PURE)
    async def look() -> Observation:
        """Look."""
        return Observation(text="nothing", hints=(Hint(name="find", text="Use find."), Hint(name="ls", text="Or ls.")))

    seen = run(replies(act("look"), act("finish")), extra=(look,))
    (told, _) = seen.turns[1].messages
    assert told.content == "nothing\n\nHint: Use find.\n\nHint: Or ls."
    assert (told.role, told.hints) == (Role.TOOL, ("find", "ls"))
    assert [turn.fork for turn in seen.turns] == [None, None]

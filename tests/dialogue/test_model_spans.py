"""What a model call leaves behind: its span, and the time that the gate made it wait."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from slipstream.dialogue.base import CallContext, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ModelError
from slipstream.model.base import ChatReply
from slipstream.seams import TurnGate, TurnPass
from slipstream.simulate.clock import run_virtual
from slipstream.types import JobKey, Message, Role, SampleParams, Span, SpanKind, StopReason, ToolSpec

ASK = Message(role=Role.USER, content="hi")


class Model:
    """Answers after two seconds, or fails after one."""

    def __init__(self, *, num_cached: int | None = None, fails: bool = False) -> None:
        self.num_cached = num_cached
        self.fails = fails

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        await asyncio.sleep(1)
        if self.fails:
            raise ModelError("it is gone")
        await asyncio.sleep(1)
        return ChatReply(
            message=Message(role=Role.ASSISTANT, content="ho"),
            stop=StopReason.STOP,
            num_prompt_tokens=9,
            num_sampled_tokens=3,
            num_cached=self.num_cached,
        )

    async def aclose(self) -> None:
        pass


class SlowGate:
    """Takes three seconds to enter, for `waited_s` of which it holds the turn."""

    def __init__(self, *, waited_s: float = 3) -> None:
        self._waited_s = waited_s

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        await asyncio.sleep(3)
        yield TurnPass(num_under_way=7, waited_s=self._waited_s)


def dialogue(model: Model, gate: TurnGate, spans: list[Span], *, attempt: int = 1) -> ChatDialogue:
    key = JobKey(phase="eval", step=0, task_id="t", sample=0)
    terms = CallContext(params=SampleParams(), max_context_tokens=1000, gate=gate, key=key, attempt=attempt)
    return ChatDialogue(model, terms, TurnLog(seed=0, on_turn=lambda turn: None, on_span=spans.append))


def test_a_call_says_how_many_were_under_way_and_what_was_cached() -> None:
    spans: list[Span] = []

    async def main() -> None:
        gate = OpenGate()
        async with asyncio.TaskGroup() as group:
            for num_cached in (None, 5):
                model = Model(num_cached=num_cached)
                group.create_task(dialogue(model, gate, spans, attempt=2).respond([ASK], ()))

    run_virtual(main())
    assert [(span.kind, span.start_s, span.end_s, span.attempt) for span in spans] == [(SpanKind.MODEL, 0, 2, 2)] * 2
    assert [dict(span.counts) for span in spans] == [
        {"prompt": 9, "sampled": 3, "concurrent": 1},
        {"prompt": 9, "sampled": 3, "concurrent": 2, "cached": 5},
    ]


def test_a_turn_that_the_gate_held_leaves_a_span_of_its_wait() -> None:
    spans: list[Span] = []
    run_virtual(dialogue(Model(), SlowGate(), spans).respond([ASK], ()))
    assert [(span.kind, span.start_s, span.end_s) for span in spans] == [
        (SpanKind.WAIT_TURN, 0, 3), (SpanKind.MODEL, 3, 5),
    ]  # fmt: skip
    assert spans[1].counts["concurrent"] == 7


def test_the_delays_of_a_busy_machine_are_no_wait_at_the_gate() -> None:
    spans: list[Span] = []
    run_virtual(dialogue(Model(), SlowGate(waited_s=0), spans).respond([ASK], ()))
    assert [(span.kind, span.start_s, span.end_s) for span in spans] == [(SpanKind.MODEL, 0, 5)]


def test_a_call_that_failed_leaves_a_span_that_says_so() -> None:
    spans: list[Span] = []

    async def main() -> None:
        with pytest.raises(ModelError):
            await dialogue(Model(fails=True), OpenGate(), spans).respond([ASK], ())

    run_virtual(main())
    assert [(span.kind, span.end_s, dict(span.counts)) for span in spans] == [
        (SpanKind.MODEL, 1, {"concurrent": 1, "failed": 1})
    ]


def test_a_turn_that_was_cancelled_while_it_was_held_leaves_its_wait_alone() -> None:
    spans: list[Span] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await dialogue(Model(), SlowGate(), spans).respond([ASK], ())

    run_virtual(main())
    assert [(span.kind, span.start_s, span.end_s) for span in spans] == [(SpanKind.WAIT_TURN, 0, 2)]


def test_the_open_gate_counts_those_under_way() -> None:
    async def main() -> None:
        gate, key = OpenGate(), JobKey(phase="eval", step=0, task_id="t", sample=0)
        async with gate.turn(key, 0) as first, gate.turn(key, 0) as second:
            assert (first.num_under_way, second.num_under_way) == (1, 2)
        assert gate.num_turns_under_way == 0

    asyncio.run(main())

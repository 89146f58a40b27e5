"""What the token dialogue records, pinned to ids written by hand."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slipstream.dialogue.base import CallContext, TurnLog, Window
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.errors import ContextOverflow, ReplayError
from slipstream.render.renderer import Renderer, Thinking
from slipstream.render.tokenizers import ByteTokenizer
from slipstream.types import (
    EngineLoad,
    ForkReason,
    JobKey,
    Message,
    Role,
    Sampled,
    SampleParams,
    Span,
    StopReason,
    Turn,
)

TOKENIZER = ByteTokenizer()
START, END = TOKENIZER.encode("<|im_start|>")[0], TOKENIZER.encode("<|im_end|>")[0]
RESPONSE, RESPONSE_END = TOKENIZER.encode("<tool_response>")[0], TOKENIZER.encode("</tool_response>")[0]
KEY = JobKey(phase="eval", step=0, task_id="t", sample=0)


class Engine:
    """Samples the given texts in order, and remembers what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.prompts: list[list[int]] = []
        self.params: list[SampleParams] = []
        self.sessions: list[str] = []

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        self.prompts.append(list(prompt_ids))
        self.params.append(params)
        self.sessions.append(session)
        await asyncio.sleep(0)  # so that others may ask meanwhile
        ids = TOKENIZER.encode(self.texts.pop(0))[: params.max_tokens]
        stop = StopReason.STOP if ids and ids[-1] == END else StopReason.LENGTH
        return Sampled.at_version(ids, [-0.5] * len(ids), version=7, stop=stop)

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None:
        pass


class Keeper(Engine):
    """Keeps sessions, and remembers which of them are over."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.ended: list[str] = []

    def end_session(self, session: str) -> None:
        self.ended.append(session)


class Scene:
    def __init__(
        self,
        *texts: str,
        max_tokens: int = 100,
        max_context_tokens: int = 1000,
        thinking: Thinking = "keep",
        engine: Engine | None = None,
    ) -> None:
        self.engine = engine or Engine(*texts)
        self.turns: list[Turn] = []
        self.spans: list[Span] = []
        self.log = TurnLog(seed=3, on_turn=self.turns.append, on_span=self.spans.append)
        terms = CallContext(
            params=SampleParams(max_tokens=max_tokens),
            max_context_tokens=max_context_tokens,
            gate=OpenGate(),
            key=KEY,
            attempt=2,
        )
        self.dialogue = TokenDialogue(Renderer("qwen3", TOKENIZER, thinking=thinking), self.engine, terms, self.log)


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def text(value: str) -> list[int]:
    return list(value.encode())


def test_the_second_turn_keeps_the_first_and_adds_the_answer_alone() -> None:
    scene = Scene("A<|im_end|>", "B<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        await scene.dialogue.respond([Message(role=Role.TOOL, content="ok", call_id="c")], ())

    asyncio.run(main())
    first, second = scene.turns
    opening = [START, *text("user\nhi"), END, 10, START, *text("assistant\n")]
    assert first.added.tolist() == opening
    assert (first.parent, first.num_kept, first.branch) == (None, 0, 0)
    assert first.sampled is not None and second.sampled is not None
    assert first.sampled.ids.tolist() == [65, END]
    assert first.sampled.logprobs == array("f", [-0.5, -0.5])
    assert first.sampled.versions.tolist() == [7, 7]
    assert (second.parent, second.num_kept, second.branch) == (0, len(opening) + 2, 0)
    assert second.added.tolist() == [
        10, START, *text("user\n"), RESPONSE, *text("\nok\n"), RESPONSE_END, END, 10, START, *text("assistant\n"),
    ]  # fmt: skip
    assert scene.engine.prompts[1] == [*opening, 65, END, *second.added.tolist()]
    assert [message.content for message in second.messages] == ["ok", "B"]


def test_a_rewritten_history_is_a_fork_that_says_how_much_it_keeps() -> None:
    scene = Scene("A<|im_end|>", "B<|im_end|>", "C<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        branch = scene.dialogue.rewrite([user("history")])
        await branch.respond([], ())
        await branch.respond([user("more")], ())
        assert [message.content for message in branch.messages] == ["history", "B", "more", "C"]

    asyncio.run(main())
    _, fork, after = scene.turns
    common = [START, *text("user\nhi")]
    assert (fork.branch, fork.parent, fork.num_kept, fork.fork) == (1, 0, len(common), ForkReason.CONTEXT_EDIT)
    assert after.fork is None
    assert fork.added.tolist() == [*text("story"), END, 10, START, *text("assistant\n")]
    assert (after.branch, after.parent) == (1, 1)
    assert after.num_kept == len(common) + len(fork.added) + 2
    assert [message.content for message in fork.messages] == ["history", "B"]


def test_seeds_differ_by_turn_and_repeat_by_job() -> None:
    def seeds() -> list[int | None]:
        scene = Scene("A<|im_end|>", "B<|im_end|>")

        async def main() -> None:
            await scene.dialogue.respond([user("hi")], ())
            await scene.dialogue.respond([user("ho")], ())

        asyncio.run(main())
        return [params.seed for params in scene.engine.params]

    first, second = seeds()
    assert first != second
    assert seeds() == [first, second]


def test_branches_that_ask_side_by_side_draw_different_seeds() -> None:
    scene = Scene("A<|im_end|>", "B<|im_end|>", "C<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        branches = [scene.dialogue.rewrite([user(text)]) for text in ("one", "two")]
        await asyncio.gather(*(branch.respond([], ()) for branch in branches))

    asyncio.run(main())
    assert len({params.seed for params in scene.engine.params}) == 3
    assert [(turn.index, turn.branch, turn.parent) for turn in scene.turns] == [(0, 0, None), (1, 1, 0), (2, 2, 0)]


def test_the_stop_tokens_and_the_session_reach_the_engine() -> None:
    scene = Scene("A<|im_end|>")
    asyncio.run(scene.dialogue.respond([user("hi")], ()))
    assert END in scene.engine.params[0].stop_ids
    assert scene.engine.sessions == ["eval/0/t/0#2"]


def test_a_reply_may_not_outgrow_the_window_and_the_next_turn_says_so() -> None:
    scene = Scene("x" * 50, max_context_tokens=30)

    async def main() -> None:
        reply = await scene.dialogue.respond([user("hi")], ())
        assert reply.stop is StopReason.LENGTH
        with pytest.raises(ContextOverflow, match="only 30 are allowed"):
            await scene.dialogue.respond([user("ho")], ())

    asyncio.run(main())
    (turn,) = scene.turns
    assert turn.sampled is not None
    assert len(turn.added) + len(turn.sampled.ids) == 30
    assert scene.dialogue.window == Window(num_used=30, num_allowed=30)


def test_a_model_call_leaves_a_span_with_its_tokens() -> None:
    scene = Scene("A<|im_end|>", "B<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        await scene.dialogue.respond([user("ho")], ())

    asyncio.run(main())
    first, second = (dict(span.counts) for span in scene.spans)
    assert first == {"new": 21, "kept": 0, "encoded": 21, "sampled": 2, "concurrent": 1}
    assert second["kept"] == 23
    assert second["encoded"] == second["new"]


def test_the_work_of_a_turn_does_not_grow_with_the_conversation() -> None:
    scene = Scene(*["A<|im_end|>"] * 50, max_context_tokens=100_000)

    async def main() -> None:
        for _ in range(50):
            await scene.dialogue.respond([user("hi")], ())

    asyncio.run(main())
    assert len({len(turn.added) for turn in scene.turns[1:]}) == 1


def test_a_history_that_is_rewritten_to_go_on_as_it_was_is_no_fork() -> None:
    scene = Scene("A<|im_end|>", "B<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        await scene.dialogue.rewrite([*scene.dialogue.messages, user("more")]).respond([], ())

    asyncio.run(main())
    first, second = scene.turns
    assert first.sampled is not None
    assert second.num_kept == len(first.added) + len(first.sampled.ids)
    assert second.fork is None


def test_thinking_stays_one_sample_unless_the_template_is_followed() -> None:
    """The library's own default gives up when a user message follows thinking: kept, nothing forks."""

    def forks(thinking: Thinking) -> list[ForkReason | None]:
        scene = Scene("<think>\nHm.\n</think>\n\nA<|im_end|>", "B<|im_end|>", thinking=thinking)

        async def main() -> None:
            await scene.dialogue.respond([user("hi")], ())
            await scene.dialogue.respond([user("ho")], ())

        asyncio.run(main())
        return [turn.fork for turn in scene.turns]

    assert forks("keep") == [None, None]
    assert forks("template") == [None, ForkReason.TEMPLATE]


def test_what_an_engine_samples_past_the_end_is_trimmed_and_said() -> None:
    scene = Scene("A<|im_end|>xyz", "B<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        await scene.dialogue.respond([user("ho")], ())

    asyncio.run(main())
    first, second = scene.turns
    assert first.sampled is not None and len(first.sampled.ids) == 5
    assert (second.num_kept, second.fork) == (len(first.added) + 2, ForkReason.TRIMMED)


def test_a_nested_conversation_is_its_own_and_not_trained_on() -> None:
    scene = Scene("A<|im_end|>", "a long judgement", "B<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        judge = scene.dialogue.spawn(trainable=False, max_tokens=4)
        reply = await judge.respond([user("good?")], ())
        assert reply.message.content == "a lo"
        assert judge._context.nested and not scene.dialogue._context.nested, "or the gate would hold a tool"
        assert judge.spawn(trainable=True)._trainable is False
        await scene.dialogue.respond([user("ho")], ())

    asyncio.run(main())
    first, nested, second = scene.turns
    assert (nested.parent, nested.branch, nested.trainable, nested.fork) == (None, 1, False, ForkReason.NESTED)
    assert (first.trainable, second.trainable, second.parent, second.fork) == (True, True, 0, None)


def test_a_sub_agent_is_its_own_conversation_and_trained_on() -> None:
    scene = Scene("A<|im_end|>", "B<|im_end|>", "C<|im_end|>")

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        helper = scene.dialogue.spawn(trainable=True)
        await helper.respond([user("look")], ())
        await helper.respond([user("again")], ())

    asyncio.run(main())
    _, begun, went_on = scene.turns
    assert (begun.parent, begun.branch, begun.trainable, begun.fork) == (None, 1, True, ForkReason.SUB_AGENT)
    assert (went_on.parent, went_on.branch, went_on.fork) == (1, 1, None)


@pytest.mark.parametrize(
    ("first", "thinking", "fork"),
    [
        ("A<|im_end|>", "keep", None),
        ("<think>\nHm.\n</think>\n\nA<|im_end|>", "template", ForkReason.TEMPLATE),
        ("A<|im_end|>xyz", "keep", ForkReason.TRIMMED),
    ],
)
def test_a_restored_dialogue_goes_on_where_the_record_ends(
    first: str, thinking: Thinking, fork: ForkReason | None
) -> None:
    said, asked = (
        (first, "B<|im_end|>", "C<|im_end|>", "D<|im_end|>"),
        [user(text) for text in ("hi", "ho", "ha", "he")],
    )

    async def whole() -> Scene:
        scene = Scene(*said, thinking=thinking)
        for message in asked:
            await scene.dialogue.respond([message], ())
        return scene

    async def rest(turns: Sequence[Turn]) -> Scene:
        scene = Scene(*said[len(turns) :], thinking=thinking)
        scene.dialogue.restore(turns)
        assert scene.engine.prompts == []
        for message in asked[len(turns) :]:
            await scene.dialogue.respond([message], ())
        return scene

    unbroken = asyncio.run(whole())
    assert unbroken.turns[1].fork is fork
    for num_past in range(1, 5):
        scene = asyncio.run(rest(unbroken.turns[:num_past]))
        assert scene.log.turns == unbroken.turns
        assert scene.turns == unbroken.turns[num_past:], "what is on record is not taken again"
        assert scene.engine.prompts == unbroken.engine.prompts[num_past:]
        assert scene.engine.params == unbroken.engine.params[num_past:]
        assert scene.engine.sessions == unbroken.engine.sessions[num_past:]
        assert scene.dialogue.messages == unbroken.dialogue.messages
        assert scene.dialogue.window == unbroken.dialogue.window


def test_branches_and_turns_without_tokens_are_not_restored() -> None:
    straight = Turn(index=0, sampled=Sampled.at_version([1], None, version=0, stop=StopReason.STOP))
    for turns, why in (
        (
            [straight, replace(straight, index=1, branch=1, fork=ForkReason.SUB_AGENT)],
            r"a separate branch \(sub_agent\)",
        ),
        ([straight, replace(straight, index=2, parent=0)], "turn 2 after turn 0; turn 1 was expected"),
        ([straight, replace(straight, index=1, parent=None)], "turn 1 after turn None; turn 1 was expected"),
        ([Turn(index=0)], "turn 0 was recorded without its tokens"),
    ):
        with pytest.raises(ReplayError, match=why):
            Scene().dialogue.restore(turns)


def test_an_engine_that_keeps_sessions_is_told_which_is_over() -> None:
    keeper = Keeper("A<|im_end|>")
    scene = Scene(engine=keeper)

    async def main() -> None:
        await scene.dialogue.respond([user("hi")], ())
        assert keeper.ended == []
        scene.dialogue.close()

    asyncio.run(main())
    assert keeper.ended == keeper.sessions == ["eval/0/t/0#2"]


def test_an_engine_that_keeps_none_need_not_know_of_it() -> None:
    Scene().dialogue.close()

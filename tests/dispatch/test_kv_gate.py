import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.aio import task_group
from slipstream.dispatch.kv_gate import KvGate
from slipstream.simulate.clock import run_virtual
from slipstream.types import EngineLoad, JobKey


def key(name: str) -> JobKey:
    return JobKey(phase="train", step=0, task_id=name, sample=0)


def cache(num_tokens: int | None) -> KvGate:
    return KvGate(lambda: EngineLoad(running=0, waiting=0, kv_tokens=num_tokens))


@dataclass
class Scene:
    """Agents at a gate, and when each of their turns began: (seconds, agent, tokens of context)."""

    gate: KvGate
    begun: list[tuple[float, str, int]] = field(default_factory=list)

    async def agent(
        self,
        name: str,
        contexts: Sequence[int],
        *,
        start_s: float = 0.0,
        turn_s: float = 1.0,
        tool_s: float = 1.0,
        reply: int = 0,
    ) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start_s)
        try:
            for context in contexts:
                asked_s = loop.time()
                async with self.gate.turn(key(name), context) as passed:
                    self.begun.append((loop.time(), name, context))
                    assert passed.waited_s == loop.time() - asked_s
                    check_ledger(self.gate)
                    await asyncio.sleep(turn_s)
                    passed.num_sampled = reply
                await asyncio.sleep(tool_s)
        finally:
            self.gate.ended(key(name))

    def when(self, name: str) -> list[float]:
        return [at_s for at_s, who, _ in self.begun if who == name]


def check_ledger(gate: KvGate) -> None:
    """The counters are what the agents say."""
    residents = [agent for agent in gate._agents.values() if agent.is_resident]
    assert gate._num_residents == len(residents)
    assert gate._num_tokens == sum(agent.context for agent in residents)
    assert gate._num_tokens_of_all == sum(agent.context for agent in gate._agents.values())
    assert sum(num for num, _ in gate._by_turns.values()) == len(residents)
    assert sum(tokens for _, tokens in gate._by_turns.values()) == gate._num_tokens
    assert gate._asking == sorted(gate._asking) and gate._idle == sorted(gate._idle)
    assert all(agent.is_resident for agent in gate._idle)


def check_empty(gate: KvGate) -> None:
    counters = (gate._num_residents, gate._num_tokens, gate._num_tokens_of_all, gate._num_under_way)
    assert counters == (0, 0, 0, 0)
    assert not gate._agents and not gate._asking and not gate._idle and not gate._by_turns


def test_where_no_cache_is_known_nobody_is_held() -> None:
    async def main() -> None:
        scene = Scene(KvGate())
        assert scene.gate.room() is None
        async with task_group() as group:
            for name in "abcde":
                group.create_task(scene.agent(name, [10_000, 20_000, 30_000]))
        assert all(scene.when(name) == [0, 2, 4] for name in "abcde")
        assert scene.gate.room() is None
        check_empty(scene.gate)

    run_virtual(main())


def test_nobody_is_held_while_all_fit() -> None:
    async def main() -> None:
        scene = Scene(cache(1000))
        async with task_group() as group:
            for name in "abcde":
                group.create_task(scene.agent(name, [100, 110, 120]))
        assert all(scene.when(name) == [0, 2, 4] for name in "abcde")
        check_empty(scene.gate)

    run_virtual(main())


def test_the_pass_says_how_many_turns_are_under_way() -> None:
    async def main() -> list[int]:
        gate = cache(1000)
        async with gate.turn(key("a"), 10) as first, gate.turn(key("b"), 10) as second:
            pass
        async with gate.turn(key("a"), 10) as third:
            return [first.num_under_way, second.num_under_way, third.num_under_way]

    assert run_virtual(main()) == [1, 2, 1]


def two_that_do_not_fit() -> Scene:
    """After their first turns there is room for one of two."""
    scene = Scene(cache(100))

    async def main() -> None:
        async with task_group() as group:
            group.create_task(scene.agent("old", [40, 50, 60, 70]))
            group.create_task(scene.agent("young", [40, 50, 60], start_s=0.5))

    run_virtual(main())
    return scene


def test_the_youngest_gives_way_and_comes_back_when_there_is_room() -> None:
    scene = two_that_do_not_fit()
    assert scene.when("old") == [0, 2, 4, 6], "the oldest never waits"
    assert scene.when("young") == [0.5, 8, 10]
    check_empty(scene.gate)


def residents(gate: KvGate) -> set[str]:
    return {key.task_id for key, agent in gate._agents.items() if agent.is_resident}


def test_of_those_who_wait_for_their_tools_the_youngest_gives_way() -> None:
    async def main() -> None:
        gate = cache(150)
        for name in ("old", "middle", "young"):
            async with gate.turn(key(name), 40):
                pass
        async with gate.turn(key("middle"), 60):
            assert residents(gate) == {"old", "middle"}

    run_virtual(main())


def test_a_question_that_a_tool_waits_for_is_not_held_though_its_agent_gave_way() -> None:
    async def main() -> None:
        gate = cache(100)
        for name in ("old", "young"):
            async with gate.turn(key(name), 40):
                pass
        async with gate.turn(key("old"), 90):
            assert residents(gate) == {"old"}
            async with asyncio.timeout(1.0), gate.turn(key("young"), 30, nested=True) as passed:
                assert passed.num_under_way == 2
            assert residents(gate) == {"old"} and gate.held_s(key("young")) == 0.0
            check_ledger(gate)

    run_virtual(main())


def test_nobody_pushes_out_an_older_one() -> None:
    async def main() -> None:
        scene = Scene(cache(100))
        async with task_group() as group:
            group.create_task(scene.agent("old", [40, 40], tool_s=20.0))
            group.create_task(scene.agent("young", [40, 60], start_s=0.5))
            await asyncio.sleep(10)
            assert residents(scene.gate) == {"old"}
        assert scene.when("old") == [0, 21]
        assert scene.when("young") == [0.5, 42]

    run_virtual(main())


def test_of_those_who_are_held_the_oldest_goes_on_first() -> None:
    async def main() -> None:
        scene = Scene(cache(100))
        async with task_group() as group:
            group.create_task(scene.agent("first", [90, 90], tool_s=3.0))
            for number, name in enumerate(["second", "third", "fourth"]):
                group.create_task(scene.agent(name, [60], start_s=0.9 - 0.1 * number))
        order = [name for _, name, _ in scene.begun]
        assert order == ["first", "first", "fourth", "third", "second"], "by when they came, one at a time"
        assert [at_s for at_s, _, _ in scene.begun][2:] == [8, 10, 12]

    run_virtual(main())


def test_somebody_goes_on_even_if_nothing_fits() -> None:
    async def main() -> None:
        scene = Scene(cache(10))
        async with task_group() as group:
            for name in "abc":
                group.create_task(scene.agent(name, [50, 60, 70]))
        assert len(scene.begun) == 9
        assert scene.when("a") == [0, 2, 4]
        check_empty(scene.gate)

    run_virtual(main())


def test_an_old_one_that_was_held_does_not_lock_out_the_last_one_and_itself() -> None:
    """The old one is held while the young one is in its turn; then the young one asks, and gives way to it."""

    async def main() -> None:
        scene = Scene(cache(100))
        async with task_group() as group:
            group.create_task(scene.agent("old", [10, 60, 70]))
            group.create_task(scene.agent("young", [60, 70], start_s=1.5, turn_s=5.0))
        assert scene.when("old") == [0, 7.5, 9.5]
        assert scene.when("young") == [1.5, 11.5]
        check_empty(scene.gate)

    run_virtual(main())


def test_within_a_turn_nobody_gives_way() -> None:
    async def main() -> None:
        scene = Scene(cache(100))
        async with task_group() as group:
            group.create_task(scene.agent("old", [30, 90]))
            group.create_task(scene.agent("young", [40], start_s=0.5, turn_s=10.0))
        assert scene.when("old") == [0, 11.5], "not while the young one, which is resident, is answered"

    run_virtual(main())


# ---------------------------------------------------------------- room


def test_one_may_begin_before_a_first_prompt_was_seen() -> None:
    assert cache(1000).room() == 1


def test_room_is_what_the_rest_of_the_cache_holds() -> None:
    async def main() -> None:
        gate = cache(1000)
        async with gate.turn(key("a"), 100):
            assert gate.room() == 9
        async with gate.turn(key("a"), 150):
            # Two turns of 50 ahead, which is as long as anyone lived: 750 are left beside it, and a new one needs 200.
            assert gate.room() == 3

    run_virtual(main())


def test_growth_is_foreseen_as_far_ahead_as_lives_are_known() -> None:
    async def main() -> list[int | None]:
        rooms = []
        for num_turns in (1, 2, 4, 8):
            scene = Scene(cache(10_000))
            for name in "abcd":
                await scene.agent(name, [100 + 100 * turn for turn in range(num_turns)])
            rooms.append(scene.gate.room())
        return rooms

    # All agents so far took all of their turns: a new one is forecast to get as far.
    assert run_virtual(main()) == [100, 10_000 // 300, 10_000 // 500, 10_000 // 900]


def test_there_is_no_room_while_somebody_is_held() -> None:
    async def main() -> list[int | None]:
        gate = cache(100)
        rooms = []
        async with task_group() as group:
            async with gate.turn(key("a"), 60):
                held = group.create_task(Scene(gate).agent("b", [41]))
                await asyncio.sleep(1)
                rooms.append(gate.room())
                held.cancel()
                await asyncio.sleep(1)
                rooms.append(gate.room())
        gate.ended(key("a"))
        rooms.append(gate.room())
        return rooms

    assert run_virtual(main()) == [0, 0, 1], "40 are left beside a, and first prompts have 50.5 on average"


def test_a_held_one_that_is_large_is_not_overtaken_by_small_new_ones() -> None:
    async def main() -> tuple[int | None, int | None]:
        scene = Scene(cache(100))
        for number in range(8):
            await scene.agent(f"small {number}", [5])
        async with scene.gate.turn(key("a"), 60):
            before = scene.gate.room()
            held = asyncio.create_task(scene.agent("large", [90]))
            await asyncio.sleep(1)
            return before, scene.gate.room() if not held.done() else None

    assert run_virtual(main()) == (3, 0)


def test_of_prompts_without_known_tokens_any_number_may_begin() -> None:
    async def main() -> int | None:
        gate = cache(100)
        async with gate.turn(key("a"), 0):
            return gate.room()

    assert run_virtual(main()) is None


def test_whoever_asked_is_told_when_there_may_be_room_and_not_before() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        told: list[float] = []
        scene = Scene(cache(100))
        async with task_group() as group:
            group.create_task(scene.agent("a", [80], turn_s=5.0))
            group.create_task(scene.agent("b", [80], start_s=1.0))
            await asyncio.sleep(2)
            scene.gate.on_room(lambda: told.append(loop.time()))
        return sorted(set(told))

    assert run_virtual(main()) == [6, 7, 8], "b comes in at 6 s, when a has ended; its turn ends, and it"


# ---------------------------------------------------------------- what a place is worth


def engine(**reported: Any) -> KvGate:
    return KvGate(lambda: EngineLoad(running=0, waiting=0, **reported))


def test_before_a_long_wait_an_agent_leaves_its_place_and_comes_back_when_there_is_room() -> None:
    """At 10 tokens a second a cache of 100 is worth a wait of 5 s."""

    async def main() -> tuple[set[str], set[str], Scene]:
        scene = Scene(engine(kv_tokens=100, prefill_tokens_s=10.0))
        async with task_group() as group:
            group.create_task(scene.agent("away", [60, 60], tool_s=20.0))
            group.create_task(scene.agent("other", [90], start_s=2.0, turn_s=30.0))
            await asyncio.sleep(4.0)
            before = residents(scene.gate)
            await asyncio.sleep(4.0)
            after = residents(scene.gate)
        return before, after, scene

    before, after, scene = run_virtual(main())
    assert (before, after) == ({"away"}, {"other"})
    assert scene.when("other") == [6.0], "5 s after the turn of the one that waits"
    assert scene.when("away") == [0.0, 36.0], "not while the other has the room"
    check_empty(scene.gate)


def test_what_waits_less_than_its_place_is_worth_keeps_it() -> None:
    async def main() -> Scene:
        scene = Scene(engine(kv_tokens=100, prefill_tokens_s=10.0))
        async with task_group() as group:
            group.create_task(scene.agent("stays", [60, 60], tool_s=4.0))
            group.create_task(scene.agent("other", [90], start_s=2.0))
        return scene

    scene = run_virtual(main())
    assert scene.when("stays") == [0.0, 5.0] and scene.when("other") == [10.0]


def test_once_waits_are_known_to_be_long_the_place_is_left_at_once() -> None:
    async def main() -> list[float]:
        scene = Scene(engine(kv_tokens=100, prefill_tokens_s=10.0))
        await scene.agent("before", [60] * 10, tool_s=50.0)
        start_s = asyncio.get_running_loop().time()
        async with task_group() as group:
            group.create_task(scene.agent("away", [60, 60], tool_s=20.0))
            group.create_task(scene.agent("other", [90], start_s=0.5))
        return [at_s - start_s for at_s in scene.when("other")]

    assert run_virtual(main()) == [1.0]


def test_new_agents_begin_in_free_slots_and_few_more() -> None:
    async def main() -> list[int | None]:
        gate, rooms = engine(kv_tokens=1_000_000, slots=8), []
        async with AsyncExitStack() as turns:
            for number in range(9):
                await turns.enter_async_context(gate.turn(key(f"{number}"), 10))
                rooms.append(gate.room())
        return rooms

    assert run_virtual(main()) == [8, 7, 6, 5, 4, 3, 2, 1, 0], "one waits at the engine"


def test_no_more_agents_are_resident_than_the_cache_has_places() -> None:
    async def main() -> Scene:
        scene = Scene(engine(kv_tokens=1_000_000, contexts=2))
        async with task_group() as group:
            for name in "abc":
                group.create_task(scene.agent(name, [10, 10]))
        return scene

    scene = run_virtual(main())
    assert scene.when("a") == scene.when("b") == [0.0, 2.0]
    assert scene.when("c")[0] >= 3.0
    check_empty(scene.gate)


def test_contexts_that_are_rewritten_are_not_expected_to_grow_for_ever() -> None:
    async def rooms(contexts: Sequence[int]) -> int | None:
        scene = Scene(cache(10_000))
        for name in "abcd":
            await scene.agent(name, contexts)
        return scene.gate.room()

    growing = run_virtual(rooms([100, 200, 300, 400, 500, 600, 700, 800]))
    rewritten = run_virtual(rooms([100, 200, 300, 100, 200, 300, 100, 200]))
    assert growing == 10_000 // 900 and rewritten == 10_000 // 200, "half-way between 300 and 100"


def test_a_reply_counts_once_it_is_there() -> None:
    async def main() -> list[int]:
        gate, found = cache(1_000), list[int]()
        for context in (100, 170):
            async with gate.turn(key("a"), context) as passed:
                found.append(gate._num_tokens)
                passed.num_sampled = 50
            check_ledger(gate)
            found.append(gate._num_tokens)
        assert gate._growth.mean == 70
        gate.ended(key("a"))
        check_empty(gate)
        return found

    assert run_virtual(main()) == [100, 150, 170, 220]


@pytest.mark.parametrize(("reply", "second"), [(1, 2.0), (0, 4.0)], ids=["told", "not told"])
def test_where_replies_are_told_room_is_kept_for_them_and_not_for_all_growth(reply: int, second: float) -> None:
    async def main() -> list[float]:
        scene = Scene(cache(120))
        async with task_group() as group:
            group.create_task(scene.agent("a", [20, 50], reply=reply))
            group.create_task(scene.agent("b", [20, 50], reply=reply))
        check_empty(scene.gate)
        return scene.when("b")

    assert run_virtual(main()) == [0.0, second]


CHEAP, DEAR = (1e9, [10.0, 21.0]), (1.0, [22.0, 33.0])


@pytest.mark.parametrize(("prefill_tokens_s", "begun"), [CHEAP, DEAR], ids=["cheap", "dear"])
def test_more_than_fits_is_admitted_where_it_costs_little_to_compute_it_again(
    prefill_tokens_s: float, begun: list[float]
) -> None:
    """`b` has its first turn while `a` waits for its tool, or when `a` is over."""

    async def main() -> tuple[list[float], list[float]]:
        load = EngineLoad(running=0, waiting=0, kv_tokens=100, prefill_tokens_s=prefill_tokens_s)
        scene = Scene(KvGate(lambda: load))
        async with task_group() as group:
            group.create_task(scene.agent("a", [60, 60], turn_s=10.0))
            group.create_task(scene.agent("b", [60, 60], turn_s=10.0, start_s=1.0))
        return scene.when("a"), scene.when("b")

    first, second = run_virtual(main())
    assert first == [0.0, 11.0] and second == pytest.approx(begun)


# ---------------------------------------------------------------- what is called off


@pytest.mark.parametrize("at_s", [0.0, 0.5, 1.5, 2.5, 8.5])
@pytest.mark.parametrize("who", [0, 1])
def test_who_is_cancelled_leaves_nothing_behind(who: int, at_s: float) -> None:
    async def main() -> None:
        scene = Scene(cache(100))
        agents = [
            asyncio.create_task(scene.agent("old", [40, 50, 60, 70])),
            asyncio.create_task(scene.agent("young", [40, 50, 60], start_s=0.5)),
        ]
        await asyncio.sleep(at_s)
        agents[who].cancel()
        await asyncio.gather(*agents, return_exceptions=True)
        assert len(scene.when("young" if who == 0 else "old")) == (3 if who == 0 else 4), "the other one goes on"
        check_empty(scene.gate)

    run_virtual(main())


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_who_is_let_in_and_cancelled_at_one_instant_leaves_nothing_behind(cancelled_first: bool) -> None:
    async def main() -> None:
        gate = cache(100)

        async def ask() -> None:
            async with gate.turn(key("b"), 90):
                raise AssertionError("it was cancelled")

        async with gate.turn(key("a"), 90):
            held = asyncio.create_task(ask())
            await asyncio.sleep(1)
        if cancelled_first:
            held.cancel()
        gate.ended(key("a"))
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        check_ledger(gate)
        assert residents(gate) == ({"b"} if gate._idle else set()), "whoever takes no turn can be asked to give way"
        gate.ended(key("b"))
        check_empty(gate)

    run_virtual(main())


def test_who_was_given_up_in_its_turn_is_not_counted_when_the_turn_ends_after_all() -> None:
    async def main() -> None:
        scene = Scene(cache(100))
        async with scene.gate.turn(key("deaf"), 60):
            scene.gate.ended(key("deaf"))  # it ignored its cancellation, and was abandoned
            check_ledger(scene.gate)
        check_empty(scene.gate)
        await asyncio.gather(scene.agent("a", [40, 50]), scene.agent("b", [40, 50]))
        check_empty(scene.gate)

    run_virtual(main())


@pytest.mark.parametrize("left_behind", [True, False])
def test_who_was_given_up_while_it_waited_goes_on_and_is_not_counted(left_behind: bool) -> None:
    async def main() -> None:
        scene = Scene(cache(100))
        gate = scene.gate

        async def deaf() -> None:
            async with gate.turn(key("deaf"), 60):
                scene.begun.append((asyncio.get_running_loop().time(), "deaf", 60))
                check_ledger(gate)
                await asyncio.sleep(20)

        async with task_group() as group:
            group.create_task(scene.agent("a", [60], turn_s=10.0))
            await asyncio.sleep(1)
            group.create_task(deaf())
            await asyncio.sleep(1)
            assert scene.when("deaf") == [] and gate.room() == 0
            gate.ended(key("deaf"), left_behind=left_behind)
            check_ledger(gate)
            group.create_task(scene.agent("b", [60], start_s=1.0))
        assert scene.when("deaf") == [2.0] and scene.when("b") == [11.0], "b has the room that a leaves"
        check_empty(gate)

    run_virtual(main())


def test_an_agent_that_nobody_knows_can_end() -> None:
    gate = cache(100)
    gate.ended(key("nobody"))
    check_empty(gate)


# ---------------------------------------------------------------- anything


@dataclass(frozen=True, kw_only=True)
class Story:
    start_s: float
    first: int
    growths: tuple[int, ...]
    turn_s: float
    tool_s: float
    cancel_s: float | None


stories = st.builds(
    Story,
    start_s=st.sampled_from([0.0, 0.0, 0.5, 3.0, 10.0]),
    first=st.integers(0, 60),
    growths=st.lists(st.integers(-5, 40), max_size=6).map(tuple),
    turn_s=st.sampled_from([0.0, 0.5, 1.0, 6.0, 25.0]),
    tool_s=st.sampled_from([0.0, 0.5, 1.0, 6.0]),
    cancel_s=st.sampled_from([None, None, None, 0.0, 0.5, 1.0, 4.0, 10.5, 11.0]),
)


def play(drawn: Sequence[Story], load: Callable[[], EngineLoad | None]) -> Scene:
    scene = Scene(KvGate(load))

    async def live(name: str, story: Story) -> None:
        contexts = [story.first]
        for growth in story.growths:
            contexts.append(max(0, contexts[-1] + growth))
        try:
            async with asyncio.timeout(story.cancel_s):
                await scene.agent(name, contexts, start_s=story.start_s, turn_s=story.turn_s, tool_s=story.tool_s)
        except TimeoutError:
            pass
        room = scene.gate.room()
        assert room is None or room >= 0

    async def main() -> None:
        async with task_group() as group:
            for index, story in enumerate(drawn):
                group.create_task(live(f"agent {index}", story))

    run_virtual(main())
    return scene


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(stories, min_size=1, max_size=8), st.sampled_from([None, 1, 50, 100, 150, 400]))
def test_whatever_comes_all_go_on_to_their_end_and_the_ledger_is_empty(drawn: list[Story], budget: int | None) -> None:
    scene = play(drawn, lambda: EngineLoad(running=0, waiting=0, kv_tokens=budget))
    check_empty(scene.gate)
    for index, story in enumerate(drawn):
        if story.cancel_s is None:
            assert len(scene.when(f"agent {index}")) == 1 + len(story.growths)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(stories, min_size=1, max_size=8), st.lists(st.sampled_from([1, 50, 150, 400]), min_size=1, max_size=9))
def test_a_cache_that_changes_and_requests_that_wait_lock_nobody_out(drawn: list[Story], budgets: list[int]) -> None:
    num_asked = 0

    def load() -> EngineLoad:
        nonlocal num_asked
        num_asked += 1
        return EngineLoad(running=0, waiting=num_asked % 3, kv_tokens=budgets[num_asked % len(budgets)])

    check_empty(play(drawn, load).gate)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(stories, min_size=2, max_size=8), st.sampled_from([100, 150, 400]))
def test_residents_fit_into_the_cache_or_there_is_only_one(drawn: list[Story], budget: int) -> None:
    gate_of: list[KvGate] = []

    def load() -> EngineLoad:
        for gate in gate_of:
            if not gate._asking:  # nobody is being decided on
                assert gate._num_residents <= 1 or gate._num_tokens <= budget
        return EngineLoad(running=0, waiting=0, kv_tokens=budget)

    scene = Scene(KvGate(load))
    gate_of.append(scene.gate)
    growing = [story for story in drawn if min(story.growths, default=0) >= 0]

    async def main() -> None:
        async with task_group() as group:
            for index, story in enumerate(growing):
                contexts = [story.first + sum(story.growths[:turn]) for turn in range(len(story.growths) + 1)]
                group.create_task(
                    scene.agent(f"{index}", contexts, start_s=story.start_s, turn_s=story.turn_s, tool_s=story.tool_s)
                )

    run_virtual(main())
    check_empty(scene.gate)


def test_branches_of_an_agent_that_ask_side_by_side_all_go_on() -> None:
    async def main() -> list[float]:
        gate, begun = cache(1_000), list[float]()

        async def ask(context: int) -> None:
            async with gate.turn(key("a"), context):
                begun.append(asyncio.get_running_loop().time())
                await asyncio.sleep(1.0)

        async with asyncio.timeout(100), gate.turn(key("b"), 900):
            asking = [asyncio.create_task(ask(context)) for context in (500, 100, 100)]
            await asyncio.sleep(5.0)
        gate.ended(key("b"))
        async with asyncio.timeout(100):
            await asyncio.gather(*asking)
        gate.ended(key("a"))
        check_empty(gate)
        return begun

    # The first does not fit beside b and is held; the others belong to the same agent and are not.
    assert run_virtual(main()) == [0.0, 0.0, 5.0]

"""The turn gate of the adaptive policy: agents take turns as long as the engine's cache holds their contexts.

An agent whose context was evicted from the cache must have all of it computed again. So the contexts of all agents
that take turns (the residents) have to fit, those waiting for a tool included; and they grow. Three rules:

- A resident that asks for its next turn gets it if all residents fit with the replies that are under way. If not, the
  youngest give way: first those waiting for their tools, then whichever asks and is the youngest. The young have the
  smallest contexts, so coming back costs least; the old are nearest to their end, so they free their room soonest.
- A resident that waits for its tool keeps its place only as long as that is cheaper than to compute its context again
  (`rent`). After that it is away: others may have its place, and it comes back as soon as its next turn fits.
- An agent that is neither, new or held before, is admitted only if all are forecast to fit as far ahead as turn
  counts are known: agents grow by the mean, and end as agents ended so far. Otherwise it would soon be held again, at
  the cost of its whole context each time. Where the engine has slots, new ones are admitted only to free slots.

Invariants: some agent may always run; an agent is held between turns and never within one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil, inf, sqrt

from slipstream.dispatch.budget import TokenBudget
from slipstream.dispatch.forecast import Mean, TurnForecast
from slipstream.dispatch.rent import Rent
from slipstream.seams import TurnPass
from slipstream.types import EngineLoad, JobKey

SPARE_DEVIATIONS = 2.0
"""Deviations above the expected length of the replies under way before one gives way."""
CAUTION = 1.5
"""Deviations of margin before a new agent is admitted: agents may run longer than expected."""
WORTH = 0.5
"""Of the wait for which a place in the cache costs as much as to compute a context again, by the measured rate."""
QUEUE = 1.125
"""Requests for each slot of an engine: a few wait there, so that no slot is idle while the next turn is on its way."""
SLACK = 1.0
"""How much more than the cache holds is admitted where to compute contexts again costs nothing, as a share of it."""


@dataclass(order=True, slots=True)
class _Agent:
    number: int
    """Lower is older."""
    task_id: str = field(default="", compare=False)
    context: int = field(default=0, compare=False)
    """Tokens of its last turn, once it is over with the reply."""
    asked: int = field(default=0, compare=False)
    """The same without the reply."""
    turns: int = field(default=0, compare=False)
    is_resident: bool = field(default=False, compare=False)
    is_away: bool = field(default=False, compare=False)
    """It left its place for a long wait, and may come back as soon as there is room for its next turn."""
    is_busy: bool = field(default=False, compare=False)
    """In a turn, or asking for one."""
    rested_s: float | None = field(default=None, compare=False)
    """When its last turn ended."""
    leaves: asyncio.TimerHandle | None = field(default=None, compare=False)
    """Set while it waits in its place: when it leaves."""
    asks: asyncio.Future[None] | None = field(default=None, compare=False)
    """Set while it waits."""
    asks_since_s: float = field(default=0.0, compare=False)
    held_s: float = field(default=0.0, compare=False)
    """Time waited for the turns it has had."""


class KvGate:
    def __init__(self, load: Callable[[], EngineLoad | None] = lambda: None) -> None:
        self._load = load
        self._budget = TokenBudget(load)
        self._agents: dict[JobKey, _Agent] = {}
        self._left_behind: set[JobKey] = set()
        self._num_agents_ever = 0
        self._asking: list[_Agent] = []
        """Oldest first."""
        self._idle: list[_Agent] = []
        """Residents between two turns, oldest first."""
        self._by_turns: dict[int, list[int]] = {}
        """Residents by the number of turns they took: how many, and the tokens of their contexts."""
        self._num_residents = 0
        self._num_tokens = 0
        """Of the residents' contexts."""
        self._num_tokens_of_all = 0
        """Of the contexts of all agents."""
        self._num_under_way = 0
        self._first = Mean()
        self._growth = Mean()
        """Of a context, from one turn to the next."""
        self._replies = Mean()
        """Tokens of a reply, where that is told."""
        self._full = Mean()
        """Contexts that were rewritten to shorter ones, before"""
        self._rewritten = Mean()
        """and after."""
        self._turn_counts = TurnForecast()
        self._rent = Rent()
        self._cycle = Mean()
        """Seconds from asking for a turn to asking for the next."""
        self._on_room: Callable[[], None] = lambda: None

    # ---------------------------------------------------------------- what the dispatcher asks and tells

    def room(self) -> int | None:
        """How many new agents could start now; None if any number, as no cache is known."""
        budget = self._tokens()
        if budget is None:
            return None
        if self._asking:
            return 0
        if not self._first.num:
            return 1  # one, to learn how long a first prompt is
        room = self._room_for(0, self._first.mean, budget)
        return None if room == inf else int(room)

    def held_s(self, key: JobKey) -> float:
        """How long an agent has waited for its turns so far."""
        agent = self._agents.get(key)
        if agent is None:
            return 0.0
        now_s = asyncio.get_running_loop().time()
        return agent.held_s + (now_s - agent.asks_since_s if agent.asks is not None else 0.0)

    def ended(self, key: JobKey, *, left_behind: bool = False) -> None:
        """The run of the agent is over, however it ended."""
        if left_behind:
            self._left_behind.add(key)
        agent = self._agents.pop(key, None)
        if agent is None:
            return
        self._turn_counts.ended(agent.turns)
        self._num_tokens_of_all -= agent.context
        if agent.is_resident:
            _take_out(self._idle, agent)
            self._dismiss(agent)
        _take_out(self._asking, agent)
        if agent.asks is not None and not agent.asks.done():
            agent.asks.set_result(None)  # let it through uncounted: it will not report its end
        self._serve()

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there may be room for new agents."""
        self._on_room = callback

    # ---------------------------------------------------------------- turns

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        agent = self._agents.get(key)
        if nested or key in self._left_behind or (agent is not None and agent.is_busy):
            # Nested: a tool waits for it, on its own clock. Busy: another branch of the agent has or asks for a turn.
            self._num_under_way += 1
            try:
                yield TurnPass(num_under_way=self._num_under_way)
            finally:
                self._num_under_way -= 1
            return
        if agent is None:
            self._num_agents_ever += 1
            agent = self._agents[key] = _Agent(self._num_agents_ever, key.task_id)
            self._first.add(num_context_tokens)
        else:
            self._note_growth(agent.asked, num_context_tokens)
        self._ask(agent, num_context_tokens)
        agent.is_busy = True
        try:
            waited_s = await self._wait(agent)
        except BaseException:
            agent.is_busy = False
            raise
        self._num_under_way += 1
        start_s = asyncio.get_running_loop().time()
        passed = TurnPass(num_under_way=self._num_under_way, waited_s=waited_s)
        try:
            yield passed
        finally:
            self._num_under_way -= 1
            agent.is_busy = False
            self._budget.note(asyncio.get_running_loop().time(), start_s, self._num_tokens, passed.num_sampled)
            if passed.num_sampled:
                self._replies.add(passed.num_sampled)
            self._rest(agent, passed.num_sampled)

    def _note_growth(self, before: int, now: int) -> None:
        if now >= before:
            self._growth.add(now - before)
        else:
            self._full.add(before)
            self._rewritten.add(now)

    def _ask(self, agent: _Agent, num_context_tokens: int) -> None:
        if agent.rested_s is not None:
            self._cycle.add(asyncio.get_running_loop().time() - agent.asks_since_s)
            self._rent.waited(agent.task_id, asyncio.get_running_loop().time() - agent.rested_s)
        _stop_timer(agent)
        if agent.is_resident:
            _take_out(self._idle, agent)
            self._count(agent, -1)
        self._num_tokens_of_all += num_context_tokens - agent.context
        agent.context = agent.asked = num_context_tokens
        agent.turns += 1
        self._turn_counts.took(agent.turns)
        if agent.is_resident:
            self._count(agent, 1)

    async def _wait(self, agent: _Agent) -> float:
        """Until it is admitted; returns for how long it was held."""
        loop = asyncio.get_running_loop()
        agent.asks, agent.asks_since_s = (future := loop.create_future()), loop.time()
        insort(self._asking, agent)
        self._serve()
        if future.done():
            agent.asks = None
            return 0.0
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._rest(agent)  # it was admitted just then
            else:
                _take_out(self._asking, agent)
                if agent.is_resident:
                    self._dismiss(agent)
                self._serve()
            raise
        finally:
            agent.asks = None
            waited_s = loop.time() - agent.asks_since_s
            agent.held_s += waited_s
        return waited_s

    def _rest(self, agent: _Agent, num_sampled: int = 0) -> None:
        """Its turn is over: it keeps its place as long as that is worth it, and may have to give way before."""
        if agent.is_resident:
            self._count(agent, -1)
            agent.context += num_sampled
            self._num_tokens_of_all += num_sampled
            self._count(agent, 1)
            loop = asyncio.get_running_loop()
            agent.rested_s = loop.time()
            stay_s = self._rent.stay_s(agent.task_id, WORTH * self._recompute_s(agent.context))
            insort(self._idle, agent)
            if stay_s <= 0:
                return self._leave(agent)
            if stay_s < inf:
                agent.leaves = loop.call_later(stay_s, self._leave, agent)
        self._serve()

    # ---------------------------------------------------------------- what a place costs, and how many there are

    def _recompute_s(self, context: float) -> float:
        """The wait for which a place costs as much as to compute the context again; infinite if that is unknown."""
        load = self._load()
        if load is None or not load.prefill_tokens_s or not load.kv_tokens:
            return inf
        places = load.kv_tokens if load.contexts is None else min(load.kv_tokens, load.contexts * context)
        return places / load.prefill_tokens_s

    def _tokens(self) -> float | None:
        """Of context that may be resident; None if any number. More than fits, and no cut, where it costs little that
        contexts are computed again: what counts there is that requests wait whenever the engine has room."""
        dear = self._dear()
        budget = self._budget.tokens(dear)
        return budget if budget is None else budget * (1.0 + SLACK * (1.0 - dear) ** 2)

    def _dear(self) -> float:
        """Of the engine's time, how much it would take to compute every context again at every turn; at most 1."""
        load = self._load()
        if load is None or not load.prefill_tokens_s or not self._cycle.num or self._cycle.mean <= 0:
            return 1.0
        return min(1.0, self._num_tokens_of_all / (load.prefill_tokens_s * self._cycle.mean))

    def _num_places(self) -> float:
        """Contexts that the cache holds, however short."""
        load = self._load()
        return inf if load is None or load.contexts is None else load.contexts

    def _num_free_slots(self) -> float:
        load = self._load()
        return inf if load is None or load.slots is None else ceil(QUEUE * load.slots) - self._num_under_way

    # ---------------------------------------------------------------- who may take a turn

    def _serve(self) -> None:
        """Admit agents that may take a turn, oldest first; the others give up their residency until they may."""
        budget = self._tokens()
        self._admit(budget)
        while held := [agent for agent in self._asking if agent.is_resident]:
            for agent in held:
                self._dismiss(agent)
            self._admit(budget)  # their room may be what an older one is waiting for
        if not self._asking:
            self._on_room()

    def _admit(self, budget: float | None) -> None:
        while self._asking and (budget is None or self._may_proceed(self._asking[0], budget)):
            agent = self._asking.pop(0)
            if not agent.is_resident:
                agent.is_resident, agent.is_away = True, False
                self._num_residents += 1
                self._count(agent, 1)
            if agent.asks is not None and not agent.asks.done():
                agent.asks.set_result(None)

    def _may_proceed(self, agent: _Agent, budget: float) -> bool:
        if not agent.is_resident and not agent.is_away:
            return self._num_residents == 0 or self._room_for(agent.turns, agent.context, budget) >= 1
        more, places = not agent.is_resident, self._num_places()
        own = more * agent.context
        while self._num_tokens + own + self._reserve() > budget or self._num_residents + more > places:
            if not self._idle or self._idle[-1].number < agent.number:
                return self._num_residents + more == 1
            self._dismiss(self._idle.pop())
        return True

    def _reserve(self) -> float:
        """Room for the replies under way, with a margin; where the length of replies is not told, for what all
        residents are expected to grow by until their next turns."""
        if self._replies.num:
            num, each = self._num_residents - len(self._idle), self._replies
        else:
            num, each = self._num_residents, self._growth
        return num * each.mean + self._dear() * SPARE_DEVIATIONS * sqrt(num) * each.deviation

    def _room_for(self, turns: int, context: float, budget: float) -> float:
        """How many agents with this many turns and this context fit beside the others: now, and as far
        ahead as turn counts are known."""
        alive, caution = self._turn_counts.alive, CAUTION * self._dear()
        room, ahead = min(self._num_places() - self._num_residents, self._num_free_slots()), 1
        while ahead == 1 or ahead <= self._turn_counts.longest:
            there = variance = 0.0
            for passed, (num, tokens) in self._by_turns.items():
                left = alive(passed, ahead - 1) if ahead > 1 else 1.0
                then = num * self._context_after(ahead, tokens / num)
                there += then * left
                variance += then * then / num * left * (1 - left) + num * left * ahead * self._growth.deviation**2
            each = self._context_after(ahead, context) * (alive(turns, ahead - 1) if ahead > 1 else 1.0)
            if each > 0:
                room = min(room, (budget - there - caution * sqrt(variance)) / each)
            ahead *= 2
        return max(0.0, room)

    def _context_after(self, ahead: int, context: float) -> float:
        """How long a context is expected to be some turns later. If contexts are rewritten when they are full, it is
        somewhere between what is left of them and full ones once it had the time to get there."""
        then = context + ahead * self._growth.mean
        if not self._full.num:
            return then
        return min(then, max(context, (self._full.mean + self._rewritten.mean) / 2))

    def _count(self, agent: _Agent, sign: int) -> None:
        self._num_tokens += sign * agent.context
        alike = self._by_turns.setdefault(agent.turns, [0, 0])
        alike[0] += sign
        alike[1] += sign * agent.context
        if not alike[0]:
            del self._by_turns[agent.turns]

    def _leave(self, agent: _Agent) -> None:
        """It leaves its place for the rest of its wait."""
        _take_out(self._idle, agent)
        self._dismiss(agent)
        agent.is_away = True
        self._serve()

    def _dismiss(self, agent: _Agent) -> None:
        """End its residency: the engine may evict its context."""
        _stop_timer(agent)
        agent.is_resident = False
        self._num_residents -= 1
        self._count(agent, -1)


def _stop_timer(agent: _Agent) -> None:
    if agent.leaves is not None:
        agent.leaves.cancel()
        agent.leaves = None


def _take_out(agents: list[_Agent], agent: _Agent) -> None:
    place = bisect_left(agents, agent)
    if place < len(agents) and agents[place] is agent:
        del agents[place]

"""A simulated inference engine: a batch throughput curve, a KV cache, and prefill.

Input: requests with the token counts of context and reply. Output: the time each takes, and the tokens saved by the
cache. `docs/dispatch.md` explains the model and its numbers. Invariants: the cache never exceeds its size; a cached
context is not computed again; a running request keeps its cache; idle contexts are evicted, the least recently used
first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from slipstream.simulate.machine.host import RunProcess, SimHost
from slipstream.simulate.machine.shared import SharedResource
from slipstream.types import EngineLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One decoding step of n requests takes `step_s + n * row_s + (their contexts) * token_s` seconds."""

    kv_tokens: int
    step_s: float = 0.020
    """Reading the weights once."""
    row_s: float = 0.000_05
    token_s: float = 1e-8
    """Reading one cached token."""
    prefill_tokens_s: float = 100_000.0
    """Context tokens computed per second, when the engine does nothing else."""
    prompt_s: float = 0.0
    """Extra time for every prompt, whatever its length."""
    prefill_share: float = 0.5
    """Prefill's share of the engine's time while prompts and replies compete for it."""
    call_s: float = 0.0
    """Extra latency of every call, which does not delay other calls."""
    slots: int | None = None
    """Concurrent requests; further ones wait. None: as many as the cache holds."""
    contexts: int | None = None
    """The most contexts in the cache, however short, for an engine with a slot for each."""
    cores: float = 0.0
    """Cores it uses, while it works, on the machine of the sandboxes. 0: it has its own machine."""
    reports: bool = True
    """Whether it reports its load."""
    duty: float = 0.0
    """The share of its time in which its thread needs the GIL of the run's own process. 0: it is in another process."""


@dataclass(slots=True)
class EngineCounts:
    num_prefilled: int = 0
    num_again: int = 0
    """Of these, tokens that had been in the cache and were evicted."""
    num_sampled: int = 0
    peak_kv: int = 0


@dataclass(slots=True)
class _Session:
    cached: int = 0
    seen: int = 0
    """The most of its tokens that were ever in the cache."""
    active: bool = False


@dataclass(slots=True)
class _Request:
    session: str
    tokens: int
    """Context plus reply: this room is reserved from the start, so that nothing is preempted half-way."""
    shared: int = 0
    """Context tokens that others also have in the cache."""
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SimEngine:
    def __init__(self, spec: EngineSpec, host: SimHost | None = None, front: RunProcess | None = None) -> None:
        """`host`: where it uses cores, if it does; `front`: the run's own process, if it needs that."""
        self.spec = spec
        self.counts = EngineCounts()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """The least recently used first."""
        self._waiting: deque[_Request] = deque()
        self._kv = 0
        self._active_tokens = 0
        self._num_active = 0
        self._decoding = SharedResource(self._decode_speed)
        self._prefilling = SharedResource(self._prefill_speed)
        self._decoding.link(self._prefilling)
        self._prefill_turn = asyncio.Lock()
        self._num_computed = 0
        """Prompt tokens, computed to the end."""
        self._host = host if spec.cores > 0 else None
        if self._host is not None:
            self._decoding.link(self._host.shared)
            self._host.taken.append(lambda: spec.cores if self._is_working else 0.0)
        self._front = front if spec.duty > 0 else None
        if self._front is not None:
            self._decoding.link(self._front.shared)
            self._front.join(lambda: spec.duty if self._is_working else 0.0)

    def load(self) -> EngineLoad | None:
        if not self.spec.reports:
            return None
        return EngineLoad(
            running=self._num_active,
            waiting=len(self._waiting),
            kv_used=self._active_tokens / self.spec.kv_tokens,
            kv_tokens=self.spec.kv_tokens,
            prefill_tokens_s=self._prefill_tokens_s,
            slots=self.spec.slots,
            contexts=self.spec.contexts,
        )

    @property
    def _prefill_tokens_s(self) -> float | None:
        """As measured: while replies are under way it is less than what the engine could do."""
        busy_s = self._prefilling.busy_s
        return self._num_computed / busy_s if busy_s > 0 else None

    @property
    def busy_s(self) -> float:
        return self._decoding.busy_s

    async def complete(
        self, session: str, *, context: int, sampled: int, kept: int | None = None, shared: int = 0
    ) -> int:
        """One call. `kept`: how much of the context was in the session's last call, if not all of it; `shared`: how
        much of it others put into the cache. Returns the tokens that need not be computed."""
        if self.spec.call_s:
            await asyncio.sleep(self.spec.call_s)
        if kept is not None:
            self._cut(session, kept)
        request = _Request(session=session, tokens=context + sampled, shared=min(shared, context))
        self._waiting.append(request)
        self._admit()
        try:
            await request.admitted
        except asyncio.CancelledError:
            if request.admitted.cancelled():
                self._waiting.remove(request)
                self._admit()  # it may have blocked others
            else:
                self._idle(session, request.tokens)
            raise
        state = self._sessions[session]
        computed, known = 0, max(state.cached, request.shared)
        try:
            fresh = context - known
            if fresh > 0:
                self.counts.num_prefilled += fresh
                self.counts.num_again += max(0, min(state.seen, context) - known)
                async with self._prefill_turn:
                    await self._prefilling.work(fresh + self.spec.prompt_s * self.spec.prefill_tokens_s)
                    self._num_computed += fresh
            computed = context
            self.counts.num_sampled += sampled
            await self._decoding.work(sampled)
            computed = context + sampled
        finally:
            state.cached = max(state.cached, computed)
            state.seen = max(state.seen, state.cached)
            self._idle(session, request.tokens)
        return min(known, context)

    def end(self, session: str) -> None:
        """The session is over: its cache is free for others."""
        state = self._sessions.pop(session, None)
        if state is not None and not state.active:
            self._kv -= state.cached
            self._admit()

    # ---------------------------------------------------------------- the cache

    def _cut(self, session: str, kept: int) -> None:
        """The conversation was rewritten: what followed the first `kept` tokens is useless now."""
        state = self._sessions.get(session)
        if state is None:
            return
        state.seen = min(state.seen, kept)
        if not state.active and state.cached > kept:
            self._kv -= state.cached - kept
            state.cached = kept
            self._admit()

    def _admit(self) -> None:
        """Admit waiting requests, in order, while there is room or room can be made."""
        while self._waiting and not self._waiting[0].admitted.cancelled():
            if self.spec.slots is not None and self._num_active >= self.spec.slots:
                return
            request = self._waiting[0]
            state = self._sessions.get(request.session)
            held = 0 if state is None else state.cached
            needed = request.tokens - held
            if self._kv + needed > self.spec.kv_tokens and not self._evict(needed, request.session):
                return
            if not self._has_slot(request.session):
                return
            self._waiting.popleft()
            if state is None:
                state = self._sessions[request.session] = _Session()
            self._sessions.move_to_end(request.session)
            self._shift(active=1, tokens=request.tokens)
            state.active = True
            self._kv += needed
            self.counts.peak_kv = max(self.counts.peak_kv, self._kv)
            request.admitted.set_result(None)

    def _evict(self, needed: int, asking: str) -> bool:
        """Evict idle contexts to make room for `needed` tokens; returns whether that was possible. If not, nothing is
        evicted."""
        room = self.spec.kv_tokens - self._kv
        losers = []
        for name, state in self._sessions.items():
            if room >= needed:
                break
            if not state.active and state.cached and name != asking:
                losers.append(state)
                room += state.cached
        if room < needed:
            return False
        for state in losers:
            self._kv -= state.cached
            state.cached = 0
        return True

    def _has_slot(self, asking: str) -> bool:
        """Whether there is a slot for its context, if necessary by evicting the least recently used one."""
        if self.spec.contexts is None:
            return True
        others = [state for name, state in self._sessions.items() if name != asking and (state.active or state.cached)]
        if len(others) < self.spec.contexts:
            return True
        loser = next((state for state in others if not state.active), None)
        if loser is None:
            return False
        self._kv -= loser.cached
        loser.cached = 0
        return True

    def _idle(self, session: str, tokens: int) -> None:
        """A request ended or was cancelled: what it computed stays in the cache, the rest of its room is freed."""
        self._shift(active=-1, tokens=-tokens)
        state = self._sessions[session]
        state.active = False
        self._sessions.move_to_end(session)
        self._kv -= tokens - state.cached
        self._admit()

    # ---------------------------------------------------------------- time

    @property
    def _is_working(self) -> bool:
        return self._decoding.num_inside > 0 or self._prefilling.num_inside > 0

    @property
    def _pace(self) -> float:
        own = 1.0 if self._front is None else self._front.pace(self.spec.duty)
        return own if self._host is None else own * self._host.pace()

    def _shift(self, *, active: int, tokens: int) -> None:
        with self._decoding.changing():
            self._num_active += active
            self._active_tokens += tokens

    def _decode_speed(self, num: int) -> float:
        spec = self.spec
        share = 1.0 - spec.prefill_share if self._prefilling.num_inside else 1.0
        return self._pace * share / (spec.step_s + num * spec.row_s + self._active_tokens * spec.token_s)

    def _prefill_speed(self, num: int) -> float:
        """Prompts are computed one at a time."""
        share = self.spec.prefill_share if self._decoding.num_inside else 1.0
        return self._pace * share * self.spec.prefill_tokens_s


class Fleet:
    """Identical engines. A session goes to the one with the fewest sessions, and stays there."""

    def __init__(self, engines: Sequence[SimEngine]) -> None:
        self.engines = tuple(engines)
        self._homes: dict[str, SimEngine] = {}

    async def complete(
        self, session: str, *, context: int, sampled: int, kept: int | None = None, shared: int = 0
    ) -> int:
        home = self._homes.get(session)
        if home is None:
            counts = dict.fromkeys(self.engines, 0)
            for other in self._homes.values():
                counts[other] += 1
            home = self._homes[session] = min(self.engines, key=lambda engine: counts[engine])
        return await home.complete(session, context=context, sampled=sampled, kept=kept, shared=shared)

    def end(self, session: str) -> None:
        home = self._homes.pop(session, None)
        if home is not None:
            home.end(session)

    def load(self) -> EngineLoad | None:
        """The load of all engines together."""
        loads = [load for engine in self.engines if (load := engine.load()) is not None]
        if not loads:
            return None
        kv_tokens = sum(load.kv_tokens or 0 for load in loads)
        return EngineLoad(
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            kv_used=sum((load.kv_used or 0.0) * (load.kv_tokens or 0) for load in loads) / kv_tokens,
            kv_tokens=kv_tokens,
            prefill_tokens_s=_sum([load.prefill_tokens_s for load in loads]),
            slots=_sum([load.slots for load in loads]),
            contexts=_sum([load.contexts for load in loads]),
        )

    @property
    def busy_s(self) -> float:
        """The busy time of the busiest engine."""
        return max(engine.busy_s for engine in self.engines)

    @property
    def num_again(self) -> int:
        return sum(engine.counts.num_again for engine in self.engines)


Number = TypeVar("Number", int, float)


def _sum(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

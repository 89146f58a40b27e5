"""A model of an inference engine, on virtual time: a batch-throughput curve, a KV cache, and prefill.

Enters: requests with the tokens of their context and of their reply. Leaves: the time each takes, and what the cache
saved. `docs/dispatch.md` explains the model and where its numbers come from.
Always holds: the cache never has more tokens than it can; a context in the cache is not computed again; a request that
is being answered keeps its cache; what is idle goes first, the least recently used first of all.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from slipstream.simulate.shared import Shared
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
    """Tokens of context computed a second, when nothing else is going on."""
    prefill_share: float = 0.5
    """Of the engine's time, while prompts and replies compete for it."""
    reports: bool = True
    """Whether it tells its load."""


@dataclass(slots=True)
class EngineCounts:
    num_prefilled: int = 0
    num_again: int = 0
    """Of them, tokens that had been in the cache before and were lost."""
    num_sampled: int = 0
    peak_kv: int = 0


@dataclass(slots=True)
class _Session:
    cached: int = 0
    seen: int = 0
    """The most tokens of it that were ever in the cache."""
    active: bool = False


@dataclass(slots=True)
class _Request:
    session: str
    tokens: int
    """Of the context and of the reply: so much room is taken from the start, so that nothing is preempted half-way."""
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SimEngine:
    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.counts = EngineCounts()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """The least recently used first."""
        self._waiting: deque[_Request] = deque()
        self._kv = 0
        self._active_tokens = 0
        self._num_active = 0
        self._decoding = Shared(self._decode_speed)
        self._prefilling = Shared(self._prefill_speed)
        self._decoding.link(self._prefilling)
        self._prefill_turn = asyncio.Lock()

    def load(self) -> EngineLoad | None:
        if not self.spec.reports:
            return None
        return EngineLoad(
            running=self._num_active,
            waiting=len(self._waiting),
            kv_used=self._active_tokens / self.spec.kv_tokens,
            kv_tokens=self.spec.kv_tokens,
        )

    @property
    def busy_s(self) -> float:
        return self._decoding.busy_s

    async def complete(self, session: str, *, context: int, sampled: int) -> None:
        request = _Request(session=session, tokens=context + sampled)
        self._waiting.append(request)
        self._admit()
        try:
            await request.admitted
        except asyncio.CancelledError:
            if request.admitted.cancelled():
                self._waiting.remove(request)
                self._admit()  # it may have been in the way of others
            else:
                self._idle(session, request.tokens)
            raise
        state = self._sessions[session]
        computed = 0
        try:
            fresh = context - state.cached
            if fresh > 0:
                self.counts.num_prefilled += fresh
                self.counts.num_again += max(0, min(state.seen, context) - state.cached)
                async with self._prefill_turn:
                    await self._prefilling.work(fresh)
            computed = context
            self.counts.num_sampled += sampled
            await self._decoding.work(sampled)
            computed = context + sampled
        finally:
            state.cached = max(state.cached, computed)
            state.seen = max(state.seen, state.cached)
            self._idle(session, request.tokens)

    def end(self, session: str) -> None:
        """The session is over: its cache is room for others."""
        state = self._sessions.pop(session, None)
        if state is not None and not state.active:
            self._kv -= state.cached
            self._admit()

    # ---------------------------------------------------------------- the cache

    def _admit(self) -> None:
        """Let in those who wait, in order, while there is room or room can be made."""
        while self._waiting and not self._waiting[0].admitted.cancelled():
            request = self._waiting[0]
            state = self._sessions.get(request.session)
            held = 0 if state is None else state.cached
            needed = request.tokens - held
            if self._kv + needed > self.spec.kv_tokens and not self._evict(needed, request.session):
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
        """Make room for `needed` tokens of what is idle; whether that was possible. If not, nothing is lost."""
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

    def _idle(self, session: str, tokens: int) -> None:
        """A request is over, or was cancelled: what it computed stays in the cache, the rest of its room is free."""
        self._shift(active=-1, tokens=-tokens)
        state = self._sessions[session]
        state.active = False
        self._sessions.move_to_end(session)
        self._kv -= tokens - state.cached
        self._admit()

    # ---------------------------------------------------------------- time

    def _shift(self, *, active: int, tokens: int) -> None:
        with self._decoding.changing():
            self._num_active += active
            self._active_tokens += tokens

    def _decode_speed(self, num: int) -> float:
        spec = self.spec
        share = 1.0 - spec.prefill_share if self._prefilling.num_inside else 1.0
        return share / (spec.step_s + num * spec.row_s + self._active_tokens * spec.token_s)

    def _prefill_speed(self, num: int) -> float:
        """One prompt after the other."""
        share = self.spec.prefill_share if self._decoding.num_inside else 1.0
        return share * self.spec.prefill_tokens_s

"""The pool: starts sandboxes before they are requested.

    pool = Pool(LocalProvider(), max_warm=8)
    pool.expect(spec, 64)
    sandbox = await pool.open(spec)

Input: a provider, and announced requests. Output: sandboxes; the pool is itself a SandboxProvider. Invariants: a
sandbox serves at most one rollout and is closed after it; nothing has run in a warm one. Leased, warm, starting and
closing sandboxes together never exceed `max_live`. Sandboxes are of one kind if their specs differ only in files and
setup. Waiters come before warm sandboxes, in the order of their arrival. After `aclose` nothing is left except starts
and closes that ignore their cancellation, which are counted.

Everything except `open` and `aclose` is synchronous, so no await comes between a check and its count.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace

from slipstream.errors import (
    AgentError,
    ConfigError,
    SandboxError,
    SandboxFileError,
    SandboxLimitError,
    SlipstreamError,
    boundary,
)
from slipstream.sandbox.base import Capability, Changes, Sandbox, SandboxProvider
from slipstream.sandbox.pool.closing import ClosingTasks, result_of
from slipstream.sandbox.pool.demand import Demand, shares
from slipstream.sandbox.pool.kinds import Opener, SandboxKind, Waiter
from slipstream.sandbox.pool.pooled_sandbox import pooled_type
from slipstream.types import SandboxSpec

logger = logging.getLogger(__name__)

MAX_BACKOFF_S = 30.0
REFILL_S = 0.01
"""The delay between a lease and the start of a replacement, so that a burst of leases does not wait for starts."""


class Pool:
    """Keeps up to `max_warm` sandboxes of `provider` warm, where that is worth it.

    `max_live` bounds the total. `attempts` is how many failed starts a waiter tolerates; between them the pool pauses
    for `backoff_s`, doubled each time. A start that takes longer than `start_timeout_s` is cancelled, and abandoned
    `grace_s` later. A kind that nobody requested for `idle_s` is dropped.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        max_warm: int,
        max_live: int | None = None,
        max_starting: int = 4,
        attempts: int = 3,
        backoff_s: float = 0.25,
        start_timeout_s: float = 30.0,
        health_timeout_s: float = 5.0,
        grace_s: float = 10.0,
        idle_s: float = 60.0,
    ) -> None:
        """`max_starting`: concurrent starts that nobody waits for."""
        if max_warm < 0 or attempts < 1 or max_starting < 1 or (max_live is not None and max_live < 1):
            raise ConfigError(
                f"a pool with max_warm={max_warm}, max_live={max_live}, max_starting={max_starting} and "
                f"attempts={attempts} cannot work: max_warm must be 0 or more, the others 1 or more"
            )
        self._provider = provider
        self._max_warm = max_warm
        self._max_live = max_live
        self._max_starting = max_starting
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._start_timeout_s = start_timeout_s
        self._health_timeout_s = health_timeout_s
        self._idle_s = idle_s
        self._kinds: dict[Hashable, SandboxKind] = {}
        self._leased: set[Sandbox] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        """Cancelled starts that are still running."""
        self._closing_tasks = ClosingTasks(grace_s=grace_s, on_over=self._balance_soon)
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._refill: asyncio.TimerHandle | None = None
        self._is_balancing = False
        self._closing: asyncio.Task[None] | None = None
        self.num_unhealthy = 0
        """Warm sandboxes that turned out to be dead when requested."""
        self.num_from_warm = 0
        """Leases that were served at once."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._provider.capabilities

    @property
    def num_warm(self) -> int:
        return sum(len(kind.warm) for kind in self._kinds.values())

    @property
    def num_starting(self) -> int:
        return sum(len(kind.starts) for kind in self._kinds.values())

    @property
    def num_leased(self) -> int:
        return len(self._leased)

    @property
    def num_live(self) -> int:
        """All sandboxes: leased, warm, starting and closing."""
        return self.num_leased + self.num_warm + self.num_starting + self._num_leaving

    @property
    def num_abandoned(self) -> int:
        """Starts and closes that ignored their cancellation and were left behind."""
        return self._closing_tasks.num_abandoned

    def check(self) -> None:
        self._provider.check()

    def check_spec(self, spec: SandboxSpec) -> None:
        self._provider.check_spec(spec)

    def expect(self, spec: SandboxSpec, num: int) -> None:
        """Announce `num` requests of this kind, replacing earlier announcements; each request counts one off."""
        if self._closing is None:
            self._kind(spec).demand.expect(max(0, num))
            self._balance_soon()

    def expect_more(self, specs: Iterable[SandboxSpec]) -> None:
        """Announce one more request for each spec."""
        for spec in specs:
            self.expect(spec, self._kind(spec).demand.num_expected + 1)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        self._provider.check_spec(spec)
        self._refuse_if_closed()
        kind = self._kind(spec)
        kind.demand.arrived(asyncio.get_running_loop().time())
        self._balance_soon()
        return await self._lease(kind, spec)

    async def aclose(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    # ------------------------------------------------------------ leases

    def _kind(self, spec: SandboxSpec) -> SandboxKind:
        bare = replace(spec, files={}, setup=())
        key = tuple(_hashable(getattr(bare, field.name)) for field in fields(bare))
        if key not in self._kinds:
            self._kinds[key] = SandboxKind(key, lambda: self._provider.open(bare), Demand(idle_s=self._idle_s))
        return self._kinds[key]

    async def _fork(self, opener: Opener) -> Sandbox:
        """A sandbox from a snapshot: it waits and counts like all others, but none is kept warm."""
        self._refuse_if_closed()
        return await self._lease(SandboxKind(object(), opener, Demand(idle_s=0.0)), None)

    async def _lease(self, kind: SandboxKind, spec: SandboxSpec | None) -> Sandbox:
        """Take a healthy sandbox, and write the spec's files into it."""
        num_failures = 0
        while True:
            sandbox, was_warm = await self._take(kind)
            try:
                if not await self._is_healthy(sandbox):
                    raise SandboxError(f"sandbox {sandbox.id} started but does not respond")
                if spec is not None and spec.files:
                    await sandbox.write(spec.files)
                    if isinstance(sandbox, Changes):  # its initial files are not changes
                        await sandbox.mark()
                self._refuse_if_closed()
            except (SandboxFileError, SandboxLimitError):
                await self._give_back(sandbox)
                raise
            except SandboxError:
                self._dispose(sandbox)
                self._refuse_if_closed()
                self.num_unhealthy += was_warm
                num_failures += not was_warm
                if num_failures >= self._attempts:
                    raise
            except BaseException:
                self._dispose(sandbox)
                raise
            else:
                self.num_from_warm += was_warm
                return pooled_type(self.capabilities)(sandbox, self._give_back, self._fork)

    async def _take(self, kind: SandboxKind) -> tuple[Sandbox, bool]:
        """A sandbox, now counted as leased, and whether it was warm: the newest warm one, or the next to start."""
        self._refuse_if_closed()
        kind = self._kinds.setdefault(kind.key, kind)  # it may have been dropped meanwhile
        if kind.warm:
            sandbox = kind.warm.pop()
            self._leased.add(sandbox)
            return sandbox, True
        waiter = Waiter(next(self._numbers))
        kind.waiters.append(waiter)
        self._balance_soon()
        try:
            return await waiter.ready, False
        except asyncio.CancelledError:
            if not waiter.ready.cancelled() and waiter.ready.exception() is None:
                self._put_back(kind, waiter.ready.result())
            raise
        finally:
            kind.waiters.remove(waiter)
            self._balance_soon()

    def _put_back(self, kind: SandboxKind, sandbox: Sandbox) -> None:
        """Return an unused sandbox: it goes to the next waiter."""
        if self._closing is None:
            self._leased.discard(sandbox)
            self._add_ready(kind, sandbox)
        else:
            self._dispose(sandbox)

    async def _is_healthy(self, sandbox: Sandbox) -> bool:
        try:
            async with asyncio.timeout(self._health_timeout_s):
                return await sandbox.healthy()
        except TimeoutError:
            return False

    def _dispose(self, sandbox: Sandbox) -> asyncio.Task[None] | None:
        """Start closing a leased sandbox; None if it is already closed."""
        if sandbox not in self._leased:
            return self._closing_tasks.closing(sandbox)
        self._leased.discard(sandbox)
        return self._closing_tasks.close(sandbox)

    async def _give_back(self, sandbox: Sandbox) -> None:
        """Close a leased sandbox; closing continues if the caller is cancelled."""
        ending = self._dispose(sandbox)
        if ending is not None:
            await asyncio.shield(ending)

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise SandboxError("the pool is closed: open no more sandboxes from it")

    async def _close(self) -> None:
        for timer in (self._timer, self._refill):
            if timer is not None:
                timer.cancel()
        for kind in self._kinds.values():
            for waiter in kind.waiters:
                if not waiter.ready.done():
                    waiter.ready.set_exception(SandboxError("the pool is closed: open no more sandboxes from it"))
            while kind.starts:
                self._stop(kind)
            while kind.warm:
                self._closing_tasks.close(kind.warm.pop())
        for sandbox in list(self._leased):
            self._dispose(sandbox)
        while tasks := self._stopping | self._closing_tasks.tasks:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # so that their callbacks have run
        await self._provider.aclose()

    # ------------------------------------------------------------ starts

    def _begin(self, kind: SandboxKind) -> None:
        start = asyncio.create_task(self._start(kind), name="starting a sandbox")
        kind.starts.add(start)

    def _stop(self, kind: SandboxKind) -> None:
        """Cancel one of a kind's starts. It counts until it has stopped; then its closing task counts."""
        start = kind.starts.pop()
        self._stopping.add(start)
        start.add_done_callback(self._stopped)
        start.cancel()

    def _stopped(self, start: asyncio.Task[None]) -> None:
        self._stopping.discard(start)
        self._balance_soon()

    async def _start(self, kind: SandboxKind) -> None:
        """One start; the longest waiting caller gets the result."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        begin_s = loop.time()
        opening = asyncio.ensure_future(kind.opener())
        try:
            await asyncio.wait([opening], timeout=self._start_timeout_s)
        except asyncio.CancelledError:
            self._stopping.discard(me)
            self._closing_tasks.abandon_start(opening)
            raise
        finally:
            kind.starts.discard(me)
        if not opening.done():
            self._closing_tasks.abandon_start(opening)
            self._failed(kind, SandboxError(f"a sandbox did not start within {self._start_timeout_s:g} s"))
            return
        try:
            with boundary(SandboxError, "the provider failed"):
                sandbox = result_of(opening)
        except SlipstreamError as raised:
            self._failed(kind, raised)
            return
        kind.demand.started(loop.time() - begin_s)
        kind.num_failures, kind.not_before_s = 0, -math.inf
        self._add_ready(kind, sandbox)

    def _add_ready(self, kind: SandboxKind, sandbox: Sandbox) -> None:
        """Give a ready sandbox to the first waiter, or keep it warm."""
        kind = self._kinds.setdefault(kind.key, kind)
        waiting = kind.waiting(math.inf)
        if waiting:
            self._leased.add(sandbox)
            waiting[0].ready.set_result(sandbox)
        else:
            kind.warm.append(sandbox)
        self._balance_soon()

    def _failed(self, kind: SandboxKind, raised: SlipstreamError) -> None:
        """Charge a failed start to the waiter with the fewest failures."""
        now_s = asyncio.get_running_loop().time()
        waiting = kind.waiting(now_s)
        if not waiting:
            kind.num_failures += 1
            kind.not_before_s = now_s + self._pause_s(kind.num_failures)
            logger.warning("a sandbox could not be started ahead of time: %s", raised)
        else:
            bearer = min(waiting, key=lambda waiter: waiter.num_failures)
            bearer.num_failures += 1
            bearer.not_before_s = now_s + self._pause_s(bearer.num_failures)
            if bearer.num_failures >= self._attempts or not isinstance(raised, SandboxError | AgentError):
                bearer.ready.set_exception(raised)
        self._balance_soon()

    def _pause_s(self, num_failures: int) -> float:
        return min(MAX_BACKOFF_S, self._backoff_s * 2.0 ** (min(num_failures, 30) - 1))

    # ------------------------------------------------------------ balance

    def _balance_soon(self) -> None:
        """Rebalance once, after everything that happens at this instant."""
        if not self._is_balancing and self._closing is None:
            self._is_balancing = True
            asyncio.get_running_loop().call_soon(self._balance)

    def _balance(self) -> None:
        self._is_balancing = False
        if self._closing is not None:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._serve(now_s) and self._refill is None:
            self._refill = loop.call_later(REFILL_S, self._fill)
        for kind in list(self._kinds.values()):
            if not (kind.warm or kind.starts or kind.waiters) and now_s >= kind.demand.idle_at_s:
                del self._kinds[kind.key]
        self._wake_later(now_s)

    def _fill(self) -> None:
        self._refill = None
        now_s = asyncio.get_running_loop().time()
        if self._closing is None and self._serve(now_s):
            self._keep_warm(now_s)
            self._wake_later(now_s)

    @property
    def _num_leaving(self) -> int:
        return len(self._stopping) + len(self._closing_tasks.tasks)

    @property
    def _has_room(self) -> bool:
        return self._max_live is None or self.num_live < self._max_live

    def _serve(self, now_s: float) -> bool:
        """Start sandboxes for waiters, in order. False if there is no room for all of them."""
        short = [
            (waiter.number, kind) for kind in self._kinds.values() for waiter in kind.waiting(now_s)[len(kind.starts) :]
        ]
        short.sort(key=lambda pair: pair[0])
        for num_begun, (_, kind) in enumerate(short):
            if not self._has_room:
                self._make_room(len(short) - num_begun - self._num_leaving, now_s)
                return False
            self._begin(kind)
        return True

    def _make_room(self, num: int, now_s: float) -> None:
        """Close `num` sandboxes that nobody waits for, from the kinds with the most."""
        for _ in range(num):
            kind = max(self._kinds.values(), key=lambda kind: kind.num_kept(now_s))
            if kind.num_kept(now_s) == 0:
                return
            self._take_down(kind)

    def _take_down(self, kind: SandboxKind) -> None:
        """Close one that nobody waits for: the oldest warm one, or else one that is starting."""
        if kind.warm:
            self._closing_tasks.close(kind.warm.pop(0))
        else:
            self._stop(kind)

    def _keep_warm(self, now_s: float) -> None:
        """Start what will be needed, close what is idle, and move the budget to where the demand is."""
        kinds = list(self._kinds.values())
        for kind in kinds:
            if now_s >= kind.demand.idle_at_s:
                for _ in range(kind.num_kept(now_s)):
                    self._take_down(kind)
        num_kept = sum(kind.num_kept(now_s) for kind in kinds)
        num_spare = sum(kind.num_spare(now_s) for kind in kinds)
        budget = self._max_warm
        if self._max_live is not None:  # what is closing makes room
            num_taken = self.num_live - self._num_leaving - num_kept
            budget = max(0, min(budget, self._max_live - num_taken))
        given = shares({kind.key: kind.demand.wanted(now_s) for kind in kinds}, budget)
        for kind in kinds:
            while kind.num_kept(now_s) < given[kind.key] and num_spare < self._max_starting:
                if kind.not_before_s > now_s:
                    break
                if num_kept >= budget:
                    over = [other for other in kinds if other.num_kept(now_s) > given[other.key]]
                    if not over:
                        break
                    self._take_down(max(over, key=lambda other: other.num_kept(now_s) - given[other.key]))
                    num_kept -= 1
                if not self._has_room:
                    break
                self._begin(kind)
                num_kept, num_spare = num_kept + 1, num_spare + 1

    def _wake_later(self, now_s: float) -> None:
        """Rebalance when a pause ends or a kind becomes idle."""
        times = [waiter.not_before_s for kind in self._kinds.values() for waiter in kind.waiters]
        times += [at_s for kind in self._kinds.values() for at_s in (kind.not_before_s, kind.demand.idle_at_s)]
        coming = [at_s for at_s in times if now_s < at_s < math.inf]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(coming), self._balance_soon) if coming else None


def _hashable(value: object) -> Hashable:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value

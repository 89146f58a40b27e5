"""The engine's thread, which alone touches the model, the cache and the slots.

Input: requests, weight updates and ends of sessions, through a queue. Output: each request's outcome, exactly once. One
step receives all messages, assigns slots to waiting requests, and runs one token of every sequence being sampled and a
bounded number of prompt tokens through the model.
Invariants: weights change only between steps; a token carries the version of the weights it was sampled with; a failed
step fails the requests that were in it, not the thread; whatever ends the thread, nobody is left waiting.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from slipstream.engine.inference.config import EngineConfig, OnUpdate
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.plan import Piece
from slipstream.engine.inference.request import Request
from slipstream.engine.inference.sampling import draw
from slipstream.engine.inference.slots import Slot, SlotTable
from slipstream.engine.inference.work_log import Stopwatch, WorkLog
from slipstream.errors import ModelError
from slipstream.types import EngineWork

_log = logging.getLogger(__name__)
SWITCH_INTERVAL_S = 0.0005
"""Python's thread switch interval while the engine runs; the default is 0.005."""
RATE_WINDOW_S = 1.0
"""The window over which the sampling rate is measured."""
CLOSED = "the engine is closed: open another"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounts:
    """Totals since the engine was opened."""

    num_steps: int = 0
    num_computed: int = 0
    """Tokens that went through the model."""
    num_reused: int = 0
    """Prompt tokens that were in the cache."""
    num_sampled: int = 0
    num_evicted: int = 0
    """Sessions whose cache was evicted before they ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """New weights, and the future to complete when they are in place."""

    named: Sequence[tuple[str, torch.Tensor]]
    version: int
    done: Future[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """The session will not be continued, so its cache may be evicted."""

    session: str


class Worker:
    def __init__(self, decoder: Decoder, config: EngineConfig, version: int) -> None:
        self._prefill_tokens = config.prefill_tokens_on(decoder.device.type)
        self.version = version
        self.counts = EngineCounts()
        self.work = WorkLog()
        self._watch = Stopwatch()
        self.num_running = 0
        self.num_held = 0
        """Cached tokens of running sequences."""
        self.tokens_per_s = 0.0
        self._rate_samples: deque[tuple[float, int]] = deque()
        """When a step ended, and how many tokens had been sampled by then."""
        self._decoder = decoder
        self._config = config
        self._table = SlotTable(config.num_slots, reuse=not config.deterministic)
        self._waiting: list[Request] = []
        self._running: dict[int, Request] = {}
        """By slot, in the order in which they started."""
        self._inbox: queue.SimpleQueue[Request | Update | SessionEnd | None] = queue.SimpleQueue()
        self._current: Request | Update | SessionEnd | None = None
        """The message being processed."""
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="slipstream-engine", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- from other threads

    def put(self, message: Request | Update | SessionEnd) -> None:
        with self._lock:
            if self._closed:
                raise ModelError(CLOSED)
            self._inbox.put(message)

    def close(self) -> None:
        """End the thread; running requests fail. Closing twice is fine."""
        with self._lock:
            self._closed = True
            self._inbox.put(None)
        self._thread.join()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            if self._config.num_threads is not None:
                torch.set_num_threads(self._config.num_threads)
            with torch.inference_mode(), self._context():
                while self._receive():
                    self._guarded_step()
        finally:
            with self._lock:
                self._closed = True
            self._fail_remaining()

    @contextmanager
    def _context(self) -> Iterator[None]:
        """The context in which the thread works: with a shorter thread switch interval. Every torch operation releases
        the GIL; this thread and the learner's must get it back from the event loop's thread, often for less work than
        the default interval of 5 ms."""
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(min(before_s, SWITCH_INTERVAL_S))
        try:
            yield
        finally:
            sys.setswitchinterval(before_s)

    def _synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""

    def _drain(self) -> None:
        """Read the results of all submitted work."""

    def _receive(self) -> bool:
        """Process all messages, waiting for one if there is nothing to do. Returns False when the thread is to end."""
        while True:
            try:
                message = self._inbox.get(block=not self._running and not self._waiting)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._current = message
            if isinstance(message, Update):
                self._update(message)
            elif isinstance(message, SessionEnd):
                self._table.end_session(message.session)
            else:
                insort(self._waiting, message, key=lambda request: request.priority)
            self._current = None

    def _update(self, update: Update) -> None:
        try:
            self._drain()
        except Exception as raised:  # from an earlier step: fail its requests and the update
            self._fail(raised)
            update.done.set_exception(raised)
            return
        try:
            self._decoder.load_weights(update.named)
            self._synchronize()
        except Exception as raised:  # raised to the caller of the update
            update.done.set_exception(raised)
            return
        self.version = update.version
        if self._config.on_update is OnUpdate.RECOMPUTE:
            self._table.invalidate()
        update.done.set_result(None)

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as raised:  # the thread's boundary: a failed step fails the requests that were in it
            if not self._running:
                self._running = dict(enumerate(self._waiting))
                self._waiting.clear()
            self._fail(raised)
        self.num_running = len(self._running)
        self.num_held = sum(slot.num_computed for slot in self._table.busy)
        self._update_rate()

    def _update_rate(self) -> None:
        now_s = time.monotonic()
        self._rate_samples.append((now_s, self.counts.num_sampled))
        while now_s - self._rate_samples[0][0] > RATE_WINDOW_S:
            self._rate_samples.popleft()
        then_s, num_then = self._rate_samples[0]
        self.tokens_per_s = (self.counts.num_sampled - num_then) / (now_s - then_s) if now_s > then_s else 0.0

    def _fail(self, raised: Exception) -> None:
        """Fail all running requests and drop their work."""
        _log.error("a step of the engine failed", exc_info=raised)
        error = ModelError(f"a step of the engine failed: {type(raised).__name__}: {raised}")
        for request in self._running.values():
            request.deliver(error)
        self._reset()
        self.num_running = self.num_held = 0

    def _reset(self) -> None:
        """Clear the running requests and the cache."""
        self._running.clear()
        for slot in self._table.slots:
            self._table.release(slot, keep=False)

    def _fail_remaining(self) -> None:
        """Fail everything that still waits, so that nobody is left waiting."""
        message: Request | Update | SessionEnd | None = self._current
        while True:
            if isinstance(message, Update) and not message.done.done():
                message.done.set_exception(ModelError(CLOSED))
            elif isinstance(message, Request):
                self._waiting.append(message)
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                break
        for request in (*self._running.values(), *self._waiting):
            request.deliver(ModelError(CLOSED))
        self._running.clear()
        self._waiting.clear()
        self.num_running = self.num_held = 0

    # ---------------------------------------------------------------- one step

    def _step(self) -> None:
        self._watch.start()
        self._drop_cancelled()
        self._admit()
        busy = [self._table.slots[index] for index in self._running]
        singles = [next_piece(slot, 1) for slot in sorted(busy, key=lambda slot: slot.index) if slot.num_missing == 1]
        chunks = self._chunks([slot for slot in busy if slot.num_missing > 1])
        if self._config.deterministic:
            if singles:
                self._forward(singles, (), num_padding=self._config.num_slots - len(singles))
            if chunks:
                self._forward((), chunks)
        elif singles or chunks:
            self._forward(singles, chunks)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.cancelled]
        for index, request in list(self._running.items()):
            if request.cancelled:
                self._release(index)

    def _admit(self) -> None:
        """Assign slots to waiting requests: lowest priority number first, then in order of arrival."""
        for request in tuple(self._waiting):
            if not self._table.has_room:
                break
            placed = self._table.place(request.prompt, session=request.session, salt=request.salt)
            if placed is None:
                continue
            self._waiting.remove(request)
            self._running[placed.slot.index] = request
            request.num_cached = placed.num_reused
            if placed.copy_from is not None:
                self._decoder.copy_prefix(placed.copy_from, placed.slot.index, placed.num_reused)
            self._count(num_reused=placed.num_reused)

    def _chunks(self, slots: Sequence[Slot]) -> list[Piece]:
        """The next prompt tokens, oldest request first, as many as fit into a step."""
        if self._config.deterministic:
            return [next_piece(slot, self._prefill_tokens) for slot in slots[:1]]
        room = self._prefill_tokens
        chunks = []
        for slot in slots:
            if room:
                chunks.append(next_piece(slot, room))
                room -= len(chunks[-1].ids)
        return chunks

    def _forward(self, singles: Sequence[Piece], chunks: Sequence[Piece], *, num_padding: int = 0) -> None:
        """Run the pieces through the model, and sample a token for each sequence that is complete then."""
        pieces = [*singles, *chunks]
        ready = [place for place, piece in enumerate(pieces) if piece.end == len(self._table.slots[piece.slot].tokens)]
        padding = [Piece(slot=self._config.num_slots, start=0, ids=(0,))] * num_padding
        outputs = [*ready, *range(len(pieces), len(pieces) + num_padding)]
        logits = self._decoder.forward(
            [*singles, *padding], chunks, outputs=outputs, separate=self._config.deterministic
        )
        for piece in pieces:
            self._table.slots[piece.slot].num_computed = piece.end
        self._count(num_steps=1, num_computed=sum(len(piece.ids) for piece in pieces), num_sampled=len(ready))
        if ready:
            self._sample([pieces[place].slot for place in ready], logits[: len(ready)])
        seconds, cpu_s = self._watch.lap()
        self.work.add(
            EngineWork(
                num_steps=1,
                num_rows=len(ready),
                num_held=sum(pieces[place].end for place in ready),
                num_prompt=sum(len(piece.ids) for piece in chunks),
                seconds=seconds,
                cpu_s=cpu_s,
            )
        )

    def _sample(self, indices: Sequence[int], logits: torch.Tensor) -> None:
        requests = [self._running[index] for index in indices]
        for index, request, drawn in zip(
            indices, requests, draw(logits, [request.next_draw_spec() for request in requests]), strict=True
        ):
            if drawn.broken:
                self._fail_row(index, request)
                continue
            self._table.slots[index].tokens.append(drawn.token)
            stop = request.append(drawn, self.version)
            if stop is not None:
                self._release(index)
                request.deliver(request.result(stop))

    def _fail_row(self, index: int, request: Request) -> None:
        self._release(index, keep=False)
        self._decoder.clear(index)
        request.deliver(ModelError(f"the logits are NaN: check weights version {self.version}"))

    def _release(self, index: int, *, keep: bool = True) -> None:
        del self._running[index]
        self._table.release(self._table.slots[index], keep=keep)

    def _count(self, *, num_steps: int = 0, num_computed: int = 0, num_reused: int = 0, num_sampled: int = 0) -> None:
        now = self.counts
        self.counts = EngineCounts(
            num_steps=now.num_steps + num_steps,
            num_computed=now.num_computed + num_computed,
            num_reused=now.num_reused + num_reused,
            num_sampled=now.num_sampled + num_sampled,
            num_evicted=self._table.num_evicted,
        )


def next_piece(slot: Slot, limit: int) -> Piece:
    start = slot.num_computed
    return Piece(slot=slot.index, start=start, ids=slot.tokens[start : start + limit])

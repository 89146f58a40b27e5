"""The engine's thread: it alone touches the model, the cache and the slots.

Input: requests, weights and ends of sessions, through a queue. Output: each request's outcome, exactly once. One step
takes all that arrived, gives slots to those who wait, and puts one token of every sequence that is being sampled and a
bounded number of prompt tokens through the model.
Invariants: weights change between steps and never during one; a token carries the version of the weights it was
sampled with; a step that fails ends the requests that were in it and not the thread; whatever ends the thread, nobody
is left waiting.
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
TURN_S = 0.0005
"""Of a thread of Python, before it gives way to another that wants to go on; Python's own is 0.005."""
PACE_S = 1.0
"""So much of the past says how fast tokens are sampled."""
CLOSED = "the engine is closed: open another"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounts:
    """What the engine did so far."""

    num_steps: int = 0
    num_computed: int = 0
    """Tokens that went through the model."""
    num_reused: int = 0
    """Tokens of prompts that were in the cache."""
    num_sampled: int = 0
    num_evicted: int = 0
    """Sessions whose cache was given up for another's, before they were over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """New weights, and who waits for them to be in place."""

    named: Sequence[tuple[str, torch.Tensor]]
    version: int
    done: Future[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """Nobody comes back to what is cached under this name."""

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
        """Tokens of running sequences that are in the cache."""
        self.tokens_per_s = 0.0
        self._marks: deque[tuple[float, int]] = deque()
        """When a step ended, and how many tokens were sampled by then."""
        self._decoder = decoder
        self._config = config
        self._table = SlotTable(config.num_slots, reuse=not config.deterministic)
        self._waiting: list[Request] = []
        self._running: dict[int, Request] = {}
        """By slot, in the order in which they began."""
        self._inbox: queue.SimpleQueue[Request | Update | SessionEnd | None] = queue.SimpleQueue()
        self._in_hand: Request | Update | SessionEnd | None = None
        """What was taken from there last, until it is dealt with."""
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="slipstream-engine", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- from other threads

    def put(self, message: Request | Update | SessionEnd) -> None:
        with self._gate:
            if self._closed:
                raise ModelError(CLOSED)
            self._inbox.put(message)

    def close(self) -> None:
        """Ends the thread; requests under way fail. Closing twice is fine."""
        with self._gate:
            self._closed = True
            self._inbox.put(None)
        self._thread.join()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            if self._config.num_threads is not None:
                torch.set_num_threads(self._config.num_threads)
            with torch.inference_mode(), self._context():
                while self._take():
                    self._guarded_step()
        finally:
            with self._gate:
                self._closed = True
            self._end()

    @contextmanager
    def _context(self) -> Iterator[None]:
        """In which the thread does all its work: with shorter turns of Python's threads. Every operation of torch gives
        up Python's lock; this thread and the learner's must get it back from the event loop's, often for less work than
        a turn of 5 ms."""
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(min(before_s, TURN_S))
        try:
            yield
        finally:
            sys.setswitchinterval(before_s)

    def _settle(self) -> None:
        """Wait until the device has done all that it was asked for."""

    def _catch_up(self) -> None:
        """Read all that was asked for."""

    def _take(self) -> bool:
        """All that arrived; waits for something to arrive if there is nothing to do. False to end."""
        while True:
            try:
                message = self._inbox.get(block=not self._running and not self._waiting)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._in_hand = message
            if isinstance(message, Update):
                self._update(message)
            elif isinstance(message, SessionEnd):
                self._table.end(message.session)
            else:
                insort(self._waiting, message, key=lambda request: request.priority)
            self._in_hand = None

    def _update(self, update: Update) -> None:
        try:
            self._catch_up()
        except Exception as raised:  # of a step before: its requests are told, and whoever asked for the update
            self._fail(raised)
            update.done.set_exception(raised)
            return
        try:
            self._decoder.put(update.named)
            self._settle()
        except Exception as raised:  # handed to whoever asked for the update
            update.done.set_exception(raised)
            return
        self.version = update.version
        if self._config.on_update is OnUpdate.RECOMPUTE:
            self._table.forget()
        update.done.set_result(None)

    def _guarded_step(self) -> None:
        try:
            self._step()
        except Exception as raised:  # the thread's boundary: a failed step is told to those who were in it
            if not self._running:
                self._running = dict(enumerate(self._waiting))
                self._waiting.clear()
            self._fail(raised)
        self.num_running = len(self._running)
        self.num_held = sum(slot.num_computed for slot in self._table.busy)
        self._keep_pace()

    def _keep_pace(self) -> None:
        now_s = time.monotonic()
        self._marks.append((now_s, self.counts.num_sampled))
        while now_s - self._marks[0][0] > PACE_S:
            self._marks.popleft()
        then_s, num_then = self._marks[0]
        self.tokens_per_s = (self.counts.num_sampled - num_then) / (now_s - then_s) if now_s > then_s else 0.0

    def _fail(self, raised: Exception) -> None:
        """All that are running are told, and what was under way for them is forgotten."""
        _log.error("a step of the engine failed", exc_info=raised)
        error = ModelError(f"a step of the engine failed: {type(raised).__name__}: {raised}")
        for request in self._running.values():
            request.deliver(error)
        self._forget_all()
        self.num_running = self.num_held = 0

    def _forget_all(self) -> None:
        """Nothing is running any more, and nothing is in the cache."""
        self._running.clear()
        for slot in self._table.slots:
            self._table.release(slot, keep=False)

    def _end(self) -> None:
        """Nobody is left waiting."""
        message: Request | Update | SessionEnd | None = self._in_hand
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
        singles = [piece_of(slot, 1) for slot in sorted(busy, key=lambda slot: slot.index) if slot.num_missing == 1]
        chunks = self._chunks([slot for slot in busy if slot.num_missing > 1])
        if self._config.deterministic:
            if singles:
                self._pass(singles, (), num_padding=self._config.num_slots - len(singles))
            if chunks:
                self._pass((), chunks)
        elif singles or chunks:
            self._pass(singles, chunks)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.cancelled]
        for index, request in list(self._running.items()):
            if request.cancelled:
                self._release(index)

    def _admit(self) -> None:
        """Slots for those who wait: lowest priority number first, then in order of arrival."""
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
        """The next tokens of prompts, oldest request first, as many as fit into a step."""
        if self._config.deterministic:
            return [piece_of(slot, self._prefill_tokens) for slot in slots[:1]]
        room = self._prefill_tokens
        chunks = []
        for slot in slots:
            if room:
                chunks.append(piece_of(slot, room))
                room -= len(chunks[-1].ids)
        return chunks

    def _pass(self, singles: Sequence[Piece], chunks: Sequence[Piece], *, num_padding: int = 0) -> None:
        """Through the model, and a token for each sequence of which nothing is missing then."""
        pieces = [*singles, *chunks]
        ready = [place for place, piece in enumerate(pieces) if piece.end == len(self._table.slots[piece.slot].tokens)]
        padding = [Piece(slot=self._config.num_slots, start=0, ids=(0,))] * num_padding
        outputs = [*ready, *range(len(pieces), len(pieces) + num_padding)]
        logits = self._decoder.forward([*singles, *padding], chunks, outputs=outputs, alone=self._config.deterministic)
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
            indices, requests, draw(logits, [request.next_draw() for request in requests]), strict=True
        ):
            if drawn.broken:
                self._give_up(index, request)
                continue
            self._table.slots[index].tokens.append(drawn.token)
            stop = request.take(drawn, self.version)
            if stop is not None:
                self._release(index)
                request.deliver(request.sampled(stop))

    def _give_up(self, index: int, request: Request) -> None:
        self._release(index, keep=False)
        self._decoder.clear(index)
        request.deliver(ModelError(f"the logits are not numbers (NaN): check weights version {self.version}"))

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


def piece_of(slot: Slot, most: int) -> Piece:
    start = slot.num_computed
    return Piece(slot=slot.index, start=start, ids=slot.tokens[start : start + most])

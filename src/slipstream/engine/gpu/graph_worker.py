"""The engine's thread on a GPU: it asks for tokens some steps ahead of what it has read.

Enters and leaves: as in `worker`. A round gives slots to those who wait, puts a bounded number of prompt tokens through
the model, asks for a few more tokens of every sequence, and then reads what the round before drew, while the device
goes on.
Invariants: what is drawn for a sequence after its end is thrown away; nobody else's work begins in its slot before
that, since the device does what it is asked for in order; weights change only when all that was asked for is read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from slipstream.engine.inference.config import EngineConfig, OnUpdate
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.plan import Piece
from slipstream.engine.inference.request import Request
from slipstream.engine.inference.sampling import Draw, Drawing
from slipstream.engine.inference.slots import Slot
from slipstream.engine.inference.worker import Update, Worker, piece_of
from slipstream.types import EngineWork


class Pending(Protocol):
    """See `graphs.Pending`."""

    def wait(self) -> tuple[list[list[int]], list[list[float]]]: ...


class Passes(Protocol):
    """What is asked of a device. See `graphs.GraphDecoder`, whose methods are described there."""

    def stream(self) -> AbstractContextManager[object]: ...

    def settle(self) -> None: ...

    def prefill(self, pieces: Sequence[Piece], drawings: Sequence[Drawing | None]) -> Pending: ...

    def go_on(self, slots: Sequence[int], num_steps: int, nucleus: Mapping[int, Draw] | None = None) -> Pending: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """Tokens that were asked for: those of row i are for `rows[i]`, a slot and its request."""

    pending: Pending
    rows: Sequence[tuple[int, Request]]
    num_steps: int
    """Of sequences that are being sampled; 0: prompts were computed."""
    num_held: int
    num_prompt: int
    version: int


class GraphWorker(Worker):
    def __init__(self, decoder: Decoder, passes: Passes, config: EngineConfig, version: int) -> None:
        self._passes = passes
        self._flights: deque[_Flight] = deque()
        self._sampling: dict[int, Request] = {}
        """By slot: sequences whose prompt is through, and whose next token only the device may know."""
        super().__init__(decoder, config, version)

    @contextmanager
    def _context(self) -> Iterator[None]:
        with super()._context(), self._passes.stream():
            yield

    def _settle(self) -> None:
        self._passes.settle()

    def _catch_up(self) -> None:
        self._read(0)
        self._settle()

    def _update(self, update: Update) -> None:
        super()._update(update)
        if self._config.on_update is OnUpdate.RECOMPUTE:
            self._sampling.clear()

    def _forget_all(self) -> None:
        self._flights.clear()
        self._sampling.clear()
        super()._forget_all()

    def _release(self, index: int, *, keep: bool = True) -> None:
        self._sampling.pop(index, None)
        super()._release(index, keep=keep)

    # ---------------------------------------------------------------- one round

    def _step(self) -> None:
        if not self._flights:
            self._watch.start()
        self._drop_cancelled()
        self._admit()
        behind = self._prefill([self._table.slots[index] for index in self._running if index not in self._sampling])
        self._read(1 if self._go_on(1 if behind else self._config.steps_ahead) else 0)

    def _prefill(self, slots: Sequence[Slot]) -> bool:
        """The next tokens of prompts, oldest request first, as many as fit into a pass; whether some did not."""
        room = self._prefill_tokens
        pieces: list[Piece] = []
        drawings: list[Drawing | None] = []
        rows: list[tuple[int, Request]] = []
        for slot in slots:
            if not room:
                break
            piece = piece_of(slot, room)
            room -= len(piece.ids)
            slot.num_computed = piece.end
            pieces.append(piece)
            request = self._running[slot.index]
            drawings.append(None if slot.num_missing else _drawing(slot, request))
            if not slot.num_missing:
                rows.append((slot.index, request))
        if not pieces:
            return False
        pending = self._passes.prefill(pieces, drawings)
        num_prompt = sum(len(piece.ids) for piece in pieces)
        self._count(num_steps=1, num_computed=num_prompt)
        self._fly(pending, rows, num_prompt=num_prompt)
        self._sampling.update(rows)
        return not room

    def _go_on(self, num_steps: int) -> bool:
        """A few more tokens of those whose prompt is through. While prompts are behind they are few: the sooner all are
        sampled together, the better."""
        rows = [(index, request) for index, request in self._sampling.items() if request.num_asked < request.max_tokens]
        if not rows:
            return False
        nucleus: dict[int, Draw] = {}
        if any(request.params.top_p < 1.0 for _, request in rows):  # its noise must be known here
            self._read(0)
            rows = [(index, request) for index, request in rows if self._running.get(index) is request]
            nucleus = {row: request.next_draw() for row, (_, request) in enumerate(rows) if request.params.top_p < 1.0}
            if not rows:
                return False
        most = max(request.max_tokens - request.num_asked for _, request in rows)
        num_steps = 1 if nucleus else min(num_steps, most)
        pending = self._passes.go_on([index for index, _ in rows], num_steps, nucleus)
        self._count(num_steps=num_steps, num_computed=num_steps * len(rows))
        self._fly(pending, rows, num_steps=num_steps)
        return not nucleus

    def _fly(
        self, pending: Pending, rows: Sequence[tuple[int, Request]], *, num_steps: int = 0, num_prompt: int = 0
    ) -> None:
        self._flights.append(
            _Flight(
                pending=pending,
                rows=rows,
                num_steps=num_steps,
                num_held=num_steps * self.num_held,
                num_prompt=num_prompt,
                version=self.version,
            )
        )
        for _, request in rows:
            request.num_asked += max(1, num_steps)

    def _read(self, num_left: int) -> None:
        """What was drawn, until so many are left in the air."""
        while len(self._flights) > num_left:
            flight = self._flights.popleft()
            tokens, logprobs = flight.pending.wait()
            self._log(flight)
            num_taken = 0
            for row, (index, request) in enumerate(flight.rows):
                if self._running.get(index) is request:
                    num_taken += self._take_row(index, request, tokens[row], logprobs[row], flight.version)
            self._count(num_sampled=num_taken)

    def _log(self, flight: _Flight) -> None:
        """What it took: the device does one after the other, so that is the time since the one before was read, or
        since it was asked for where none was."""
        seconds, cpu_s = self._watch.lap()
        self.work.add(
            EngineWork(
                num_steps=flight.num_steps,
                num_rows=flight.num_steps * len(flight.rows),
                num_held=flight.num_held,
                num_prompt=flight.num_prompt,
                seconds=seconds,
                cpu_s=cpu_s,
            )
        )

    def _take_row(
        self, index: int, request: Request, tokens: Sequence[int], logprobs: Sequence[float], version: int
    ) -> int:
        """How many tokens it got."""
        if not all(map(math.isfinite, logprobs)):
            self._give_up(index, request)
            return 0
        slot = self._table.slots[index]
        num_before = len(request.ids)
        stop = request.take_all(tokens, logprobs, version)
        slot.tokens.extend(request.ids[num_before:])
        slot.num_computed = len(slot.tokens) - 1
        if stop is not None:
            self._release(index)
            request.deliver(request.sampled(stop))
        return len(request.ids) - num_before


def _drawing(slot: Slot, request: Request) -> Drawing:
    nucleus = request.next_draw() if request.params.top_p < 1.0 and request.params.temperature > 0.0 else None
    return Drawing(slot=slot.index, seed=request.seed, temperature=request.params.temperature, nucleus=nucleus)

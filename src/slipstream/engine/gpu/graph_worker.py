"""The engine's thread on a GPU, which submits work some steps ahead of the results it has read.

Input and output as in `worker`. A round assigns slots to waiting requests, submits a bounded number of prompt tokens
and a few decoding steps for every sequence, and then reads the results of the previous round while the device works.
Invariants: tokens drawn for a sequence after its end are dropped; the device works in submission order, so no other
request's work starts in its slot before that; weights change only when all results have been read.
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
from slipstream.engine.inference.sampling import DeviceDraw, DrawSpec
from slipstream.engine.inference.slots import Slot
from slipstream.engine.inference.worker import Update, Worker, next_piece
from slipstream.types import EngineWork


class Pending(Protocol):
    """See `graphs.Pending`."""

    def wait(self) -> tuple[list[list[int]], list[list[float]]]: ...


class DevicePasses(Protocol):
    """The work that a device can do; see `graphs.GraphDecoder`."""

    def stream(self) -> AbstractContextManager[object]: ...

    def synchronize(self) -> None: ...

    def prefill(self, pieces: Sequence[Piece], drawings: Sequence[DeviceDraw | None]) -> Pending: ...

    def decode(
        self, slots: Sequence[int], num_steps: int, nucleus: Mapping[int, DrawSpec] | None = None
    ) -> Pending: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submitted:
    """Work submitted to the device: the tokens of row i are for `rows[i]`, a slot and its request."""

    pending: Pending
    rows: Sequence[tuple[int, Request]]
    num_steps: int
    """Decoding steps; 0 for a prefill."""
    num_held: int
    num_prompt: int
    version: int


class GraphWorker(Worker):
    def __init__(self, decoder: Decoder, passes: DevicePasses, config: EngineConfig, version: int) -> None:
        self._passes = passes
        self._in_flight: deque[_Submitted] = deque()
        self._sampling: dict[int, Request] = {}
        """By slot: sequences whose prompt is computed, and whose last token may be known only to the device."""
        super().__init__(decoder, config, version)

    @contextmanager
    def _context(self) -> Iterator[None]:
        with super()._context(), self._passes.stream():
            yield

    def _synchronize(self) -> None:
        self._passes.synchronize()

    def _drain(self) -> None:
        self._collect(0)
        self._synchronize()

    def _update(self, update: Update) -> None:
        super()._update(update)
        if self._config.on_update is OnUpdate.RECOMPUTE:
            self._sampling.clear()

    def _reset(self) -> None:
        self._in_flight.clear()
        self._sampling.clear()
        super()._reset()

    def _release(self, index: int, *, keep: bool = True) -> None:
        self._sampling.pop(index, None)
        super()._release(index, keep=keep)

    # ---------------------------------------------------------------- one round

    def _step(self) -> None:
        if not self._in_flight:
            self._watch.start()
        self._drop_cancelled()
        self._admit()
        has_backlog = self._prefill(
            [self._table.slots[index] for index in self._running if index not in self._sampling]
        )
        self._collect(1 if self._decode(1 if has_backlog else self._config.steps_ahead) else 0)

    def _prefill(self, slots: Sequence[Slot]) -> bool:
        """Submit the next prompt tokens, oldest request first; returns whether the pass was filled."""
        room = self._prefill_tokens
        pieces: list[Piece] = []
        drawings: list[DeviceDraw | None] = []
        rows: list[tuple[int, Request]] = []
        for slot in slots:
            if not room:
                break
            piece = next_piece(slot, room)
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
        self._submit(pending, rows, num_prompt=num_prompt)
        self._sampling.update(rows)
        return not room

    def _decode(self, num_steps: int) -> bool:
        """Submit decoding steps for all sequences whose prompt is computed; returns whether one batch of results may
        stay unread. With a backlog of prompts the steps are few, so that all sequences are soon sampled together."""
        rows = [
            (index, request) for index, request in self._sampling.items() if request.num_requested < request.max_tokens
        ]
        if not rows:
            return False
        nucleus: dict[int, DrawSpec] = {}
        if any(request.params.top_p < 1.0 for _, request in rows):  # the host draws: it needs all tokens so far
            self._collect(0)
            rows = [(index, request) for index, request in rows if self._running.get(index) is request]
            nucleus = {
                row: request.next_draw_spec() for row, (_, request) in enumerate(rows) if request.params.top_p < 1.0
            }
            if not rows:
                return False
        max_steps = max(request.max_tokens - request.num_requested for _, request in rows)
        num_steps = 1 if nucleus else min(num_steps, max_steps)
        pending = self._passes.decode([index for index, _ in rows], num_steps, nucleus)
        self._count(num_steps=num_steps, num_computed=num_steps * len(rows))
        self._submit(pending, rows, num_steps=num_steps)
        return not nucleus

    def _submit(
        self, pending: Pending, rows: Sequence[tuple[int, Request]], *, num_steps: int = 0, num_prompt: int = 0
    ) -> None:
        self._in_flight.append(
            _Submitted(
                pending=pending,
                rows=rows,
                num_steps=num_steps,
                num_held=num_steps * self.num_held,
                num_prompt=num_prompt,
                version=self.version,
            )
        )
        for _, request in rows:
            request.num_requested += max(1, num_steps)

    def _collect(self, num_left: int) -> None:
        """Read results until `num_left` submissions are still in flight."""
        while len(self._in_flight) > num_left:
            submitted = self._in_flight.popleft()
            tokens, logprobs = submitted.pending.wait()
            self._log_work(submitted)
            num_taken = 0
            for row, (index, request) in enumerate(submitted.rows):
                if self._running.get(index) is request:
                    num_taken += self._accept_row(index, request, tokens[row], logprobs[row], submitted.version)
            self._count(num_sampled=num_taken)

    def _log_work(self, submitted: _Submitted) -> None:
        """Log how long it took. The device works in order, so that is the time since the previous results were read, or
        since it was submitted if there were none."""
        seconds, cpu_s = self._watch.lap()
        self.work.add(
            EngineWork(
                num_steps=submitted.num_steps,
                num_rows=submitted.num_steps * len(submitted.rows),
                num_held=submitted.num_held,
                num_prompt=submitted.num_prompt,
                seconds=seconds,
                cpu_s=cpu_s,
            )
        )

    def _accept_row(
        self, index: int, request: Request, tokens: Sequence[int], logprobs: Sequence[float], version: int
    ) -> int:
        """Give a request its tokens; returns how many it took."""
        if not all(map(math.isfinite, logprobs)):
            self._fail_row(index, request)
            return 0
        slot = self._table.slots[index]
        num_before = len(request.ids)
        stop = request.extend(tokens, logprobs, version)
        slot.tokens.extend(request.ids[num_before:])
        slot.num_computed = len(slot.tokens) - 1
        if stop is not None:
            self._release(index)
            request.deliver(request.result(stop))
        return len(request.ids) - num_before


def _drawing(slot: Slot, request: Request) -> DeviceDraw:
    nucleus = request.next_draw_spec() if request.params.top_p < 1.0 and request.params.temperature > 0.0 else None
    return DeviceDraw(slot=slot.index, seed=request.seed, temperature=request.params.temperature, nucleus=nucleus)

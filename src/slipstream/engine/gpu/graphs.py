"""The forward pass on a GPU: kernels, recorded as CUDA graphs, that sample without asking the host.

Input: pieces of prompts, and slots whose sequences are to go on by some tokens. Output: what was drawn, which the host
reads later: the device has gone on meanwhile.
Invariants: work is done in the order in which it was asked for, on one stream; a pass of n rows runs as the recorded
one of the next size, its spare rows in a slot that is nobody's; the weights and the cache are the Decoder's own, read
where they lie.

Without a GPU the same passes run unrecorded, through Triton's interpreter: for tests.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as functional

from slipstream.engine.gpu import kernels
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.plan import Piece
from slipstream.engine.inference.sampling import Draw, Drawing, draw, mixed

_CUDA: Any = torch.cuda
"""Its classes have no types."""

MIN_ROWS = 8
MIN_TOKENS = 16
PROGRAMS = 400
"""So many programs keep a GPU busy."""
MAX_PARTS = 32


class Pending:
    """Tokens that are being drawn, or were."""

    def __init__(self, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        on_gpu = tokens.is_cuda
        self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=on_gpu)
        self._logprobs = torch.empty(logprobs.shape, dtype=logprobs.dtype, pin_memory=on_gpu)
        self._tokens.copy_(tokens, non_blocking=True)
        self._logprobs.copy_(logprobs, non_blocking=True)
        self._copied = _CUDA.Event() if on_gpu else None
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and logprobs, row by row."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens: list[list[int]] = self._tokens.T.tolist()
        logprobs: list[list[float]] = self._logprobs.T.tolist()
        return tokens, logprobs


class GraphDecoder:
    def __init__(self, decoder: Decoder, *, num_slots: int, num_steps: int) -> None:
        """`decoder` has one slot more than `num_slots`, for rows that are padding."""
        self._decoder = decoder
        self._spare = num_slots
        self._num_slots = num_slots
        self._on_gpu = decoder.device.type == "cuda"
        self._stream = _CUDA.Stream(decoder.device) if self._on_gpu else None
        self._pool = torch.cuda.graph_pool_handle() if self._on_gpu else None
        self._recorded: dict[tuple[str, int], Callable[[], None]] = {}
        self._logits: dict[tuple[str, int], torch.Tensor] = {}
        """Of the pass of that name that was run last, until another is."""
        self._rows: dict[int, torch.Tensor] = {}
        """By size: the slots of a pass that samples."""
        self._prompts: dict[int, _PromptBuffers] = {}
        self._in_rows: tuple[int, ...] = ()
        most_rows = _size(num_slots, MIN_ROWS)
        self._state = kernels.SlotState(
            tokens=self._ints(num_slots + 1),
            positions=self._ints(num_slots + 1),
            seeds=self._ints(num_slots + 1).long(),
            temperatures=torch.ones(num_slots + 1, device=decoder.device),
            last_position=decoder.cache.shape[4] - 1,
        )
        self._told = kernels.SampledRing(
            counter=self._ints(1),
            tokens=self._ints(num_steps, most_rows),
            logprobs=torch.zeros(num_steps, most_rows, device=decoder.device),
        )

    def stream(self) -> AbstractContextManager[object]:
        """All work is to be asked for in here."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def settle(self) -> None:
        """Wait for all work on the device, the learner's too."""
        if self._on_gpu:
            torch.cuda.synchronize(self._decoder.device)

    # ---------------------------------------------------------------- passes

    def go_on(self, slots: Sequence[int], num_steps: int, nucleus: Mapping[int, Draw] | None = None) -> Pending:
        """So many tokens of each slot's sequence, from where it stands. For rows in `nucleus`, which go on by a single
        step, the host draws."""
        size = min(_size(len(slots), MIN_ROWS), _size(self._num_slots, MIN_ROWS))
        step = self._go_on(size)
        wanted = (*slots, *[self._spare] * (size - len(slots)))
        if wanted != self._in_rows:
            self._rows[size].copy_(self._pinned(wanted), non_blocking=True)
            self._in_rows = wanted
        self._told.counter.fill_(-1)
        for _ in range(num_steps):
            step()
        if nucleus:
            self._redraw(("go on", size), {row: (slots[row], draw) for row, draw in nucleus.items()})
        return Pending(self._told.tokens[:num_steps], self._told.logprobs[:num_steps])

    def prefill(self, pieces: Sequence[Piece], drawings: Sequence[Drawing | None]) -> Pending:
        """The pieces through the model; then a token for each that has a drawing, the rows of what is told."""
        num_tokens = sum(len(piece.ids) for piece in pieces)
        size = _size(num_tokens, MIN_TOKENS)
        run = self._prefill(size)
        buffers = self._prompts[size]
        buffers.all.copy_(self._pinned(buffers.filled(pieces, drawings)), non_blocking=True)
        drawn = [drawing for drawing in drawings if drawing is not None]
        if drawn:
            slots = self._uploaded([drawing.slot for drawing in drawn], torch.int64)
            seeds = [_signed(mixed(drawing.seed & (1 << 64) - 1)) for drawing in drawn]
            self._state.seeds.index_copy_(0, slots, self._uploaded(seeds, torch.int64))
            temperatures = self._uploaded([drawing.temperature for drawing in drawn], torch.float32)
            self._state.temperatures.index_copy_(0, slots, temperatures)
        run()
        nucleus = {row: (one.slot, one.nucleus) for row, one in enumerate(drawn) if one.nucleus is not None}
        if nucleus:
            self._redraw(("prefill", size), nucleus)
        return Pending(self._told.tokens[:1], self._told.logprobs[:1])

    def _go_on(self, size: int) -> Callable[[], None]:
        """A step of `size` rows."""
        if size not in self._rows:
            self._rows[size] = self._ints(size)
        slots = self._rows[size]
        num_parts = self._num_parts(size)

        def run() -> None:
            ids, positions = kernels.begin(slots, self._state, self._told)
            hidden, added = self._layers(
                ids,
                slots,
                positions,
                lambda queries, cache: kernels.attend_one(queries, cache, slots, positions, num_parts=num_parts),
            )
            self._logits["go on", size] = self._draw(hidden, added, slots, positions)

        def spare() -> None:
            slots.fill_(self._spare)
            self._told.counter.fill_(-1)
            self._in_rows = ()

        return self._record(("go on", size), run, spare)

    def _prefill(self, size: int) -> Callable[[], None]:
        """A pass of `size` tokens of prompts."""
        if size not in self._prompts:
            self._prompts[size] = _PromptBuffers(size, self._num_slots, self._decoder.device)
        buffers = self._prompts[size]

        def run() -> None:
            self._told.counter.zero_()
            hidden, added = self._layers(
                buffers.ids,
                buffers.slots,
                buffers.positions,
                lambda queries, cache: kernels.attend_prompts(queries, cache, buffers.blocks),
            )
            picks = buffers.picks
            logits = self._draw(hidden[picks], added[picks], buffers.pick_slots, buffers.positions[picks])
            self._logits["prefill", size] = logits

        def spare() -> None:
            buffers.all.copy_(self._pinned(buffers.filled((), ())), non_blocking=True)

        return self._record(("prefill", size), run, spare)

    def _record(self, key: tuple[str, int], run: Callable[[], None], spare: Callable[[], None]) -> Callable[[], None]:
        """`run` as a graph. It runs once before, in nobody's slot, so that its kernels are compiled."""
        if not self._on_gpu:
            return run
        if key not in self._recorded:
            spare()
            run()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.current_stream().synchronize()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                run()
            self._recorded[key] = graph.replay
        return self._recorded[key]

    # ---------------------------------------------------------------- the model

    def _layers(
        self,
        ids: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        attend: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the last layer leaves, and what is still to be added to it."""
        decoder, eps = self._decoder, self._decoder.spec.norm_eps
        hidden = functional.embedding(ids, decoder.embedding)
        added: torch.Tensor | None = None
        for layer, cache in zip(decoder.layers, decoder.cache, strict=True):
            normed = kernels.add_norm(hidden, added, layer.attention_norm, eps)
            table = decoder.cos, decoder.sin
            queries = kernels.store(layer.qkv(normed), cache, slots, positions, table, layer.head_norms, eps)
            output = layer.output(attend(queries, cache).flatten(1))
            normed = kernels.add_norm(hidden, output, layer.mlp_norm, eps)
            added = layer.down(kernels.gated(layer.gate_up(normed)))
        assert added is not None
        return hidden, added

    def _draw(
        self, hidden: torch.Tensor, added: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        normed = kernels.add_norm(hidden, added, self._decoder.final_norm, self._decoder.spec.norm_eps)
        logits = self._decoder.head.wide(normed)
        kernels.draw(logits, slots, positions, self._state, self._told)
        return logits

    def _redraw(self, key: tuple[str, int], nucleus: Mapping[int, tuple[int, Draw]]) -> None:
        """Other tokens in place of what was drawn last for these rows; each has its slot."""
        rows = self._uploaded(list(nucleus), torch.int64)
        slots = self._uploaded([slot for slot, _ in nucleus.values()], torch.int64)
        drawn = draw(self._logits[key][rows], [one for _, one in nucleus.values()])
        tokens = self._uploaded([one.token for one in drawn])
        self._state.tokens.index_copy_(0, slots, tokens)
        self._told.tokens[0].index_copy_(0, rows, tokens)

    def _num_parts(self, num_rows: int) -> int:
        """Into how many programs each row's attention is split, for so few rows."""
        if not self._on_gpu:
            return 1
        num_programs = num_rows * self._decoder.spec.num_kv_heads
        num_parts = 1
        while num_parts < MAX_PARTS and num_programs * num_parts < PROGRAMS:
            num_parts *= 2
        return num_parts

    def _ints(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self._decoder.device)

    def _uploaded(self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return self._pinned(values, dtype).to(self._decoder.device, non_blocking=True)

    def _pinned(self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """In memory from which the device copies on its own; torch gives it out again only after that."""
        if not isinstance(values, array):
            return torch.tensor(values, dtype=dtype, pin_memory=self._on_gpu)
        given = torch.frombuffer(values, dtype=dtype)
        return given.pin_memory() if self._on_gpu else given


class _PromptBuffers:
    """What a pass of prompts reads, in one piece of memory so that it takes one copy."""

    def __init__(self, size: int, num_slots: int, device: torch.device) -> None:
        self._size = size
        self._spare = num_slots
        self._num_picks = min(size, _size(num_slots, MIN_ROWS))
        self._num_blocks = size // kernels.QUERY_ROWS + min(size, num_slots)
        lengths = [size, size, size, self._num_picks, self._num_picks, 4 * self._num_blocks]
        self.all = torch.zeros(sum(lengths), dtype=torch.int32, device=device)
        self.ids, self.slots, self.positions, self.picks, self.pick_slots, blocks = torch.split(self.all, lengths)
        self.blocks = blocks.view(-1, 4)

    def filled(self, pieces: Sequence[Piece], drawings: Sequence[Drawing | None]) -> array[int]:
        ids, slots, positions, picks, pick_slots, blocks = (array("i") for _ in range(6))
        for piece, drawing in zip(pieces, drawings, strict=True):
            num, row = len(piece.ids), len(ids)
            ids.extend(piece.ids)
            slots.extend(array("i", (piece.slot,)) * num)
            positions.extend(range(piece.start, piece.end))
            for first in range(0, num, kernels.QUERY_ROWS):
                blocks.extend((piece.slot, row + first, piece.start + first, min(kernels.QUERY_ROWS, num - first)))
            if drawing is not None:
                picks.append(row + num - 1)
                pick_slots.append(piece.slot)
        whole = array("i")
        for part, length, padding in (
            (ids, self._size, 0),
            (slots, self._size, self._spare),
            (positions, self._size, 0),
            (picks, self._num_picks, 0),
            (pick_slots, self._num_picks, self._spare),
            (blocks, 4 * self._num_blocks, 0),
        ):
            whole.extend(part)
            whole.extend(array("i", (padding,)) * (length - len(part)))
        return whole


def _size(num: int, least: int) -> int:
    """The next power of 2, from `least` on."""
    return max(least, 1 << (num - 1).bit_length())


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits

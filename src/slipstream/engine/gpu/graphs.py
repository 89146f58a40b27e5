"""The forward pass on a GPU: kernels, recorded as CUDA graphs, that sample without a round trip to the host.

Input: pieces of prompts, and slots to decode for some steps. Output: the tokens drawn, which the host reads later while
the device works on.
Invariants: work runs in submission order, on one stream; a pass of n rows runs as the recorded graph of the next size,
with its padding rows in a slot of their own; weights and cache are the Decoder's, read in place.

Without a GPU the same passes run unrecorded, through Triton's interpreter: for tests.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as functional

from slipstream.engine.gpu import kernels, sampling_kernels
from slipstream.engine.inference.decoder import Decoder
from slipstream.engine.inference.plan import Piece
from slipstream.engine.inference.sampling import DeviceDraw, DrawSpec, draw, splitmix64

_CUDA: Any = torch.cuda
"""`torch.cuda` has no type annotations."""

MIN_ROWS = 8
MIN_TOKENS = 16
PROGRAMS = 400
"""This many programs keep a GPU busy."""
MAX_PARTS = 32


class Pending:
    """Tokens on their way from the device to the host."""

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
        """`decoder` has one slot more than `num_slots`, for padding rows."""
        self._decoder = decoder
        self._padding_slot = num_slots
        self._num_slots = num_slots
        self._on_gpu = decoder.device.type == "cuda"
        self._stream = _CUDA.Stream(decoder.device) if self._on_gpu else None
        self._pool = torch.cuda.graph_pool_handle() if self._on_gpu else None
        self._recorded: dict[tuple[str, int], Callable[[], None]] = {}
        self._logits: dict[tuple[str, int], torch.Tensor] = {}
        """The logits of the last run of each pass."""
        self._rows: dict[int, torch.Tensor] = {}
        """By size: the slots of a decoding pass."""
        self._prompts: dict[int, _PromptBuffers] = {}
        self._uploaded_slots: tuple[int, ...] = ()
        max_rows = _padded(num_slots, MIN_ROWS)
        self._state = sampling_kernels.SlotState(
            tokens=self._ints(num_slots + 1),
            positions=self._ints(num_slots + 1),
            seeds=self._ints(num_slots + 1).long(),
            temperatures=torch.ones(num_slots + 1, device=decoder.device),
            last_position=decoder.cache.shape[4] - 1,
        )
        self._ring = sampling_kernels.SampledRing(
            counter=self._ints(1),
            tokens=self._ints(num_steps, max_rows),
            logprobs=torch.zeros(num_steps, max_rows, device=decoder.device),
        )

    def stream(self) -> AbstractContextManager[object]:
        """The context in which all work must be submitted."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        """Wait for all work on the device, including the learner's."""
        if self._on_gpu:
            torch.cuda.synchronize(self._decoder.device)

    # ---------------------------------------------------------------- passes

    def decode(self, slots: Sequence[int], num_steps: int, nucleus: Mapping[int, DrawSpec] | None = None) -> Pending:
        """Decode `num_steps` tokens for each slot's sequence. For rows in `nucleus` the host draws; then there is a
        single step."""
        size = min(_padded(len(slots), MIN_ROWS), _padded(self._num_slots, MIN_ROWS))
        step = self._decode_pass(size)
        wanted = (*slots, *[self._padding_slot] * (size - len(slots)))
        if wanted != self._uploaded_slots:
            self._rows[size].copy_(self._pinned(wanted), non_blocking=True)
            self._uploaded_slots = wanted
        self._ring.counter.fill_(-1)
        for _ in range(num_steps):
            step()
        if nucleus:
            self._redraw(("decode", size), {row: (slots[row], draw) for row, draw in nucleus.items()})
        return Pending(self._ring.tokens[:num_steps], self._ring.logprobs[:num_steps])

    def prefill(self, pieces: Sequence[Piece], drawings: Sequence[DeviceDraw | None]) -> Pending:
        """Run the pieces through the model, and draw a token for each that has a DeviceDraw: these are the result's
        rows."""
        num_tokens = sum(len(piece.ids) for piece in pieces)
        size = _padded(num_tokens, MIN_TOKENS)
        run = self._prefill_pass(size)
        buffers = self._prompts[size]
        buffers.all.copy_(self._pinned(buffers.packed(pieces, drawings)), non_blocking=True)
        drawn = [drawing for drawing in drawings if drawing is not None]
        if drawn:
            slots = self._uploaded([drawing.slot for drawing in drawn], torch.int64)
            seeds = [_signed(splitmix64(drawing.seed & (1 << 64) - 1)) for drawing in drawn]
            self._state.seeds.index_copy_(0, slots, self._uploaded(seeds, torch.int64))
            temperatures = self._uploaded([drawing.temperature for drawing in drawn], torch.float32)
            self._state.temperatures.index_copy_(0, slots, temperatures)
        run()
        nucleus = {row: (one.slot, one.nucleus) for row, one in enumerate(drawn) if one.nucleus is not None}
        if nucleus:
            self._redraw(("prefill", size), nucleus)
        return Pending(self._ring.tokens[:1], self._ring.logprobs[:1])

    def _decode_pass(self, size: int) -> Callable[[], None]:
        """One decoding step of `size` rows."""
        if size not in self._rows:
            self._rows[size] = self._ints(size)
        slots = self._rows[size]
        num_parts = self._num_parts(size)

        def run() -> None:
            ids, positions = sampling_kernels.begin(slots, self._state, self._ring)
            hidden, added = self._layers(
                ids,
                slots,
                positions,
                lambda queries, cache: kernels.attend_one(queries, cache, slots, positions, num_parts=num_parts),
            )
            self._logits["decode", size] = self._draw(hidden, added, slots, positions)

        def warm_up() -> None:
            slots.fill_(self._padding_slot)
            self._ring.counter.fill_(-1)
            self._uploaded_slots = ()

        return self._record(("decode", size), run, warm_up)

    def _prefill_pass(self, size: int) -> Callable[[], None]:
        """A prefill pass of `size` tokens."""
        if size not in self._prompts:
            self._prompts[size] = _PromptBuffers(size, self._num_slots, self._decoder.device)
        buffers = self._prompts[size]

        def run() -> None:
            self._ring.counter.zero_()
            hidden, added = self._layers(
                buffers.ids,
                buffers.slots,
                buffers.positions,
                lambda queries, cache: kernels.attend_prompts(queries, cache, buffers.blocks),
            )
            picks = buffers.picks
            logits = self._draw(hidden[picks], added[picks], buffers.pick_slots, buffers.positions[picks])
            self._logits["prefill", size] = logits

        def warm_up() -> None:
            buffers.all.copy_(self._pinned(buffers.packed((), ())), non_blocking=True)

        return self._record(("prefill", size), run, warm_up)

    def _record(self, key: tuple[str, int], run: Callable[[], None], warm_up: Callable[[], None]) -> Callable[[], None]:
        """`run` as a graph. It first runs once in the padding slot, so that its kernels are compiled."""
        if not self._on_gpu:
            return run
        if key not in self._recorded:
            warm_up()
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
        """The hidden state after the last layer, and the residual still to be added to it."""
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
        logits = self._decoder.head.in_float32(normed)
        sampling_kernels.draw(logits, slots, positions, self._state, self._ring)
        return logits

    def _redraw(self, key: tuple[str, int], nucleus: Mapping[int, tuple[int, DrawSpec]]) -> None:
        """Replace the tokens just drawn for these rows, each with its slot, by tokens that the host draws."""
        rows = self._uploaded(list(nucleus), torch.int64)
        slots = self._uploaded([slot for slot, _ in nucleus.values()], torch.int64)
        drawn = draw(self._logits[key][rows], [one for _, one in nucleus.values()])
        tokens = self._uploaded([one.token for one in drawn])
        self._state.tokens.index_copy_(0, slots, tokens)
        self._ring.tokens[0].index_copy_(0, rows, tokens)

    def _num_parts(self, num_rows: int) -> int:
        """How many programs to split each row's attention into, so that a few rows still fill the GPU."""
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
        """A tensor in pinned memory, which torch reuses only after the copy to the device."""
        if not isinstance(values, array):
            return torch.tensor(values, dtype=dtype, pin_memory=self._on_gpu)
        given = torch.frombuffer(values, dtype=dtype)
        return given.pin_memory() if self._on_gpu else given


class _PromptBuffers:
    """The inputs of a prefill pass, in one block of memory so that one copy uploads them all."""

    def __init__(self, size: int, num_slots: int, device: torch.device) -> None:
        self._size = size
        self._padding_slot = num_slots
        self._num_picks = min(size, _padded(num_slots, MIN_ROWS))
        self._num_blocks = size // kernels.QUERY_ROWS + min(size, num_slots)
        lengths = [size, size, size, self._num_picks, self._num_picks, 4 * self._num_blocks]
        self.all = torch.zeros(sum(lengths), dtype=torch.int32, device=device)
        self.ids, self.slots, self.positions, self.picks, self.pick_slots, blocks = torch.split(self.all, lengths)
        self.blocks = blocks.view(-1, 4)

    def packed(self, pieces: Sequence[Piece], drawings: Sequence[DeviceDraw | None]) -> array[int]:
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
            (slots, self._size, self._padding_slot),
            (positions, self._size, 0),
            (picks, self._num_picks, 0),
            (pick_slots, self._num_picks, self._padding_slot),
            (blocks, 4 * self._num_blocks, 0),
        ):
            whole.extend(part)
            whole.extend(array("i", (padding,)) * (length - len(part)))
        return whole


def _padded(num: int, minimum: int) -> int:
    """The next power of 2, at least `minimum`."""
    return max(minimum, 1 << (num - 1).bit_length())


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits

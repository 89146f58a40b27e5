"""How many tokens fit into one pass of the learner: estimated before the first, and lowered when one does not fit.

Input: a model, and the memory that is free. Output: a budget of tokens for each micro-batch. Micro-batches decide the
memory and the rounding of a step, not its gradient, so a step that did not fit is repeated in smaller ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from slipstream.engine.training.microbatches import MicroBatch
from slipstream.errors import ConfigError

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
MIN_TOKENS = 256
"""Lower bound of the estimate: it is rough, and a pass that does not fit is noticed anyway."""
SHARE = 0.7
"""Share of the free memory that the estimate uses; gradients of activations and fragmentation take the rest."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class OutOfMemory(Exception):
    """A pass over a micro-batch did not fit."""

    def __init__(self, batch: MicroBatch) -> None:
        self.num_rows = batch.num_rows
        self.num_tokens = batch.ids.numel()
        super().__init__(f"{self.num_rows} rows with {self.num_tokens} tokens")


class MicrobatchBudget:
    """Tokens of a micro-batch, padding included. It shrinks when a pass does not fit, and never grows again."""

    def __init__(self, tokens: int, *, checkpoints_layers: bool) -> None:
        self.tokens = tokens
        self._checkpoints_layers = checkpoints_layers

    def fitting(self, work: Callable[[], T], *, undo: Callable[[], None]) -> T:
        """The result of `work`. While a pass of it does not fit, the budget is halved, `undo` is called, and `work` is
        repeated. Raises ConfigError if a single row does not fit."""
        while True:
            try:
                return work()
            except OutOfMemory as raised:
                failed = raised.num_rows, raised.num_tokens
            # Outside the handler: until here the traceback kept the tensors of the failed pass alive.
            undo()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._shrink(*failed)

    def _shrink(self, num_rows: int, num_tokens: int) -> None:
        if num_rows == 1:
            remedy = (
                "set max_sample_tokens in a new run, or use learner.method=lora there"
                if self._checkpoints_layers
                else "resume with learner.gradient_checkpointing=true"
            )
            raise ConfigError(f"a pass over one row with {num_tokens} tokens does not fit in memory: {remedy}")
        self.tokens = max(1, min(self.tokens, num_tokens) // 2)
        _LOG.warning(
            "a pass over %d rows with %d tokens does not fit in memory: learner.tokens_per_microbatch is now %d",
            num_rows,
            num_tokens,
            self.tokens,
        )


@contextmanager
def memory_guard(batch: MicroBatch) -> Iterator[None]:
    """Around a pass over `batch`: OutOfMemory if it does not fit."""
    try:
        yield
    except (MemoryError, RuntimeError) as raised:
        if not is_out_of_memory(raised):
            raise
        raise OutOfMemory(batch) from raised


def is_out_of_memory(raised: BaseException) -> bool:
    """Whether torch means that memory ran out."""
    if isinstance(raised, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(raised).lower()
    return "not enough memory" in text or "can't allocate memory" in text


def estimate_tokens(*, most: int, bytes_per_token: float, fixed_bytes: int, free_bytes: int | None) -> int:
    """Tokens that should fit, at most `most`; `fixed_bytes` is what does not grow with them. If `free_bytes` is None
    (unknown), `most`."""
    if free_bytes is None:
        return most
    room = SHARE * free_bytes - fixed_bytes
    return max(min(MIN_TOKENS, most), min(most, int(room / max(1.0, bytes_per_token))))


def fixed_bytes(num_trained: int, *, num_steps: int, rounds: bool, num_parameters: int) -> int:
    """What an update takes without activations: gradients and two moments, a copy of weights and moments if it has
    several steps, and the rounded weights of a pass in bfloat16."""
    return num_trained * (4 + 8 + (12 if num_steps > 1 else 0)) + (2 * num_parameters if rounds else 0)


@contextmanager
def counted_activations(parameters: Callable[[], Iterator[torch.Tensor]]) -> Iterator[Callable[[], int]]:
    """Counts the bytes kept for the backward pass in this context, except weights."""
    known = {tensor.untyped_storage().data_ptr() for tensor in parameters()}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(seen.values())


def free_memory(device: torch.device) -> int | None:
    """Free bytes on a device; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [value for value in (_available(_MEMINFO), _group_room(_CGROUP)) if value is not None]
    return min(known, default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _group_room(group: Path) -> int | None:
    """What is left of this container's control group limit, if it has one."""
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else None

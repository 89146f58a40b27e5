"""The two operations with weights: a linear layer and a norm.

Invariants: on a CPU a large linear layer keeps its weight only in the layout that oneDNN multiplies fastest;
`write_rows` unpacks it, changes it and packs it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional

PACKED_FOR_ROWS = 32
"""The number of input rows to pack for; the layout chosen for 32 is as fast at 1 and at 256."""

PACKED_FROM_WEIGHTS = 1 << 18
"""Below this size a packed product costs more overhead than it saves."""


class Linear:
    """`x @ weight.T + bias`. Layers that read the same input are joined into one, their rows stacked."""

    def __init__(self, num_rows: int, num_columns: int, *, bias: bool, like: torch.Tensor) -> None:
        self._weight = like.new_zeros(num_rows, num_columns)
        self._packs = num_rows * num_columns >= PACKED_FROM_WEIGHTS and _can_pack(like)
        self._packed = False
        self.bias = like.new_zeros(num_rows) if bias else None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self.bias, "none", [], "")
            return product
        return functional.linear(inputs, self._weight, self.bias)

    def in_float32(self, inputs: torch.Tensor) -> torch.Tensor:
        """The product in float32; on a GPU it is not rounded to the weights' dtype first."""
        if inputs.dtype is torch.float32 or not inputs.is_cuda or self.bias is not None:
            return self(inputs).float()
        return torch.mm(inputs, self._weight.t(), out_dtype=torch.float32)

    def write_rows(self, parts: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Overwrite rows of the weight with each tensor, from its row number on."""
        dense = self._weight.to_dense() if self._packed else self._weight
        for first_row, part in parts:
            dense[first_row : first_row + part.shape[0]].copy_(part)
        if self._packs:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(dense, PACKED_FOR_ROWS)
            self._packed = True


def rms_norm(inputs: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale the last dimension to a mean square of 1, then by the weight, which may have a row for each head."""
    if weight.dim() == 1:
        return functional.rms_norm(inputs, weight.shape, weight, eps)
    return functional.rms_norm(inputs, weight.shape[-1:], None, eps) * weight


def _can_pack(like: torch.Tensor) -> bool:
    """Whether this torch build and CPU have oneDNN products for the dtype."""
    if like.device.type != "cpu" or not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return like.dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

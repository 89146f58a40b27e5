"""Linear layers and norms, in every memory layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from slipstream.engine.model.layers import PACKED_FROM_WEIGHTS, Linear, rms_norm

LARGE = (PACKED_FROM_WEIGHTS // 256, 256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 16), LARGE], ids=["small", "large"])
def test_a_layer_multiplies_by_what_was_put_last(shape: tuple[int, int], dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=source)
    linear = Linear(*shape, bias=True, like=torch.empty(0, dtype=dtype))
    assert linear.bias is not None
    linear.bias.copy_(torch.randn(shape[0], generator=source))
    linear.write_rows([(0, weight[:8]), (8, weight[8:])])
    later = torch.randn(5, shape[1], generator=source)
    linear.write_rows([(3, later)])
    weight[3:8] = later
    for num_rows in (1, 7, 64):
        inputs = torch.randn(num_rows, shape[1], generator=source).to(dtype)
        wanted = functional.linear(inputs, weight.to(dtype), linear.bias)
        torch.testing.assert_close(linear(inputs), wanted, atol=1e-4, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4)


def test_a_norm_scales_to_a_mean_square_of_one_and_then_by_the_weight() -> None:
    inputs = torch.tensor([[3.0, -4.0], [0.3, 0.4]])
    told = rms_norm(inputs, torch.tensor([1.0, 2.0]), 0.0)
    size = 12.5**0.5
    torch.testing.assert_close(told, torch.tensor([[3 / size, -8 / size], [3 / size, 8 / size]]))


def test_heads_have_norms_of_their_own() -> None:
    heads = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([[1.0] * 4, [2.0] * 4, [-1.0] * 4])
    told = rms_norm(heads, weights, 1e-6)
    for head in range(3):
        torch.testing.assert_close(told[:, head], rms_norm(heads[:, head].contiguous(), weights[head], 1e-6))

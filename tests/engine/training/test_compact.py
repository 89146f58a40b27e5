"""A checkpoint in its compact form, and back."""

from pathlib import Path

import pytest
import torch

from slipstream.engine.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from slipstream.engine.training.compact import compact, expand
from slipstream.errors import LearnerError


def kept(folder: Path) -> Checkpoint:
    torch.manual_seed(0)
    weights = {"weight/a.lora_A": torch.randn(4, 300), "weight/a.lora_B": torch.randn(300, 4)}
    moments = {f"exp_avg/{name[7:]}": 1e-5 * torch.randn_like(tensor) for name, tensor in weights.items()}
    steps = {f"step/{name[7:]}": torch.tensor(3.0) for name in weights}
    found = Checkpoint(tensors={**weights, **moments, **steps}, facts={"version": 7})
    write_checkpoint(folder, found, part_bytes=1 << 20)
    return found


def test_exact_it_comes_back_to_the_bit_and_smaller(tmp_path: Path) -> None:
    before = kept(tmp_path / "before")
    data = compact(tmp_path / "before")
    expand(data, tmp_path / "after")
    after = read_checkpoint(tmp_path / "after")
    assert dict(after.facts) == {"version": 7} and list(after.tensors) == list(before.tensors)
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert after.tensors["step/a.lora_A"].shape == ()
    assert len(data) < 0.95 * sum(tensor.nbytes for tensor in before.tensors.values())


def test_only_moments_are_rounded_if_asked_for(tmp_path: Path) -> None:
    before = kept(tmp_path / "before")
    expand(compact(tmp_path / "before", moments="bfloat16"), tmp_path / "after")
    after = read_checkpoint(tmp_path / "after").tensors
    for name, tensor in before.tensors.items():
        wanted = tensor.bfloat16().float() if name.startswith("exp_avg") else tensor
        assert torch.equal(after[name], wanted), name
        assert after[name].dtype is torch.float32


def test_rounded_weights_survive_a_second_rounding(tmp_path: Path) -> None:
    kept(tmp_path / "before")
    once = compact(tmp_path / "before", weights="bfloat16")
    expand(once, tmp_path / "after")
    assert compact(tmp_path / "after", weights="bfloat16") == once


@pytest.mark.parametrize("place", [3, 40, -1])
def test_what_is_damaged_is_refused_and_leaves_nothing(tmp_path: Path, place: int) -> None:
    kept(tmp_path / "before")
    data = bytearray(compact(tmp_path / "before"))
    data[place] ^= 1
    with pytest.raises(LearnerError, match="damaged"):
        expand(bytes(data), tmp_path / "after")
    assert not (tmp_path / "after").exists()

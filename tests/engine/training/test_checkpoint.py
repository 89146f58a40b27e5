"""Checkpoints: the same bits back, whole or refused; and model folders that others can read."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner_stage import batch, learner, model_folder, row, same_bits, transformers_model, weights

from slipstream.engine.model.folder import write_model_folder
from slipstream.engine.model.weights import read_weights
from slipstream.engine.training.checkpoint import MANIFEST, Checkpoint, read_checkpoint, write_checkpoint
from slipstream.engine.training.config import LoraConfig
from slipstream.errors import ConfigError, LearnerError

GIVEN = batch(
    row([5, 6, 7, 8], [0, 0, 1, 1], advantage=1.0),
    row([20, 21, 22], [0, 1, 1], advantage=-1.0, rollout=1),
    row([30, 31], [0, 1], advantage=0.5, rollout=2),
)
MEBIBYTE = 1 << 20


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for method in ("full", "lora"):
        config: dict[str, Any] = {
            "method": method,
            "learning_rate": 1e-3,
            "warmup_steps": 10,
            "num_epochs": 2,
            "num_minibatches": 2,
        }
        first = learner(seed=5, **config)
        first.update(GIVEN)
        first.save(tmp_path / method)
        second = learner(seed=6, **config)
        second.load(tmp_path / method)
        assert second.version == 1
        assert same_bits(weights(first), weights(second))
        for _ in range(2):
            one, other = first.update(GIVEN), second.update(GIVEN)
            assert one.version == other.version
            assert one.metrics["learn/learning_rate"] == other.metrics["learn/learning_rate"]
        assert same_bits(weights(first), weights(second))


def test_a_checkpoint_before_the_first_update_can_be_read(tmp_path: Path) -> None:
    fresh, taught = learner(), learner()
    fresh.save(tmp_path / "saved")
    taught.update(GIVEN)
    taught.load(tmp_path / "saved")
    assert taught.version == 0
    for each in (fresh, taught):
        each.update(GIVEN)
    assert same_bits(weights(fresh), weights(taught))


@given(
    shapes=st.lists(st.lists(st.integers(0, 60), max_size=3), max_size=5),
    room=st.sampled_from([0, 100_000, 10 * MEBIBYTE]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensors_come_back_and_no_part_is_too_large(shapes: list[list[int]], room: int, tmp_path: Path) -> None:
    chance = torch.Generator().manual_seed(0)
    tensors = {f"a/{place}#": torch.randn(shape, generator=chance) for place, shape in enumerate(shapes)}
    write_checkpoint(
        tmp_path / "c", Checkpoint(tensors=tensors, facts={"version": 3}), part_bytes=MEBIBYTE + 65_536 + room
    )
    found = read_checkpoint(tmp_path / "c")
    assert found.facts == {"version": 3}
    assert same_bits(found.tensors, tensors)
    sizes = [path.stat().st_size for path in (tmp_path / "c").iterdir()]
    assert max(sizes) <= MEBIBYTE + 65_536 + room


def test_a_tensor_that_is_too_large_for_a_part_is_cut(tmp_path: Path) -> None:
    large = torch.arange(1 << 18).reshape(2, -1)  # 2 MiB
    kept = Checkpoint(tensors={"small": torch.zeros(()), "large": large}, facts={})
    write_checkpoint(tmp_path / "c", kept, part_bytes=MEBIBYTE + 300_000)
    assert len(list((tmp_path / "c").glob("part-*"))) == 8
    assert max(path.stat().st_size for path in (tmp_path / "c").iterdir()) <= MEBIBYTE + 300_000
    assert same_bits(read_checkpoint(tmp_path / "c").tensors, kept.tensors)


def test_a_large_adapter_is_written_in_parts_of_at_most_16_mib(tmp_path: Path) -> None:
    taught = learner(method="lora", lora=LoraConfig(rank=20_000, targets=("q_proj", "v_proj")))
    taught.save(tmp_path / "saved")
    files = list((tmp_path / "saved").iterdir())
    assert len(files) > 2
    assert max(path.stat().st_size for path in files) <= 16 * MEBIBYTE
    again = learner(method="lora", seed=1, lora=LoraConfig(rank=20_000, targets=("q_proj", "v_proj")))
    again.load(tmp_path / "saved")
    assert same_bits(weights(taught), weights(again))


# ---------------------------------------------------------------- damage


def saved(tmp_path: Path) -> Path:
    taught = learner()
    taught.update(GIVEN)
    taught.save(tmp_path / "saved")
    return tmp_path / "saved"


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    part, manifest = folder / "part-00001.safetensors", folder / MANIFEST
    whole, whole_manifest = part.read_bytes(), manifest.read_bytes()
    reader = learner()
    before = weights(reader)

    def refused(sentence: str) -> None:
        with pytest.raises(LearnerError, match=f"is damaged .*{sentence}.*: go back to an earlier one"):
            reader.load(folder)
        assert same_bits(before, weights(reader))
        assert reader.version == 0
        part.write_bytes(whole)
        manifest.write_bytes(whole_manifest)

    flip(part, len(whole) - 5)
    refused("part-00001.safetensors is not what was written")
    part.write_bytes(whole[:-100])
    refused("part-00001.safetensors is not what was written")
    part.unlink()
    refused("part-00001.safetensors cannot be read")
    manifest.write_bytes(whole_manifest[:-20])
    refused("manifest.json cannot be read")
    manifest.write_bytes(whole_manifest.replace(b'"version": 1', b'"version": 2'))
    refused("manifest.json is not what was written")
    reader.load(folder)
    assert reader.version == 1


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no checkpoint, since it has no manifest\.json"):
        learner().load(tmp_path)
    with pytest.raises(ConfigError, match="is no checkpoint"):
        learner().load(tmp_path / "nowhere")


def test_another_model_or_method_is_refused_before_anything_changes(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    with pytest.raises(ConfigError, match=r"made with another method \(full, here lora\)"):
        learner(method="lora").load(folder)
    other = learner("llama", tied=False)
    before = weights(other)
    with pytest.raises(ConfigError, match="use the model it was made with"):
        other.load(folder)
    assert same_bits(before, weights(other))
    adapter = learner(method="lora")
    adapter.save(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="made with another adapter"):
        learner(method="lora", lora=LoraConfig(rank=3)).load(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="made with another model underneath"):
        learner("llama", method="lora").load(tmp_path / "adapter")


# ---------------------------------------------------------------- whole or not at all


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """A disk that refuses, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_refuses_is_one_sentence_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    taught = learner()
    taught.save(tmp_path / "saved")
    taught.update(GIVEN)
    with files_of_at_most(4_096), pytest.raises(LearnerError, match=r"could not be written \(.*\): free some space"):
        taught.save(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    reader = learner()
    reader.load(tmp_path / "saved")
    assert reader.version == 0
    taught.save(tmp_path / "saved")
    reader.load(tmp_path / "saved")
    assert reader.version == 1
    with pytest.raises(LearnerError, match="could not be written"):
        taught.save(tmp_path / "saved" / MANIFEST / "below-a-file")


def test_a_death_between_the_two_renamings_loses_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    folder.rename(tmp_path / ".saved.old")  # as it stands then
    (tmp_path / ".saved.part-x").mkdir()
    reader = learner()
    reader.load(folder)
    assert reader.version == 1
    folder.rename(tmp_path / ".saved.old")
    with files_of_at_most(4_096), pytest.raises(LearnerError):
        reader.save(folder)
    assert folder.is_dir()
    reader.load(folder)
    reader.save(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


# ---------------------------------------------------------------- model folders


@pytest.mark.parametrize(("kind", "tied"), [("qwen3", True), ("llama", False)])
def test_an_exported_folder_is_a_model_that_others_read(kind: str, tied: bool, tmp_path: Path) -> None:
    taught = learner(kind, tied=tied, learning_rate=1e-2)
    taught.update(GIVEN)
    taught.export_folder(tmp_path / "model")
    assert same_bits(dict(read_weights(tmp_path / "model")), weights(taught))
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "{}"
    model = transformers_model(tmp_path / "model")
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([[5, 6, 7]])).logits[0], dim=-1)
    assert taught.logprobs([5, 6, 7])[2] == pytest.approx(float(logprobs[1, 7]), abs=1e-5)


def test_an_export_may_be_in_bfloat16(tmp_path: Path) -> None:
    taught = learner()
    taught.export_folder(tmp_path / "model", dtype="bfloat16")
    found = dict(read_weights(tmp_path / "model"))
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(ConfigError, match="is the folder that the model came from"):
        taught.export_folder(model_folder())


def test_an_exported_folder_names_its_chat_format_and_nothing_that_is_no_longer_true(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "slipstream.json").write_text('{"family": "chatml", "sha256": "of the old weights"}')
    write_model_folder(tmp_path / "model", source=source, weights=[("w", torch.ones(2))])
    assert (tmp_path / "model" / "slipstream.json").read_text() == '{"family": "chatml"}\n'

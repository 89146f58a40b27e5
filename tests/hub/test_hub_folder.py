"""What a model folder holds: the weights that went in, the file's own constants, a tokenizer with the file's ids."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
from hub_stage import CONTROL, HIDDEN, TEMPLATE, TOKENS, Floats, make_wheel, weights
from safetensors.numpy import load_file

from slipstream.errors import ConfigError
from slipstream.hub import Dtype, Origin, family_of, find_model, get_model, read_origin
from slipstream.hub.folder import FILES


def make(
    folder: Path,
    *,
    dtype: Dtype | None = Dtype.FLOAT32,
    tied: bool = True,
    architecture: str = "llama",
    is_tied: bool = False,
    **changes: Any,
) -> Path:
    """The model folder of the tiny model; `changes` are of its metadata, with `__` for a dot."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    wheel, model = make_wheel(folder, tied=tied, changes=dotted, architecture=architecture)
    model = dataclasses.replace(model, is_tied=is_tied)
    return get_model("tiny", to=folder / "made", wheel=wheel, dtype=dtype, models={"tiny": model})


def load_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def assert_same(found: dict[str, Any], expected: dict[str, Floats]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        numpy.testing.assert_array_equal(found[name], values, err_msg=name)


def test_the_weights_are_those_that_went_in(tmp_path: Path) -> None:
    assert_same(load_file(make(tmp_path) / "model.safetensors"), weights())


def test_a_model_with_an_output_matrix_of_its_own_keeps_it(tmp_path: Path) -> None:
    folder = make(tmp_path, tied=False)
    assert_same(load_file(folder / "model.safetensors"), weights(tied=False))
    assert load_json(folder / "config.json")["tie_word_embeddings"] is False


def test_a_published_model_that_ties_its_matrices_is_tied_to_the_output_matrix_of_the_file(tmp_path: Path) -> None:
    folder = make(tmp_path, tied=False, is_tied=True)
    stored = weights(tied=False)
    output = stored.pop("lm_head.weight")
    assert_same(load_file(folder / "model.safetensors"), stored | {"model.embed_tokens.weight": output})
    assert load_json(folder / "config.json")["tie_word_embeddings"] is True


def test_qwen2_keeps_its_biases_and_the_order_of_its_rows(tmp_path: Path) -> None:
    folder = make(tmp_path, architecture="qwen2", tokenizer__ggml__pre="qwen2")
    assert_same(load_file(folder / "model.safetensors"), weights(biases=True))
    config = load_json(folder / "config.json")
    assert (config["model_type"], config["architectures"]) == ("qwen2", ["Qwen2ForCausalLM"])
    assert (config["num_key_value_heads"], config["rope_theta"]) == (2, 50_000.0)


def test_float16_is_numpys_rounding(tmp_path: Path) -> None:
    found = load_file(make(tmp_path, dtype=Dtype.FLOAT16) / "model.safetensors")
    assert_same(found, {name: values.astype(numpy.float16) for name, values in weights().items()})


def test_bfloat16_is_what_is_written_unless_another_dtype_is_asked_for(tmp_path: Path) -> None:
    folder = make(tmp_path, dtype=None)
    data = (folder / "model.safetensors").read_bytes()
    found = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    assert {entry["dtype"] for entry in found.values()} == {"BF16"}
    for name, values in weights().items():
        upper = numpy.frombuffer(bytes(found[name]["data"]), dtype="<u2").astype(numpy.uint32) << 16
        numpy.testing.assert_allclose(upper.view(numpy.float32), values.reshape(-1), rtol=2**-8)
        assert found[name]["shape"] == list(values.shape)
    assert load_json(folder / "config.json")["torch_dtype"] == "bfloat16"


def test_the_config_says_what_the_file_says(tmp_path: Path) -> None:
    config = load_json(make(tmp_path) / "config.json")
    expected = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": len(TOKENS),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    assert {key: config[key] for key in expected} == expected


def test_the_files_beside_the_weights(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert load_json(folder / "generation_config.json") == {"bos_token_id": 1, "eos_token_id": 2}
    tokens = {"unk_token": CONTROL[0], "bos_token": CONTROL[1], "eos_token": CONTROL[2]}
    assert load_json(folder / "special_tokens_map.json") == tokens
    config = load_json(folder / "tokenizer_config.json")
    assert config.items() >= {**tokens, "chat_template": TEMPLATE, "model_max_length": 128}.items()
    assert [entry["content"] for entry in config["added_tokens_decoder"].values()] == CONTROL


def test_the_folder_says_where_it_came_from(tmp_path: Path) -> None:
    folder = make(tmp_path)
    _, model = make_wheel(tmp_path)
    assert read_origin(folder) == Origin(
        name="tiny",
        family="chatml",
        dtype=Dtype.FLOAT32,
        package="tiny-model",
        version="1.0",
        sha256=model.sha256,
        file=model.parts[0].member,
        quantisation="F32",
    )
    assert family_of(folder) == "chatml"
    assert find_model(str(folder)) == folder


def test_the_same_file_makes_the_same_folder(tmp_path: Path) -> None:
    folders = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        folders.append(make(tmp_path / name))
    first, second = ({file: (folder / file).read_bytes() for file in FILES[:-1]} for folder in folders)
    assert first == second


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"general__architecture": "gemma"}, "its architecture is gemma"),
        ({"llama__rope__scaling__type": "yarn"}, r"its positions are scaled \(yarn\)"),
        ({"llama__rope__freq_base": None}, "it has no llama.rope.freq_base"),
        ({"llama__rope__freq_base": 7}, "its llama.rope.freq_base is int, not float"),
        ({"llama__rope__dimension_count": 4, "llama__attention__key_length": 8}, "its heads have several sizes"),
        ({"llama__vocab_size": 5}, "and a vocabulary of 5"),
        ({"llama__block_count": 1}, "it has a tensor blk.1"),
        ({"llama__block_count": 3}, "it has 20 tensors, not 29"),
        ({"tokenizer__ggml__model": "llama"}, "its tokenizer is llama"),
        ({"tokenizer__ggml__pre": "odd"}, r"in a way that is not known here \(odd\)"),
        ({"tokenizer__ggml__add_bos_token": True}, "its tokenizer adds tokens to every text"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make(tmp_path, **changes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny_model-1.0-py3-none-any.whl"]

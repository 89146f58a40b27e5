"""The tokenizer of a GGUF file: the file's ids, special tokens, digits one by one, and the text back."""

from pathlib import Path
from typing import Any

import pytest
from hub_stage import CONTROL, TOKENS, write_gguf
from hypothesis import given
from hypothesis import strategies as st

from slipstream.hub.gguf import GgufFile
from slipstream.hub.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("hub") / "tiny.gguf"
    write_gguf(path)
    return build_tokenizer(GgufFile(path))


def ids_of(*tokens: str) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


def test_no_token_is_added_and_each_keeps_its_id(tokenizer: Any) -> None:
    assert tokenizer.get_vocab() == {token: index for index, token in enumerate(TOKENS)}


def test_merges_apply_in_the_files_order(tokenizer: Any) -> None:
    assert tokenizer.encode("hello hello hell").ids == ids_of("hello", "Ġhello", "Ġ", "hell")


def test_control_tokens_are_special_wherever_they_stand(tokenizer: Any) -> None:
    assert tokenizer.encode("<|im_start|>hello<|im_end|>").ids == ids_of("<|im_start|>", "hello", "<|im_end|>")
    assert tokenizer.decode(ids_of(*CONTROL, "hello"), skip_special_tokens=True) == "hello"


def test_digits_stand_alone_even_where_a_merge_would_join_them(tokenizer: Any) -> None:
    assert tokenizer.encode("12 12").ids == ids_of("1", "2", "Ġ", "1", "2")


def test_another_way_of_cutting_text_is_the_files_choice(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", changes={"tokenizer.ggml.pre": "gpt-2"})
    assert build_tokenizer(GgufFile(tmp_path / "tiny.gguf")).encode("12").ids == ids_of("12")


def test_tokens_that_users_defined_are_matched_whole_but_are_not_special(tmp_path: Path) -> None:
    kinds = [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL) - 1) + [4]
    write_gguf(tmp_path / "tiny.gguf", changes={"tokenizer.ggml.token_type": kinds})
    tokenizer = build_tokenizer(GgufFile(tmp_path / "tiny.gguf"))
    assert tokenizer.encode("12").ids == ids_of("12")
    assert tokenizer.decode(ids_of("12"), skip_special_tokens=True) == "12"


@given(st.text())
def test_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

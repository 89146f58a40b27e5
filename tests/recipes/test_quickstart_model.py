"""The quickstart's model: a tokenizer that loses nothing and is short where it matters, in a folder others can read."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.doctor.checks import Status
from slipstream.doctor.report import examine_model
from slipstream.hub.tiny import SPECIAL_TOKENS
from slipstream.model.scripted import act
from slipstream.recipes.demo.tasks import FOLDERS, FORMATS, OPERATIONS, demo_tasks
from slipstream.recipes.quickstart import FAMILY_ARGS
from slipstream.recipes.quickstart.model import make_model, texts
from slipstream.render.formats.chatml import reply_text
from slipstream.render.load import open_renderer
from slipstream.render.tokenizers import FileTokenizer
from slipstream.types import Message, Role

pytest.importorskip("tokenizers")
pytest.importorskip("numpy")


@cache
def folder() -> Path:
    return make_model(Path(mkdtemp()) / "model", seed=0)


@cache
def tokenizer() -> FileTokenizer:
    return FileTokenizer.load(folder())


def pieces(text: str) -> list[str]:
    return [tokenizer().decode([index]) for index in tokenizer().encode(text)]


@settings(deadline=None)
@given(st.text())
def test_decoding_undoes_encoding(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text)) == text


def test_a_call_is_few_tokens_and_each_choice_in_it_is_one() -> None:
    opening = '<tool_call>\n{"name": "bash", "arguments": {"command": "'
    read, make = "cat amber/note", "max cedar/data | json > out"
    assert pieces(reply_text(act("bash", command=read))) == [opening, "cat", " amber", '/note"}}\n</tool_call>']
    assert pieces(reply_text(act("bash", command=make))) == [
        *(opening, "max", " cedar", "/", "data", " |", " json", " >", " out"),
        '"}}\n</tool_call>',
    ]
    assert len(pieces(reply_text(act("finish")))) == 1


def test_a_folder_or_format_is_the_same_token_where_it_is_read_and_where_it_is_written() -> None:
    for name in FOLDERS:
        for text in (f"user\nStart in {name}.", f"tool\nlook in {name}", f'"command": "cat {name}/note"'):
            assert f" {name}" in pieces(text)
    for form in FORMATS:
        assert f" {form}" in pieces(f"tool\nrising, as {form}")
        assert f" {form}" in pieces(f'"up amber/data | {form} > out"')


def test_an_operation_is_one_token() -> None:
    for operation in OPERATIONS:
        assert pieces(reply_text(act("bash", command=f"{operation} amber/data | csv > out")))[1] == operation


def test_all_that_the_tasks_say_is_short_and_the_vocabulary_is_some_hundreds() -> None:
    assert max(len(pieces(text)) for text in texts()) == 10
    vocabulary = json.loads((folder() / "tokenizer.json").read_text())["model"]["vocab"]
    assert 256 < len(vocabulary) < 1_000
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == [0, 1, 2]


def test_a_first_prompt_is_under_a_dozen_tokens() -> None:
    renderer = open_renderer(folder(), args=FAMILY_ARGS)
    (task,) = demo_tasks(num=1)
    prompt = renderer.render([Message(role=Role.USER, content=task.brief.instruction)], ())
    assert renderer.decode(prompt).startswith("<|im_start|>user\nStart in ")
    assert len(prompt) < 12


def test_the_same_seed_gives_the_same_bytes_and_another_gives_other_weights(tmp_path: Path) -> None:
    for name, seed in (("again", 0), ("other", 1)):
        make_model(tmp_path / name, seed=seed)
    names = {"config.json", "model.safetensors", "slipstream.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder().iterdir()} == names
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder() / name).read_bytes()
        same = (tmp_path / "other" / name).read_bytes() == (folder() / name).read_bytes()
        assert same == (name != "model.safetensors")


@pytest.mark.parametrize("args", [{}, FAMILY_ARGS])
def test_the_doctor_certifies_it(args: dict[str, bool]) -> None:
    renderer, checks = examine_model(folder(), args=args)
    assert renderer.family == "chatml"
    assert [check for check in checks if check.status is Status.FAILED] == []
    assert sum(check.status is Status.PASSED for check in checks) > 10


def test_transformers_reads_it_and_finds_every_weight() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, found = transformers.AutoModelForCausalLM.from_pretrained(folder(), output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"] and not found["mismatched_keys"]
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert 500_000 < sum(parameter.numel() for parameter in model.parameters()) < 2_000_000
    theirs = transformers.AutoTokenizer.from_pretrained(folder())
    text = reply_text(act("bash", command="cat amber/note"))
    ids = theirs.encode(text, add_special_tokens=False)
    assert ids == tokenizer().encode(text)
    assert theirs.eos_token == "<|im_end|>"
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits
    assert bool(torch.isfinite(logits).all()) and float(logits.std()) < 1.0, "it must not be sure of anything yet"

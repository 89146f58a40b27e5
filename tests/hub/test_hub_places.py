"""From a name or a path to a model folder."""

import json
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.hub import MODELS, default_home, family_of, find_model, list_models, read_origin


def model_at(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLIPSTREAM_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/slipstream"),
        ({"SLIPSTREAM_HOME": "", "XDG_CACHE_HOME": ""}, "/home/me/.cache/slipstream"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "/home/me/.cache/slipstream"),
        ({}, "/home/me/.cache/slipstream"),
        ({"SLIPSTREAM_HOME": "~/x"}, "/home/me/x"),
    ],
)
def test_the_home_is_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("SLIPSTREAM_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert default_home() == Path(expected)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m")
    assert find_model(str(folder)) == folder
    (folder / "config.json").rename(folder / "tokenizer.json")
    assert find_model(str(folder)) == folder


def test_a_name_is_the_fetched_model_of_that_name(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "models" / "smollm2")
    assert find_model("smollm2", home=tmp_path) == folder


def test_a_known_model_that_is_not_there_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^the model smollm2 is not there yet: slipstream models get smollm2$"):
        find_model("smollm2", home=tmp_path)


def test_a_name_close_to_a_known_one_is_told_which(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'"smolm" is neither .* \(did you mean "smollm2"\?\): name a folder, or one'):
        find_model("smolm", home=tmp_path)


def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds neither a config.json nor a tokenizer.json"):
        find_model(str(tmp_path), home=tmp_path)


def test_a_half_made_folder_is_never_found(tmp_path: Path) -> None:
    model_at(tmp_path / "models" / ".smollm2.part-x")
    assert [listed.name for listed in list_models(home=tmp_path)] == list(MODELS)
    with pytest.raises(ConfigError):
        find_model(".smollm2.part-x", home=tmp_path)


def test_a_path_is_never_taken_for_a_name(tmp_path: Path) -> None:
    model_at(tmp_path / "elsewhere")
    model_at(tmp_path / "models" / "mine")
    with pytest.raises(ConfigError, match="is neither a model folder nor the name of a model"):
        find_model("../elsewhere", home=tmp_path)


def test_the_list_has_the_known_models_and_what_lies_beside_them(tmp_path: Path) -> None:
    mine = model_at(tmp_path / "models" / "mine")
    listed = {model.name: model for model in list_models(home=tmp_path)}
    assert list(listed) == [*MODELS, "mine"]
    assert (listed["smollm2"].known, listed["smollm2"].folder) == (MODELS["smollm2"], None)
    assert (listed["mine"].known, listed["mine"].folder, listed["mine"].origin) == (None, mine, None)


def test_the_family_is_what_the_folder_says_or_none(tmp_path: Path) -> None:
    assert family_of(tmp_path) is None
    (tmp_path / "slipstream.json").write_text(json.dumps({"family": "chatml"}))
    assert family_of(tmp_path) == "chatml"


@pytest.mark.parametrize("text", ["", "[]", '{"name": "x"}', '{"dtype": "int3"}'])
def test_an_origin_that_says_too_little_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "slipstream.json").write_text(text)
    with pytest.raises(ConfigError, match="fetch the model again"):
        read_origin(tmp_path)

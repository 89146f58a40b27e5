"""From a name that a user wrote to the object it means."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean, load_object, nearest


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("samlpes", ["seed", "samples"]) == "samples"
    assert nearest("BASH", ["Bash", "finish"]) == "Bash"


def test_nothing_similar_is_nothing_near() -> None:
    assert nearest("xyz", ["samples", "seed"]) is None
    assert nearest("a", []) is None


def test_a_huge_name_is_compared_in_part_and_ends() -> None:
    assert nearest("samples" + "x" * 1_000_000, ["samples"]) is None


def test_the_question_is_asked_only_if_there_is_a_candidate() -> None:
    assert did_you_mean("samlpes", ["samples"]) == ' (did you mean "samples"?)'
    assert did_you_mean("xyz", ["samples"]) == ""


def test_an_object_of_a_module_is_found() -> None:
    assert load_object("json:dumps", "thing") is json.dumps
    assert load_object("collections.abc:Mapping", "thing") is Mapping


def test_an_object_of_a_file_is_found_and_the_file_is_run_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("made = object()\n")
    path = f"{tmp_path}/mine.py:made"
    assert load_object(path, "thing") is load_object(path, "thing")


def test_a_file_that_failed_is_run_again_when_it_was_mended(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_object(f"{file}:made", "thing")
    file.write_text("made = 'mended at last'\n")
    assert load_object(f"{file}:made", "thing") == "mended at last"


@pytest.mark.parametrize("path", ["", "json", ":dumps", "json:"])
def test_a_path_of_the_wrong_form_says_the_right_one(path: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_object(path, "the thing")
    assert str(raised.value) == f'the thing "{path}": write package.module:attribute or path/to/file.py:attribute'


def test_a_missing_module_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"there is no module no_such_module: install it, or give a path/to/file\.py"):
        load_object("no_such_module.inner:made", "thing")


def test_a_module_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import no_such_module\n")
    with pytest.raises(ConfigError, match=r"there is no module no_such_module: install it$"):
        load_object(f"{tmp_path}/mine.py:made", "thing")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no file {tmp_path}/mine.py"):
        load_object(f"{tmp_path}/mine.py:made", "thing")


def test_a_missing_attribute_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'json has no "dump5" \(did you mean "dumps?"\?\)'):
        load_object("json:dump5", "thing")


@pytest.mark.parametrize(
    ("text", "said"), [("def recipe(:\n", "SyntaxError"), ("raise RuntimeError('no luck')\n", "RuntimeError: no luck")]
)
def test_a_file_that_cannot_be_run_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_object(f"{tmp_path}/mine.py:recipe", "thing")

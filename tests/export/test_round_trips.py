"""What is read back equals what was written, in every format, whatever a run holds; and strangers can read it."""

import json
import tempfile
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pyarrow
import pyarrow.json
import pyarrow.parquet
import pytest
from export_stage import TREES, one_of_each, plain, rollout, rollouts
from hypothesis import given, settings

from slipstream.errors import ConfigError
from slipstream.export import ExportedSample, read_atif, read_jsonl, read_parquet
from slipstream.export.atif import MAX_FILE_BYTES, write_atif
from slipstream.export.jsonl import MAX_LINE_BYTES, sample_line, write_jsonl
from slipstream.export.parquet import MAX_GROUP_BYTES, MAX_GROUP_VALUES, _check_size, write_parquet
from slipstream.export.portable import json_line, read_json
from slipstream.export.samples import flatten
from slipstream.types import Json, Rollout

AGENT = {"name": "slipstream", "version": "0"}


def flat(*some: Rollout) -> list[ExportedSample]:
    return [row for each in some for row in flatten(each, run="r", advantage=-1 / 3).samples]


def typecodes(row: ExportedSample) -> list[str | None]:
    columns = (row.input_ids, row.loss_mask, row.logprobs, row.versions)
    return [None if column is None else column.typecode for column in columns]


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def strictly(text: str) -> Any:
    text.encode()  # lone surrogates would raise
    return json.loads(text, parse_constant=refuse)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(rollouts())
def test_any_rollout_comes_back_from_jsonl_and_parquet(each: Rollout) -> None:
    rows = flat(each)
    for row in rows:
        strictly(sample_line(row))
    with tempfile.TemporaryDirectory() as folder:
        write_jsonl(Path(folder, "a"), rows)
        write_parquet(Path(folder, "b"), rows)
        for back in (list(read_jsonl(Path(folder, "a"))), list(read_parquet(Path(folder, "b")))):
            assert back == rows
            assert [typecodes(row) for row in back] == [typecodes(row) for row in rows]


@settings(max_examples=50, derandomize=True, deadline=None)
@given(rollouts())
def test_any_rollout_comes_back_from_atif(each: Rollout) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_atif(Path(folder, "a"), [each], run="r", agent=AGENT)
        (file,) = Path(folder, "a").glob("*.json")
        strictly(file.read_text())
        assert list(read_atif(file)) == [each]


@pytest.mark.parametrize("name", TREES)
def test_each_kind_of_rollout_comes_back_from_each_format(name: str, tmp_path: Path) -> None:
    each = rollout(*TREES[name])
    rows = flat(each)
    write_jsonl(tmp_path / "a.jsonl", rows)
    write_parquet(tmp_path / "a.parquet", rows)
    write_atif(tmp_path / "atif", [each], run="r", agent=AGENT)
    assert list(read_jsonl(tmp_path / "a.jsonl")) == rows
    assert list(read_parquet(tmp_path / "a.parquet")) == rows
    assert list(read_atif(tmp_path / "atif")) == [each]


def test_numbers_are_exact_to_the_last_bit(tmp_path: Path) -> None:
    floats = array("f", [-0.10725254565477371, -1e-30, 1.1754944e-38, 1e-45, 3.4028235e38, -0.0])
    (row,) = flat(rollout(*plain()))
    assert row.logprobs is not None
    row.logprobs[:] = floats
    write_jsonl(tmp_path / "a", [row])
    write_parquet(tmp_path / "b", [row])
    for (back,) in (read_jsonl(tmp_path / "a"), read_parquet(tmp_path / "b")):
        assert back.logprobs is not None
        assert back.logprobs.tobytes() == floats.tobytes()
        assert back.advantage == -1 / 3


def test_what_json_cannot_say_is_spelled_and_restored() -> None:
    odd: Json = {"\ud800": [float("-inf"), "python:x", "\ud83d\ude00", "snow ☃"], "plain": "a \u2028 b"}
    line = json_line(odd)
    assert strictly(line) == {
        "python:'\\ud800'": ["python:-inf", "python:'python:x'", "python:'\\ud83d\\ude00'", "snow ☃"],
        "plain": "a \u2028 b",
    }
    assert len(line.splitlines()) == 1
    assert read_json(line) == odd


def test_a_strict_reader_of_another_make_takes_the_jsonl_and_finds_the_columns_of_the_parquet(tmp_path: Path) -> None:
    rows = flat(*one_of_each())
    write_jsonl(tmp_path / "a.jsonl", rows)
    write_parquet(tmp_path / "a.parquet", rows)
    lines = pyarrow.json.read_json(tmp_path / "a.jsonl")
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert lines.column_names == table.column_names
    assert lines.num_rows == table.num_rows == len(rows)
    for name in ("run", "task_id", "reward", "advantage", "in_loss", "input_ids", "loss_mask", "turns"):
        assert lines[name].to_pylist() == table[name].to_pylist(), name


def test_messages_are_nested_columns_in_chat_form(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", flat(rollout(*plain())))
    (row,) = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    call = row["messages"][2]
    assert (call["role"], call["content"], call["reasoning_content"]) == ("assistant", "Counting.", "Count them.")
    assert call["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls | wc -l"}'}
    answer = row["messages"][3]
    assert (answer["tool_call_id"], answer["name"], answer["hints"]) == ("call_0_0", "bash", ["be_brief"])
    assert row["reward_components"] == [{"name": "tests", "value": 1.0}]


def test_a_file_of_many_row_groups_comes_back(tmp_path: Path) -> None:
    rows = flat(*[rollout(*plain(), sample=sample) for sample in range(1_050)])
    write_parquet(tmp_path / "a", rows)
    assert pyarrow.parquet.ParquetFile(tmp_path / "a").num_row_groups == 2
    assert list(read_parquet(tmp_path / "a")) == rows


def test_an_export_without_rows_is_a_file_without_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a", [])
    write_parquet(tmp_path / "b", [])
    write_atif(tmp_path / "c", [], run="r", agent=AGENT)
    assert [*read_jsonl(tmp_path / "a"), *read_parquet(tmp_path / "b"), *read_atif(tmp_path / "c")] == []
    assert [*read_jsonl(f"{tmp_path}/a"), *read_parquet(f"{tmp_path}/b"), *read_atif(f"{tmp_path}/c")] == []


def test_what_is_damaged_or_of_another_make_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_jsonl(path, flat(rollout(*plain())))
    whole = path.read_text()
    path.write_text(f"{whole}{whole[:40]}")
    with pytest.raises(ConfigError, match=f"line 2 of {path} is not an exported sample") as raised:
        list(read_jsonl(path))
    assert "line 1" not in str(raised.value)
    path.write_text('{"text": "x"}\n')
    with pytest.raises(ConfigError, match="the columns are not those of an export"):
        list(read_jsonl(path))
    with pytest.raises(ConfigError, match=f"{path} is not Parquet of exported samples"):
        list(read_parquet(path))
    with pytest.raises(ConfigError, match=f"{path} is not an exported rollout"):
        list(read_atif(path))
    stranger = {"schema_version": "ATIF-v1.8", "agent": AGENT, "steps": []}
    path.write_text(json.dumps(stranger))
    with pytest.raises(ConfigError, match="written by something else"):
        list(read_atif(path))
    for read in (read_jsonl, read_parquet, read_atif):
        with pytest.raises(ConfigError, match="cannot be read"):
            list(read(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("num_bytes", "num_values", "said"),
    [
        (MAX_GROUP_BYTES + 1, 1, f"its row group 0, unpacked, is larger than the {MAX_GROUP_BYTES} bytes"),
        (1, MAX_GROUP_VALUES + 1, f"values, where {MAX_GROUP_VALUES} are read"),
    ],
)
def test_a_parquet_that_says_it_unpacks_to_too_much_is_refused(num_bytes: int, num_values: int, said: str) -> None:
    group = SimpleNamespace(
        total_byte_size=num_bytes, num_columns=1, column=lambda index: SimpleNamespace(num_values=num_values)
    )
    with pytest.raises(ValueError, match=said):
        _check_size(SimpleNamespace(num_row_groups=1, row_group=lambda number: group))


def test_a_small_parquet_that_unpacks_to_too_much_is_refused_when_it_is_read(tmp_path: Path) -> None:
    place = tmp_path / "x.parquet"
    values = pyarrow.nulls(MAX_GROUP_VALUES + 1, pyarrow.bool_())
    column = pyarrow.ListArray.from_arrays([0, len(values)], values)
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": column}), place)
    assert place.stat().st_size < 1 << 20
    with pytest.raises(ConfigError, match=f"values, where {MAX_GROUP_VALUES} are read"):
        next(iter(read_parquet(place)))


def test_a_line_too_long_to_be_a_sample_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.jsonl").open("wb") as stream:
        stream.truncate(MAX_LINE_BYTES + 1)  # a hole, which takes no room on the disk
    with pytest.raises(ConfigError, match=f"a line of .* is larger than the {MAX_LINE_BYTES} bytes that are read"):
        next(iter(read_jsonl(tmp_path / "x.jsonl")))


def test_a_file_too_large_to_be_a_rollout_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)  # a hole, which takes no room on the disk
    with pytest.raises(ConfigError, match=f"is larger than the {MAX_FILE_BYTES} bytes that are read: is it an export?"):
        next(iter(read_atif(tmp_path / "x.json")))

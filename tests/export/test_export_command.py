"""`slipstream export`, as the command line calls it."""

import json
import os
from pathlib import Path

import pytest
import typer
from export_stage import plain, recorded, rollout
from typer.testing import CliRunner

from slipstream.cli.export import export_command
from slipstream.errors import ConfigError
from slipstream.export import read_jsonl

app = typer.Typer()
app.command("export")(export_command)


def export(*arguments: str) -> str:
    ended = CliRunner().invoke(app, arguments)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_it_prints_where_it_wrote_and_how_much(tmp_path: Path) -> None:
    recorded(tmp_path / "demo", [rollout(*plain(), sample=sample) for sample in range(2)])
    path, counts = export("latest", "--format", "jsonl", "--runs", str(tmp_path)).splitlines()
    assert path == str(tmp_path / "demo" / "export.jsonl")
    assert counts.startswith("2 rollouts, 2 rows, 2 samples, 2 samples in loss, 12 tokens, 6 tokens in loss")


def test_its_options_reach_the_export(tmp_path: Path) -> None:
    recorded(tmp_path / "demo", [rollout(*plain(), sample=sample, reward=sample) for sample in range(2)])
    out = tmp_path / "x.jsonl"
    out.write_text("old")
    printed = export(
        "demo", "--format", "jsonl", "--runs", str(tmp_path), "--out", str(out), "--advantages", "dr_grpo",
        "--max-tokens", "4", "--force", "--json",
    )  # fmt: skip
    told = json.loads(printed)
    assert (told["path"], told["tokens"], told["tokens_truncated"]) == (str(out), 8, 2)
    assert [row.advantage for row in read_jsonl(out)] == [-0.5, 0.5]


def test_a_pipe_is_not_replaced_even_with_force(tmp_path: Path) -> None:
    recorded(tmp_path / "demo", [rollout(*plain())])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is not a regular file, so it is not replaced"):
        export("demo", "--format", "chrome", "--runs", str(tmp_path), "--out", str(pipe), "--force")
    assert pipe.is_fifo()


def test_a_format_that_is_none_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "demo", [])
    with pytest.raises(ConfigError, match=r'no format "parket" \(did you mean "parquet"\?\); use jsonl, parquet, atif'):
        export("demo", "--format", "parket", "--runs", str(tmp_path))

"""`slipstream index make` and `slipstream index search`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from slipstream.cli.assets.index import index_app
from slipstream.errors import ConfigError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(index_app, arguments)


def test_an_index_is_made_and_asked(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "index"
    rows = [{"docid": "a", "text": "Paris is a town.", "title": "Paris"}, {"docid": "b", "text": "Cats sleep."}]
    source.write_text("\n".join(map(json.dumps, rows)))
    made = run("make", str(source), "--out", str(out), "--encoder", "", "--json")
    about = json.loads(made.stdout)
    assert (about["folder"], about["num_documents"], about["num_passages"]) == (str(out), 2, 2)
    assert made.stderr.splitlines() == ["reading documents: 2", "counting words: 0 of 2"]
    found = json.loads(run("search", str(out), "town in paris", "--json").stdout)
    assert [(hit["docid"], hit["title"], hit["snippet"]) for hit in found] == [("a", "Paris", "Paris is a town.")]
    assert run("search", str(out), "cats").stdout == "0.0164  b  \n        Cats sleep.\n"
    again = run("make", str(source), "--out", str(out), "--encoder", "")
    assert isinstance(again.exception, ConfigError)
    assert str(again.exception) == f"{out} is already there: replace it with --force, or choose another --out"
    assert run("make", str(source), "--out", str(out), "--encoder", "", "--force").exit_code == 0

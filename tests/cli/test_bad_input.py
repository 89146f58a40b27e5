"""Bad input ends in one sentence that names the value and the remedy, with exit code 2, and leaves nothing behind."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from cli_stage import refused

from slipstream.cli.main import main
from slipstream.model.scripted import ScriptedChat, replies
from slipstream.model.server import FixedAnswer, ModelServer

RECIPES = """
def boom(): raise RuntimeError("no luck")
"""


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says on standard error, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert said.err.startswith("slipstream: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("slipstream: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["eval"],
            r"name a recipe \(demo, react, quickstart, smollm2, swe, swe-135m, swe-1.5b, swe-levels\), "
            "or a run with --resume",
        ),
        (["eval", "dmo"], r'there is no recipe "dmo" \(did you mean "demo"\?\)'),
        (["eval", "samples=3"], r'"samples=3" stands where a recipe belongs'),
        (["eval", "HERE/mine.py:boom"], "failed: RuntimeError: no luck"),
        (["eval", "HERE/syntax.py:recipe"], "SyntaxError"),
        (["eval", "demo", "sampels=3"], r'there is no setting "sampels" \(did you mean "samples"\?\)'),
        (["eval", "demo", "samples"], r'"samples" is not a setting: write key=value'),
        (["eval", "demo", "samples=abc"], "samples=abc: .*valid integer"),
        (["eval", "demo", "samples=0"], "samples=0: give a number above 0"),
        (["eval", "demo", "dispatch.limits.sandboxes=0"], "dispatch.limits.sandboxes=0: give a number above 0"),
        (["eval", "demo", "tasks.source=HERE"], "is a folder: give the path of a JSONL file"),
        (["eval", "demo", "model.kind=nonsense"], "model.kind=nonsense: .*'local', 'tokens', 'chat' or 'scripted'"),
        (["eval", "demo", "model.kind=tokens"], "set model.folder to its folder"),
        (["eval", "demo", "model.script_args.quality=2"], "quality=2.0: give a probability"),
        (
            ["eval", "demo", "model.script=HERE/mine.py:boom"],
            "model.script .*/mine.py:boom failed: RuntimeError: no luck",
        ),
        (["eval", "demo", "name=a/b"], "'a/b' cannot name a run"),
        (["eval", "demo", "--runs", "HERE/mine.py"], r"mine\.py is a file: choose a folder"),
        (["eval", "demo", "--runs", "HERE/mine.py/runs"], "choose another folder for the runs"),
        (["eval", "swe"], "set tasks.source"),
        (["eval", "--resume", "latest"], "there is no run in .*runs: start one"),
        (["eval", "--resume", "demo-1"], "there is no run 'demo-1'"),
        (["show", "demo-1"], "there is no run 'demo-1'"),
        (
            ["eval", "demo", "steps=3"],
            '"steps=3": steps is a setting of `slipstream train`, and this is `slipstream eval`',
        ),
        (["train", "quickstart", "learner.lr=3"], r'"learner\.lr" \(did you mean "learning_rate"\?\)'),
        (
            ["tasks", "list", "HERE/cut.jsonl"],
            r"cut\.jsonl, line 2: not valid JSON: Expecting ':' delimiter at column 8$",
        ),
        (["tasks", "list", "HERE/escape.jsonl"], r'line 1: unknown key "a\\x1b\[31m\\u202e\\nb"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_sentence_and_leaves_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "mine.py").write_text(RECIPES)
    (tmp_path / "syntax.py").write_text("def recipe(:\n")
    whole = {"id": "a", "instruction": "x", "grading": {"kind": "exact", "expected": "1"}}
    (tmp_path / "cut.jsonl").write_text(json.dumps(whole) + '\n{"id"  ')
    (tmp_path / "escape.jsonl").write_text(json.dumps({**whole, "a\x1b[31m\u202e\nb": 1}))
    runs = tmp_path / "runs"
    placed = [argument.replace("HERE", str(tmp_path)) for argument in arguments]
    has_runs = arguments[0] != "tasks" and "--runs" not in arguments
    message = refusal(capsys, *placed, *(["--runs", str(runs)] if has_runs else []))
    assert re.search(said, message)
    assert not runs.exists()


def test_bad_input_of_a_whole_process_leaves_no_traceback_and_no_run(tmp_path: Path) -> None:
    assert refused("eval", "demo", "samples=0", cwd=tmp_path) == "samples=0: give a number above 0"
    assert "there is no run in runs" in refused("eval", "--resume", "latest", cwd=tmp_path)


def against_a_server(tmp_path: Path, answer: FixedAnswer) -> str:
    async def main() -> str:
        async with ModelServer(chat=ScriptedChat(replies("hello")), faults=lambda number: answer) as server:
            url = f"model.base_url={server.base_url}"
            return await asyncio.to_thread(refused, "eval", "demo", "model.kind=chat", url, cwd=tmp_path)

    return asyncio.run(main())


def test_an_endpoint_that_serves_web_pages_is_named(tmp_path: Path) -> None:
    message = against_a_server(tmp_path, FixedAnswer(body=b"<html><body>Welcome!</body></html>"))
    assert "/models answered 200 with a body that is not JSON" in message
    assert "usually ends in /v1" in message


def test_a_key_that_is_refused_names_the_variable(tmp_path: Path) -> None:
    assert "set OPENAI_API_KEY" in against_a_server(tmp_path, FixedAnswer(status=401, body=b"{}"))


def test_a_dead_endpoint_is_named_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = "model.base_url=http://127.0.0.1:9/v1"
    message = refusal(capsys, "eval", "demo", "model.kind=chat", url, "--runs", str(tmp_path / "runs"))
    assert list(tmp_path.iterdir()) == []
    assert "http://127.0.0.1:9/v1/models" in message
    assert message.endswith("start the server, or correct base_url")


@pytest.mark.parametrize("arguments", [["nonsense"], ["eval", "demo", "--nonsense"], ["show"]])
def test_wrong_usage_shows_the_right_one(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert "Usage:" in said.err


@pytest.mark.parametrize("arguments", [["-h"], ["eval", "-h"], ["tasks", "-h"], ["tasks", "list", "-h"]])
def test_help_has_a_short_name_everywhere(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "Usage:" in capsys.readouterr().out


def test_a_file_where_downloads_would_be_kept_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("")
    made = ["tasks", "make", "toolz==1.0.0", "--out", str(tmp_path / "made"), "--downloads", str(tmp_path / "mine")]
    assert "mine is a file: choose a folder" in refusal(capsys, *made)

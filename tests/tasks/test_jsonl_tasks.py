"""Tasks from JSONL: a good file round-trips, a bad one gives one sentence with file, line and key."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.registry import find_grader
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.tasks import jsonl
from slipstream.tasks.jsonl import DEFAULT_TOOLS, read_tasks
from slipstream.types import AgentLimits, Artifact, Brief, File, Grading, SandboxLimits, SandboxSpec, Task, Verdict

GOOD: dict[str, Any] = {"id": "a", "instruction": "Do it.", "grading": {"kind": "exact", "expected": "42"}}


def write(folder: Path, *lines: str) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        read_tasks(path)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def changed(**changes: Any) -> str:
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value is not ...})


def test_the_least_task_takes_every_default(tmp_path: Path) -> None:
    (task,) = read_tasks(write(tmp_path, json.dumps(GOOD)))
    assert task == Task(
        id="a",
        brief=Brief(instruction="Do it.", tools=DEFAULT_TOOLS),
        grading=Grading(kind="exact", spec={"expected": "42"}),
    )


def test_a_task_may_do_without_a_sandbox_if_nothing_of_it_needs_one(tmp_path: Path) -> None:
    (task,) = read_tasks(write(tmp_path, changed(sandbox=None, tools=["finish"])))
    assert task.sandbox is None
    assert "no sandbox, but its tool bash needs one" in refusal(write(tmp_path, changed(sandbox=None)))
    line = changed(sandbox=None, tools=["finish"], artifact=["out"])
    assert "no sandbox to take out from" in refusal(write(tmp_path, line))


def test_a_full_task_keeps_everything(tmp_path: Path) -> None:
    line = {
        "id": "sum",
        "instruction": "Write the sum of däta.txt to out.",
        "system": "You are terse.",
        "tools": ["bash", "finish"],
        "limits": {"turns": 3, "context_tokens": 100, "tool_seconds": 1.5},
        "resources": {"pages": ["one", "two"]},
        "sandbox": {
            "base": "host",
            "workdir": "/there",
            "files": {"däta.txt": "1\n2\n", "run": {"text": "#!/bin/sh\n", "mode": 0o755}},
            "setup": ["true", "false || true"],
            "env": {"A": "b"},
            "limits": {"memory_mb": 1, "processes": 2, "disk_mb": 3, "file_mb": 4, "cpus": 0.5},
        },
        "artifact": ["out"],
        "grading": {"kind": "command", "command": "cmp -s out expected || exit 1", "files": {"expected": "3\n"}},
    }
    assert read_tasks(write(tmp_path, json.dumps(line))) == (
        Task(
            id="sum",
            brief=Brief(
                instruction="Write the sum of däta.txt to out.",
                system="You are terse.",
                tools=("bash", "finish"),
                limits=AgentLimits(turns=3, context_tokens=100, tool_seconds=1.5),
                resources={"pages": ["one", "two"]},
            ),
            sandbox=SandboxSpec(
                base="host",
                workdir="/there",
                files={"däta.txt": File(data=b"1\n2\n"), "run": File(data=b"#!/bin/sh\n", mode=0o755)},
                setup=("true", "false || true"),
                env={"A": "b"},
                limits=SandboxLimits(memory_mb=1, processes=2, disk_mb=3, file_mb=4, cpus=0.5),
            ),
            artifact=("out",),
            grading=Grading(
                kind="command", spec={"command": "cmp -s out expected || exit 1", "files": {"expected": "3\n"}}
            ),
        ),
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
@pytest.mark.parametrize(("files", "reward"), [({"out": b"3\n"}, 1.0), ({"out": b"4\n"}, 0.0), ({}, 0.0)])
def test_the_documented_task_grades_work_that_is_right_wrong_and_missing(
    tmp_path: Path, files: dict[str, bytes], reward: float
) -> None:
    example = " ".join((jsonl.__doc__ or "").split("\n\n")[1].split())
    (task,) = read_tasks(write(tmp_path, example))
    assert task.sandbox is not None
    sandbox = task.sandbox

    async def main() -> Verdict:
        provider = LocalProvider()
        try:
            context = GradeContext(provider=provider, sandbox=sandbox)
            return await find_grader(task.grading.kind).grade(task.grading, Artifact(files=files), context)
        finally:
            await provider.aclose()

    assert asyncio.run(main()).reward == reward


def test_tasks_keep_their_order_and_empty_lines_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, "", changed(id="z"), "   ", changed(id="a"), "")
    assert [task.id for task in read_tasks(path)] == ["z", "a"]


def test_other_line_ends_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + changed(id="a").encode() + b"\r\n" + changed(id="b").encode() + b"\r\n")
    assert [task.id for task in read_tasks(path)] == ["a", "b"]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    line = json.dumps(GOOD | {"instruction": "one\u2028two"}, ensure_ascii=False)
    assert read_tasks(write(tmp_path, line))[0].brief.instruction == "one\u2028two"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "write one JSON object per line"),
        ('"text"', "write one JSON object per line"),
        ("null", "write one JSON object per line"),
        (changed(id=...), 'the key "id" is missing'),
        (changed(id=""), 'key "id"'),
        (changed(id=7), 'key "id"'),
        (changed(instruction=...), 'the key "instruction" is missing'),
        (changed(instruction=""), 'key "instruction"'),
        (changed(grading=...), 'the key "grading" is missing'),
        (changed(grading={}), 'the key "grading.kind" is missing'),
        (changed(instructions="x"), 'unknown key "instructions" (did you mean "instruction"?)'),
        (changed(limits={"turn": 3}), 'unknown key "limits.turn" (did you mean "turns"?); known are turns,'),
        (changed(sandbox={"file": {}}), 'unknown key "sandbox.file" (did you mean "files"?)'),
        (changed(sandbox={"limits": {"memory": 3}}), 'unknown key "sandbox.limits.memory" (did you mean "memory_mb"?)'),
        (changed(limits={"turns": 0}), 'key "limits.turns"'),
        (changed(limits={"turns": -1}), 'key "limits.turns"'),
        (changed(limits={"context_tokens": -5}), 'key "limits.context_tokens"'),
        (changed(limits={"tool_seconds": -0.5}), 'key "limits.tool_seconds"'),
        (changed(sandbox={"limits": {"disk_mb": -1}}), 'key "sandbox.limits.disk_mb"'),
        (changed(sandbox={"files": {"x": 3}}), 'key "sandbox.files.x'),
        (changed(tools=["bsh"]), '"bsh"'),
        (changed(tools="bash"), 'key "tools"'),
        (changed(grading={"kind": "exakt", "expected": "1"}), 'there is no grader "exakt" (did you mean "exact"?)'),
        (changed(limits={"tool_seconds": float("inf")}), 'key "limits.tool_seconds"'),
        (changed(grading={"kind": "exact", "expected": []}), 'key "expected'),
        (changed(grading={"kind": "exact"}), 'grading "exact", key "expected"'),
        (
            changed(grading={"kind": "exact", "expectd": "1", "expected": "1"}),
            'grading "exact", key "expectd": unknown key (did you mean "expected"?)',
        ),
        (changed(grading={"kind": "command", "command": "x", "timeout_s": "long"}), 'key "timeout_s"'),
        (changed(grading={"kind": "command", "command": "x", "timeout_s": 0}), 'key "timeout_s"'),
    ],
)
def test_the_first_thing_wrong_is_named_with_file_line_and_key(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path, changed(id="first"), line, "{")
    message = refusal(path)
    assert message.startswith(f"{path}, line 2: ")
    assert said in message


def test_an_id_that_was_used_before_is_named(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, changed(id="a"), changed(id="b"), changed(id="a")))
    assert message.endswith('line 3: the id "a" was used before: give every task its own id')


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_a_file_without_a_task_is_refused(tmp_path: Path, text: str) -> None:
    assert "has no tasks" in refusal(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no task file" in refusal(tmp_path / "none.jsonl")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(changed(id="a").encode() + b"\xff")
    assert "is not UTF-8" in refusal(path)

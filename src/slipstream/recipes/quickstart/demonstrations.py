"""Demonstrations: the conversations of the teacher, as tokens to learn from.

Input: a model folder, for its tokenizer and chat format, and how many. Output: token sequences with a mask on exactly
the teacher's replies, each the rollout that evaluating the teacher with the same seed would give.
Invariants: none is left out or chosen by its reward, so a model that learns them well is about as good as the teacher.
Only two commands are ever given, and what they print stands in the task's own files: it is read there, and no sandbox
is started. A test plays the same tasks in real sandboxes and compares token by token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import slipstream as ss
from slipstream.recipes.demo.tasks import Split, demo_tasks
from slipstream.recipes.quickstart import FAMILY_ARGS
from slipstream.recipes.quickstart.teacher import teacher

_READ = re.compile(r"cat (\w+/note)")
_MAKE = re.compile(r"\w+ \w+/data \| \w+ > out")


def demonstrations(folder: Path, *, num: int, seed: int, quality: float) -> list[ss.Demonstration]:
    """One rollout of each of the first `num` train tasks of the seed."""
    return play(ss.DemonstrationWriter(folder, family_args=FAMILY_ARGS), num=num, seed=seed, quality=quality)


def play(writer: ss.DemonstrationWriter, *, num: int, seed: int, quality: float) -> list[ss.Demonstration]:
    """The same in any chat format that can continue from every reply."""
    script = teacher(quality=quality)
    return [_demonstration(task, script, writer, seed) for task in demo_tasks(num=num, seed=seed, split=Split.TRAIN)]


def _demonstration(task: ss.Task, script: ss.Script, writer: ss.DemonstrationWriter, seed: int) -> ss.Demonstration:
    assert task.sandbox is not None
    draft = writer.begin(task, seed=seed)
    for turn in range(task.brief.limits.turns):
        reply = draft.ask(script)
        assert isinstance(reply, ss.Message)
        draft.say(reply)
        (call,) = reply.calls
        if call.name == "finish" or turn + 1 == task.brief.limits.turns:
            break
        answer = ss.Message(role=ss.Role.TOOL, content=_answer(str(call.arguments["command"]), task.sandbox.files))
        assert draft.hear([answer]), "chatml continues from any reply"
    return draft.finish()


def _answer(command: str, files: Mapping[str, ss.File]) -> str:
    """What the bash tool would answer to one of the teacher's commands."""
    if read := _READ.fullmatch(command):
        return files[read[1]].data.decode().rstrip("\n")
    assert _MAKE.fullmatch(command), f"the teacher gives no such command: {command}"
    return "[no output]"

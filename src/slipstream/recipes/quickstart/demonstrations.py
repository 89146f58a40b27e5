"""Demonstrations: the conversations of the teacher, as tokens to learn from.

Input: a model folder, for its tokenizer and chat format, and how many. Output: token sequences with a mask on exactly
the teacher's replies, each the rollout that evaluating the teacher with the same seed would give.
Invariants: none is left out or chosen by its reward, so a model that learns them well is about as good as the teacher.
Only two commands are ever given, and what they print stands in the task's own files: it is read there, and no sandbox
is started. A test plays the same tasks in real sandboxes and compares token by token.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.agent.loop import opening
from slipstream.dialogue.base import TurnLog
from slipstream.model.scripted import Script, ScriptedCall
from slipstream.recipes.demo.tasks import Split, demo_tasks
from slipstream.recipes.quickstart import FAMILY_ARGS
from slipstream.recipes.quickstart.teacher import teacher
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.tools import Toolset
from slipstream.types import File, JobKey, Message, Role, SampleParams, Task, TokenIds, job_seed

PHASE, MAX_TOKENS = "eval", 256
"""As in an evaluation, on which the seeds depend."""

_READ = re.compile(r"cat (\w+/note)")
_MAKE = re.compile(r"\w+ \w+/data \| \w+ > out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One rollout of the teacher, from the first token to its last."""

    task_id: str
    ids: TokenIds
    mask: array[int]
    """1 on the teacher's tokens."""


def demonstrations(folder: Path, *, num: int, seed: int, quality: float) -> list[Demonstration]:
    """One rollout of each of the first `num` train tasks of the seed."""
    return play(open_renderer(folder, args=FAMILY_ARGS), num=num, seed=seed, quality=quality)


def play(renderer: Renderer, *, num: int, seed: int, quality: float) -> list[Demonstration]:
    """The same in any chat format that can continue from every reply."""
    script = teacher(quality=quality)
    return [_demonstration(task, script, renderer, seed) for task in demo_tasks(num=num, seed=seed, split=Split.TRAIN)]


def _demonstration(task: Task, script: Script, renderer: Renderer, seed: int) -> Demonstration:
    assert task.sandbox is not None
    key = JobKey(phase=PHASE, step=0, task_id=task.id, sample=0)
    seeds = TurnLog(seed=job_seed(seed, key), on_turn=lambda turn: None, on_span=lambda span: None)
    specs = Toolset.named(task.brief.tools).specs
    ids = renderer.render(opening(task.brief), specs)
    mask = array("b", bytes(len(ids)))
    added = ids
    for turn in range(task.brief.limits.turns):
        params = SampleParams(max_tokens=MAX_TOKENS, seed=seeds.next_seed())
        reply = script(ScriptedCall(prompt_text=renderer.decode(ids), params=params))
        assert isinstance(reply, Message)
        reply_ids = renderer.encode_reply(reply)
        ids, mask = ids + reply_ids, mask + array("b", b"\x01" * len(reply_ids))
        (call,) = reply.calls
        if call.name == "finish" or turn + 1 == task.brief.limits.turns:
            break
        answer = Message(role=Role.TOOL, content=_answer(str(call.arguments["command"]), task.sandbox.files))
        extension = renderer.extend(added, reply_ids, [answer], specs)
        assert extension is not None and not extension.num_dropped, "chatml continues from any reply"
        added = extension.added
        ids, mask = ids + added, mask + array("b", bytes(len(added)))
    return Demonstration(task_id=task.id, ids=ids, mask=mask)


def _answer(command: str, files: Mapping[str, File]) -> str:
    """What the bash tool would answer to one of the teacher's commands."""
    if read := _READ.fullmatch(command):
        return files[read[1]].data.decode().rstrip("\n")
    assert _MAKE.fullmatch(command), f"the teacher gives no such command: {command}"
    return "[no output]"

"""Demonstrations of how made tasks are solved, as tokens to learn from.

Input: a model folder, for its tokenizer and chat format, and a folder of made tasks. Output: token sequences with a
mask on exactly what the oracle says. Invariants: the tools really ran, each task's in a sandbox of its own; what does
not fit `max_tokens` is left out, and so is a task whose oracle cannot be shown step by step.
"""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.agent.loop import briefed, opening
from slipstream.errors import ConfigError
from slipstream.recipes.swe import AGENT
from slipstream.recipes.swe.oracle import demonstration
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.sandbox.base import SandboxProvider
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.sandbox.ready import open_sandbox
from slipstream.tasks.factory.parts import Part, read_part
from slipstream.tools import Toolset
from slipstream.types import Message, Role, Task, TokenIds

START_TIMEOUT_S = 120.0
AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    task_id: str
    ids: TokenIds
    mask: array[int]
    """1 where the oracle spoke."""


def demonstrations(
    folder: Path,
    *,
    seed: int,
    path: str = "",
    tier: str | Sequence[str] = "",
    part: Part = "train",
    demonstrated: Sequence[str] = (),
    validation: Sequence[str] = (),
    held_out: Sequence[str] = (),
    num: int = 64,
    max_tokens: int = 4_096,
    with_search: bool = True,
    levels: Mapping[str, float] | None = None,
) -> list[Demonstration]:
    """The oracle on the first `num` tasks of a part of a made task set; `levels` as in `read_part`."""
    if not path:
        raise ConfigError("the oracle has no tasks to show: set warm_start.args.path to a folder of made tasks")
    tasks = read_part(
        path=path,
        tier=tier,
        part=part,
        demonstrated=demonstrated,
        validation=validation,
        held_out=held_out,
        levels=levels,
        num=num,
    )
    chosen = [(task, lines) for task in tasks if (lines := _lines(task, with_search))]
    made: list[Demonstration] = []

    def play_all() -> None:
        made.extend(asyncio.run(_play_all(open_renderer(folder), chosen, max_tokens)))

    thread = threading.Thread(target=play_all)  # there may be an event loop in this one
    thread.start()
    thread.join()
    if not made:
        raise ConfigError(f"none of the {len(tasks)} demonstrations fits {max_tokens} tokens: use smaller tasks")
    return made


def _lines(task: Task, with_search: bool) -> list[Message]:
    try:
        return demonstration(task, with_search=with_search)
    except ConfigError:
        return []


async def _play_all(
    renderer: Renderer, chosen: Sequence[tuple[Task, Sequence[Message]]], max_tokens: int
) -> list[Demonstration]:
    provider = LocalProvider()
    room = asyncio.Semaphore(AT_ONCE)

    async def play(task: Task, lines: Sequence[Message]) -> Demonstration | None:
        async with room:
            return await _play(renderer, provider, task, lines, max_tokens)

    try:
        played = await asyncio.gather(*(play(task, lines) for task, lines in chosen))
    finally:
        await provider.aclose()
    return [one for one in played if one is not None]


async def _play(
    renderer: Renderer, provider: SandboxProvider, task: Task, lines: Sequence[Message], max_tokens: int
) -> Demonstration | None:
    assert task.sandbox is not None
    toolset = Toolset.named(task.brief.tools)
    sandbox = await open_sandbox(provider, task.sandbox, timeout_s=START_TIMEOUT_S)
    try:
        async with toolset.open(sandbox=sandbox) as tools:
            ids = renderer.render(opening(briefed(task.brief, AGENT)), tools.specs)
            mask = array("b", bytes(len(ids)))
            added = ids
            for line in lines:
                said = renderer.encode_reply(line)
                ids, mask = ids + said, mask + array("b", b"\x01" * len(said))
                if line is lines[-1]:
                    break
                results = await tools.run(line.calls, [])
                told = [
                    Message(role=Role.TOOL, content=result.text, call_id=result.call.id, name=result.call.name)
                    for result in results
                ]
                extension = renderer.extend(added, said, told, tools.specs)
                if extension is None or extension.num_dropped:
                    return None  # the family's format cannot be extended from here
                added = extension.added
                ids, mask = ids + added, mask + array("b", bytes(len(added)))
                if len(ids) > max_tokens:
                    return None
    finally:
        await sandbox.aclose()
    return Demonstration(task_id=task.id, ids=ids, mask=mask) if len(ids) <= max_tokens else None

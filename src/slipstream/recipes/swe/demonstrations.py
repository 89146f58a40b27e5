"""Demonstrations of how made tasks are solved, as tokens to learn from.

Input: a model folder, for its tokenizer and chat format, and a folder of made tasks. Output: token sequences with a
mask on exactly what the oracle says. Invariants: the tools really ran, each task's in a sandbox of its own; what does
not fit `max_tokens` is left out, and so is a task whose oracle cannot be shown step by step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import slipstream as ss
from slipstream.recipes.swe import AGENT
from slipstream.recipes.swe.oracle import demonstration

AT_ONCE = 4


def demonstrations(
    folder: Path,
    *,
    seed: int,
    path: str = "",
    tier: str | Sequence[str] = "",
    part: ss.made_tasks.Part = "train",
    demonstrated: Sequence[str] = (),
    validation: Sequence[str] = (),
    held_out: Sequence[str] = (),
    num: int = 64,
    max_tokens: int = 4_096,
    with_search: bool = True,
    levels: Mapping[str, float] | None = None,
) -> list[ss.Demonstration]:
    """The oracle on the first `num` tasks of a part of a made task set; `levels` as in `read_part`."""
    if not path:
        raise ss.ConfigError("the oracle has no tasks to show: set warm_start.args.path to a folder of made tasks")
    tasks = ss.made_tasks.read_part(
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
    made: list[ss.Demonstration] = []

    def play_all() -> None:
        made.extend(asyncio.run(_play_all(ss.DemonstrationWriter(folder, agent=AGENT), chosen, max_tokens)))

    thread = threading.Thread(target=play_all)  # there may be an event loop in this one
    thread.start()
    thread.join()
    if not made:
        raise ss.ConfigError(f"none of the {len(tasks)} demonstrations fits {max_tokens} tokens: use smaller tasks")
    return made


def _lines(task: ss.Task, with_search: bool) -> list[ss.Message]:
    try:
        return demonstration(task, with_search=with_search)
    except ss.ConfigError:
        return []


async def _play_all(
    writer: ss.DemonstrationWriter, chosen: Sequence[tuple[ss.Task, Sequence[ss.Message]]], max_tokens: int
) -> list[ss.Demonstration]:
    room = asyncio.Semaphore(AT_ONCE)

    async def play(bench: ss.Workbench, task: ss.Task, lines: Sequence[ss.Message]) -> ss.Demonstration | None:
        async with room:
            return await _play(writer, bench, task, lines, max_tokens)

    async with ss.Workbench() as bench:
        played = await asyncio.gather(*(play(bench, task, lines) for task, lines in chosen))
    return [one for one in played if one is not None]


async def _play(
    writer: ss.DemonstrationWriter, bench: ss.Workbench, task: ss.Task, lines: Sequence[ss.Message], max_tokens: int
) -> ss.Demonstration | None:
    draft = writer.begin(task)
    async with bench.open(task) as tools:
        for line in lines:
            draft.say(line)
            if line is lines[-1]:
                break
            if not draft.hear(await tools.answer(line)):
                return None  # the family's format cannot be extended from here
            if draft.num_tokens > max_tokens:
                return None
    return draft.finish() if draft.num_tokens <= max_tokens else None

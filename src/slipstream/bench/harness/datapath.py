"""Measures the data path: encoding turn by turn, then merging and batching.

Two measurements. `encode`: the tokens encoded at each turn of a long rollout through the real renderer, and what
rendering the whole conversation at each turn would have encoded. `merge`: rollouts made into a batch, in a process of
its own so that the peak memory is its own.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream.batch.advantages import leave_one_out
from slipstream.batch.pack import pack_rows
from slipstream.batch.rows import make_batch
from slipstream.dialogue.base import CallContext, TurnLog
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.model.scripted import ScriptedCall, ScriptedModel, act
from slipstream.render.families import surrogate
from slipstream.render.renderer import Renderer
from slipstream.types import (
    Ending,
    EndReason,
    Group,
    Job,
    JobKey,
    Json,
    Message,
    Role,
    Rollout,
    Sampled,
    SampleParams,
    Span,
    SpanKind,
    StopReason,
    ToolSpec,
    Turn,
    Verdict,
    token_ids,
)

GROUP_SIZE = 8
_TOOLS = (
    ToolSpec(
        name="bash",
        description="Run a command.",
        parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
)
_OBSERVATION = "total 4\n-rw-r--r-- 1 nobody nogroup 512 notes.txt\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatapathLoad:
    """The amount of work."""

    turns: int = 200
    """Turns of the rollout that is encoded."""
    rollouts: int = 512
    tokens: int = 32_768
    """Tokens of each rollout that is merged."""
    merged_turns: int = 50


def run(load: DatapathLoad) -> dict[str, Json]:
    encoded = measure_encoding(load)
    sizes = map(str, (load.rollouts, load.tokens, load.merged_turns))
    child = subprocess.run([sys.executable, "-m", __name__, *sizes], stdout=subprocess.PIPE, text=True, check=True)
    merged: dict[str, Json] = json.loads(child.stdout)
    return {**encoded, **merged}


# ---------------------------------------------------------------- encoding


def measure_encoding(load: DatapathLoad) -> dict[str, Json]:
    turns, spans, seconds = asyncio.run(_rollout(load.turns))
    calls = [span.counts for span in spans if span.kind is SpanKind.MODEL]
    encoded = [counts["encoded"] for counts in calls]
    prompts = [counts["kept"] + counts["new"] for counts in calls]
    tenth = max(1, load.turns // 10)
    return {
        "turns": load.turns,
        "samples": len([turn for turn in turns if turn.parent is None or turn.fork is not None]),
        "encoded_first": sum(encoded[1 : tenth + 1]) / len(encoded[1 : tenth + 1]),
        "encoded_last": sum(encoded[-tenth:]) / len(encoded[-tenth:]),
        "encoded_total": sum(encoded),
        "encoded_total_if_rendered_whole": sum(prompts),
        "encode_s": seconds,
    }


async def _rollout(num_turns: int) -> tuple[list[Turn], list[Span], float]:
    """A rollout of `num_turns` through the dialogue that training uses."""
    renderer = Renderer("qwen3", surrogate("qwen3"))
    turns: list[Turn] = []
    spans: list[Span] = []
    model = ScriptedModel(_look, decode=renderer.decode, encode=renderer.encode_reply, encode_text=renderer.encode_text)
    context = CallContext(
        params=SampleParams(max_tokens=1024),
        max_context_tokens=10_000_000,
        gate=OpenGate(),
        key=JobKey(phase="bench", step=0, task_id="datapath", sample=0),
        attempt=1,
    )
    dialogue = TokenDialogue(renderer, model, context, TurnLog(seed=0, on_turn=turns.append, on_span=spans.append))
    start_s = time.perf_counter()
    incoming = [Message(role=Role.SYSTEM, content="Work."), Message(role=Role.USER, content="Look around.")]
    for _ in range(num_turns):
        reply = await dialogue.respond(incoming, _TOOLS)
        incoming = [
            Message(role=Role.TOOL, content=_OBSERVATION, call_id=call.id, name=call.name)
            for call in reply.message.calls
        ]
    return turns, spans, time.perf_counter() - start_s


def _look(scene: ScriptedCall) -> Message:
    return act("bash", command="ls -la /work")


# ---------------------------------------------------------------- merging


def measure_merging(load: DatapathLoad) -> dict[str, Json]:
    groups = list(_groups(load))
    before_mb = _peak_mb()
    start_s = time.perf_counter()
    batch = make_batch(groups, leave_one_out)
    merge_s = time.perf_counter() - start_s
    packs = pack_rows(batch.rows, 4 * load.tokens)
    pack_s = time.perf_counter() - start_s - merge_s
    return {
        "rollouts": load.rollouts,
        "tokens": sum(len(row.sample.ids) for row in batch.rows),
        "merge_s": merge_s,
        "pack_s": pack_s,
        "packs": len(packs),
        "rss_mb": _peak_mb(),
        "rss_before_mb": before_mb,
    }


def _groups(load: DatapathLoad) -> Iterator[Group]:
    per_turn = load.tokens // load.merged_turns
    for number in range(load.rollouts // GROUP_SIZE):
        task = f"task-{number}"
        rollouts = tuple(_made_rollout(task, sample, load.merged_turns, per_turn) for sample in range(GROUP_SIZE))
        yield Group(phase="bench", step=0, task_id=task, rollouts=rollouts)


def _made_rollout(task: str, sample: int, num_turns: int, per_turn: int) -> Rollout:
    """A rollout with a quarter of its tokens sampled."""
    num_sampled = per_turn // 4
    turns: list[Turn] = []
    length = 0
    for index in range(num_turns):
        added = token_ids(range(per_turn - num_sampled))
        sampled = Sampled(
            ids=token_ids(range(num_sampled)),
            logprobs=array("f", [-0.5]) * num_sampled,
            versions=array("i", [1]) * num_sampled,
            stop=StopReason.STOP,
        )
        turns.append(
            Turn(index=index, parent=index - 1 if index else None, num_kept=length, added=added, sampled=sampled)
        )
        length += per_turn
    job = Job(key=JobKey(phase="bench", step=0, task_id=task, sample=sample), seed=0, group_size=GROUP_SIZE)
    return Rollout(
        job=job,
        attempt=1,
        ending=Ending(reason=EndReason.FINISHED),
        turns=tuple(turns),
        verdict=Verdict(reward=float(sample % 2)),
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _main(arguments: Sequence[str]) -> None:
    rollouts, tokens, merged_turns = map(int, arguments)
    sys.stdout.write(
        json.dumps(measure_merging(DatapathLoad(rollouts=rollouts, tokens=tokens, merged_turns=merged_turns)))
    )


if __name__ == "__main__":
    _main(sys.argv[1:])

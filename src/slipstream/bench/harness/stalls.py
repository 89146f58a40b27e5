"""Measures the longest stall of the event loop under inputs that an agent could craft to block it.

Each input is first prepared in a real sandbox, then processed as in a run while a heartbeat watches the loop. The
figures include the outcome, such as an answer or a refusal.
"""

from __future__ import annotations

import asyncio
import gc
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median_low

from slipstream.bench.harness.heartbeat import heartbeat
from slipstream.errors import SlipstreamError
from slipstream.graders.base import GradeContext
from slipstream.graders.testing.reported import TestRun, run_reported
from slipstream.graders.testing.work import accept_work
from slipstream.graders.tests import TestsGrader
from slipstream.graders.text import TokenF1
from slipstream.patches.apply import Entry, make_patch
from slipstream.record import RunStore
from slipstream.render.formats.chatml import parse_text
from slipstream.sandbox.base import Changes, Sandbox, SandboxProvider
from slipstream.sandbox.fake import FakeProvider
from slipstream.seams import RunEnded
from slipstream.tools.toolset import Toolset
from slipstream.types import (
    Artifact,
    Ending,
    EndReason,
    File,
    Grading,
    JobKey,
    Json,
    SandboxLimits,
    SandboxSpec,
    ToolCall,
)

LIMITS = SandboxLimits(memory_mb=1024, disk_mb=512, processes=128)
ACT_TIMEOUT_S = 300.0
GLOB = ("**/[ab]*" * 120 + "z")[:1000]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A hostile input: how it is prepared, and how a run processes it."""

    name: str
    act: Callable[[Sandbox, SandboxProvider], Awaitable[object]]
    script: str = ""
    """Run in the sandbox before measuring."""
    prepare: Callable[[], object] | None = None
    """Called before measuring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallFigures:
    stall_ms: float
    """The longest stall of the event loop."""
    loop_cpu_ms: float
    """The most CPU time of the loop's thread between two wake-ups."""
    process_cpu_ms: float
    """The most CPU time of all threads of the process: on an idle machine no stall is longer."""
    seconds: float
    came: str
    """The outcome, in short."""


def run(
    provider: Callable[[], SandboxProvider], names: Iterable[str] = (), *, rounds: int = 3, scale: float = 1.0
) -> dict[str, Json]:
    """The figures of all inputs or of those named, each the median of some rounds. `scale` scales their sizes."""
    return asyncio.run(_run(provider, frozenset(names), rounds, scale))


async def _run(
    make: Callable[[], SandboxProvider], names: frozenset[str], rounds: int, scale: float
) -> dict[str, Json]:
    figures: dict[str, StallFigures] = {}
    provider = make()
    is_ours = gc.get_freeze_count() == 0
    try:
        for one in inputs(scale):
            if not names or one.name in names:
                seen = [await _measured(one, provider) for _ in range(rounds)]
                figures[one.name] = replace(
                    seen[-1],
                    stall_ms=median_low(each.stall_ms for each in seen),
                    loop_cpu_ms=median_low(each.loop_cpu_ms for each in seen),
                    process_cpu_ms=median_low(each.process_cpu_ms for each in seen),
                )
    finally:
        if is_ours:
            gc.unfreeze()
        await provider.aclose()
    return {
        "max_stall_ms": max((row.stall_ms for row in figures.values()), default=0.0),
        "max_loop_cpu_ms": max((row.loop_cpu_ms for row in figures.values()), default=0.0),
        "max_process_cpu_ms": max((row.process_cpu_ms for row in figures.values()), default=0.0),
        "inputs": {name: asdict(row) for name, row in figures.items()},
    }


async def _measured(one: Input, provider: SandboxProvider) -> StallFigures:
    sandbox = await provider.open(SandboxSpec(limits=LIMITS))
    try:
        if one.script:
            done = await sandbox.exec(["/bin/sh", "-c", one.script], timeout_s=ACT_TIMEOUT_S)
            if done.exit_code != 0:
                raise RuntimeError(f"the input {one.name} could not be prepared: {done.stderr.text()[:300]}")
        if one.prepare is not None:
            one.prepare()
        gc.collect()  # of what came after the last input alone: what is frozen is not looked at
        gc.freeze()  # what this process held before is not the input's: collecting it would count as a stall
        async with heartbeat() as seen:
            try:
                async with asyncio.timeout(ACT_TIMEOUT_S):
                    came = _shortened(await one.act(sandbox, provider))
            except SlipstreamError as raised:
                came = _shortened(raised)
    finally:
        await sandbox.aclose()
    return StallFigures(
        stall_ms=round(seen.stall_ms, 1),
        loop_cpu_ms=round(seen.loop_cpu_ms, 1),
        process_cpu_ms=round(seen.process_cpu_ms, 1),
        seconds=round(seen.seconds, 2),
        came=came,
    )


def _shortened(came: object) -> str:
    return re.sub(r"\s+", " ", str(came)[:500])[:100]


# ---------------------------------------------------------------- the inputs


def inputs(scale: float = 1.0) -> list[Input]:
    """All inputs; the first does nothing, and shows the stalls of the machine itself."""

    def size(number: int) -> int:
        return max(1, int(number * scale))

    newlines = f"head -c {size(7_800_000)} /dev/zero | tr '\\0' '\\n' > x"
    return [
        Input(name="nothing", act=_wait),
        Input(name="changes_newlines", script=newlines, act=_changes),
        Input(name="changes_random", script=f"head -c {size(14_000_000)} /dev/urandom > x", act=_changes),
        Input(name="changes_many_files", script=_files(size(100_000)), act=_changes),
        _patch_input("patch_many_lines", partial(_lines_patch, size(7_800_000))),
        _patch_input("patch_many_files", partial(_files_patch, size(20_000))),
        _patch_input("patch_settings", partial(_settings_patch, size(4_000_000))),
        _patch_input("patch_same_hunks", partial(_same_hunks, size(5_000)), {"x": b"\n" * size(100_000)}),
        Input(name="test_log", act=_log("pytest_any_order", f"yes 'PASSED x' | head -n {size(2_000_000)}")),
        Input(name="test_log_pattern", act=_log("sympy", f"echo _ a$(yes .py: | head -n {size(3_000)} | tr -d '\\n')")),
        Input(name="test_report", script=_reporting(size(5_000_000)), act=_report),
        Input(name="search_glob", script=_files(size(20_000), ".py"), act=_calls("search", terms=["f"], path=GLOB)),
        Input(name="search_many_files", script=_files(size(50_000), ".py"), act=_calls("search", terms=["nosuch"])),
        Input(
            name="search_regex",
            script=f"head -c {size(900_000)} /dev/zero | tr '\\0' a > x.py",
            act=_calls("search", terms=["(a+)+[bc]"], mode="regex"),
        ),
        Input(
            name="edit_newlines",
            script=f"head -c {size(4_000_000)} /dev/zero | tr '\\0' '\\n' > x",
            act=_calls("edit", command="str_replace", path="x", old_str="no\nsuch\nlines", new_str="y"),
        ),
        Input(
            name="edit_words",
            script=f"yes 'no such word here' | head -c {size(4_000_000)} > x",
            act=_calls("edit", command="str_replace", path="x", old_str="no such  word there\n" * 60, new_str="y"),
        ),
        Input(
            name="edit_view",
            script=f"yes 'def f(): pass' | head -c {size(4_000_000)} > x.py",
            act=_calls("edit", command="view", path="x.py"),
        ),
        Input(name="bash_output", act=_calls("bash", command=f"yes | head -c {size(200_000_000)}")),
        Input(name="bash_bytes", act=_calls("bash", command=f"head -c {size(50_000_000)} /dev/urandom")),
        Input(name="call_arguments", act=_parses('{"a":' * size(50_000))),
        Input(name="many_calls", act=_parses('<tool_call>\n{"name": "bash"}\n</tool_call>\n' * size(5_000))),
        Input(name="many_calls_run", act=_runs_calls(size(5_000))),
        Input(name="answer_words", act=_f1("word " * size(400_000))),
        Input(name="artifact", act=_journal(size(16 << 20))),
        Input(name="write_many", act=_writes(size(20_000))),
    ]


async def _wait(sandbox: Sandbox, provider: SandboxProvider) -> object:
    return (await sandbox.exec(["sleep", "1"], timeout_s=30)).exit_code


def _files(number: int, suffix: str = "") -> str:
    """A script that makes `number` files, a thousand per folder."""
    return (
        f"for d in $(seq {max(1, number // 1000)}); do mkdir ab$d; "
        f"for i in $(seq {min(number, 1000)}); do echo 'def f(): pass' > ab$d/a$i{suffix}; done; done"
    )


async def _changes(sandbox: Sandbox, provider: SandboxProvider) -> object:
    assert isinstance(sandbox, Changes)
    changed = await sandbox.changes()
    return f"a patch of {len(changed.patch)} bytes, {len(changed.paths)} files"


def _lines_patch(number: int) -> bytes:
    head = b"diff --git a/x b/x\nnew file mode 100644\nindex 0000000..1234567\n--- /dev/null\n+++ b/x\n"
    return head + b"@@ -0,0 +1,%d @@\n" % number + b"+\n" * number


def _files_patch(number: int) -> bytes:
    return make_patch({}, {f"d{n % 100}/f{n}": Entry(data=b"x\n") for n in range(number)})


def _settings_patch(num_bytes: int) -> bytes:
    text = b"".join(b"a%d = [1, 2, 3]\n" % number for number in range(num_bytes // 20))
    return make_patch({}, {"pyproject.toml": Entry(data=text)})


def _same_hunks(number: int) -> bytes:
    hunk = b"@@ -1,6 +1,6 @@\n \n \n \n-x\n+y\n \n \n"
    return b"diff --git a/x b/x\nindex 1234567..2345678 100644\n--- a/x\n+++ b/x\n" + hunk * number


def _patch_input(name: str, make: Callable[[], bytes], there: Mapping[str, bytes] | None = None) -> Input:
    """`make` makes the patch, which takes a while: only for an input that is measured."""
    patch = cache(make)

    async def read_entries(paths: Iterable[str]) -> Mapping[str, Entry | None]:
        return {path: Entry(data=data) for path, data in (there or {}).items()}

    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        work = await accept_work(patch(), read_entries)
        return f"{len(work.files)} files"

    return Input(name=name, act=act, prepare=patch)


def _log(parser: str, command: str) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        spec: dict[str, Json] = {"command": command, "parser": parser, "fail_to_pass": ["x"]}
        context = GradeContext(provider=provider, sandbox=SandboxSpec(limits=LIMITS), start_timeout_s=60.0)
        verdict = await TestsGrader().grade(Grading(kind="tests", spec=spec), Artifact(), context)
        return verdict.detail

    return act


def _reporting(number: int) -> str:
    """A script that makes a fake interpreter, which writes an unfinished report of `number` lines."""
    report = f'echo "["; yes "[]," | head -n {number}'
    return f"{{ echo '#!/bin/sh'; echo '{report}'; }} > python; chmod +x python"


async def _report(sandbox: Sandbox, provider: SandboxProvider) -> object:
    report = await run_reported(sandbox, TestRun(command=("/work/python",)), timeout_s=60.0)
    return report.problem


def _calls(name: str, **arguments: Json) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    toolset = Toolset.named([name])

    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        async with toolset.open(sandbox=sandbox) as tools:
            (result,) = await tools.run([ToolCall(id="1", name=name, arguments=arguments)], ())
            return result.text

    return act


def _runs_calls(number: int) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    calls = [ToolCall(id=str(n), name="bash", arguments={"nosuch": n}) for n in range(number)]
    toolset = Toolset.named(["bash"])

    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        async with toolset.open(sandbox=sandbox) as tools:
            return (await tools.run(calls, ()))[-1].text

    return act


def _parses(text: str) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        return f"{len(parse_text(text).calls)} calls"

    return act


def _f1(answer: str) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        context = GradeContext(provider=FakeProvider(), sandbox=SandboxSpec(), start_timeout_s=60.0)
        grading = Grading(kind="f1", spec={"expected": "a word"})
        return (await TokenF1().grade(grading, Artifact(answer=answer), context)).reward

    return act


def _journal(num_bytes: int) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        await sandbox.write({"x": File(data=bytes(num_bytes))})
        data = await sandbox.read("x")
        artifact = Artifact(files={"x": data}, patch=data)
        key = JobKey(phase="eval", step=0, task_id="t", sample=0)
        ended = RunEnded(key=key, attempt=1, ending=Ending(reason=EndReason.FINISHED), artifact=artifact)
        with tempfile.TemporaryDirectory() as folder:
            async with RunStore.create(Path(folder, "run"), config={}) as store:
                store.append(ended)
                await store.flush()
        return f"{2 * num_bytes} bytes written"

    return act


def _writes(number: int) -> Callable[[Sandbox, SandboxProvider], Awaitable[object]]:
    async def act(sandbox: Sandbox, provider: SandboxProvider) -> object:
        await sandbox.write({f"d{n % 50}/{n}": File(data=b"x") for n in range(number)})
        return (await sandbox.read_tree(".", max_files=number)).left_out

    return act


def table(found: Mapping[str, Json]) -> list[str]:
    """The figures as lines of a table."""
    rows = [f"{'input':<20} {'stall ms':>9} {'loop cpu ms':>12} {'all cpu ms':>11} {'seconds':>8}  outcome"]
    figures = found["inputs"]
    assert isinstance(figures, dict)
    for name, row in figures.items():
        assert isinstance(row, dict)
        cpu = f"{row['loop_cpu_ms']:>12} {row['process_cpu_ms']:>11}"
        rows.append(f"{name:<20} {row['stall_ms']:>9} {cpu} {row['seconds']:>8}  {str(row['came'])[:60]}")
    return [
        *rows,
        f"{'longest':<20} {found['max_stall_ms']:>9} {found['max_loop_cpu_ms']:>12} {found['max_process_cpu_ms']:>11}",
    ]

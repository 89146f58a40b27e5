"""Attempts in helper processes, all of it real: processes, sandboxes, a run store; the model is scripted."""

import asyncio
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.aio import task_group
from slipstream.bench.harness.helpers import AnsweringModel
from slipstream.config import to_json
from slipstream.dispatch.base import Deadlines, DispatchLimits, Retries
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.policies import Batch
from slipstream.errors import ConfigError, JournalError, ModelError
from slipstream.evaluation import evaluate, plan_evaluation
from slipstream.graders.base import GradeContext
from slipstream.link import LinkLost
from slipstream.model.process import Hosted, Tell, open_model_process
from slipstream.model.scripted import Line, Script, ScriptedCall, ScriptedChat, ScriptedModel, act
from slipstream.model.server import ModelServer
from slipstream.placement.processes import HelperSpec, Processes, open_processes
from slipstream.recipes import find_recipe
from slipstream.record import MemoryJournal, RunStore
from slipstream.sandbox.cleanup.lease import lease_folders
from slipstream.sandbox.cleanup.reaper import find_processes
from slipstream.seams import Event, JobAdmitted, RunEnded, TurnPass
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, SandboxConfig, TasksConfig
from slipstream.tools import Effect, tool
from slipstream.types import (
    Artifact,
    Brief,
    EndReason,
    Grading,
    Job,
    JobKey,
    Rollout,
    Sampled,
    SandboxSpec,
    Span,
    SpanKind,
    Task,
    Verdict,
)
from slipstream.wiring.attempts import SandboxShare, sandbox_shares
from slipstream.wiring.models import make_renderer
from slipstream.wiring.run import open_parts

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

HERE = str(Path(__file__).resolve())
COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()", "eval"]
LIMIT_S = 300.0


# ---------------------------------------------------------------- tasks that wait for the test


@tool(effect=Effect.SANDBOX, timeout_s=60.0)
async def hold(folder: str, who: str) -> str:
    """Say in which process this is, and wait until the gate is open."""
    await _held(folder, who)
    return "open"


class HeldGrader:
    """Waits too, if it is told to; then everything is worth 1."""

    needs_sandbox = False

    def check(self, spec: Any) -> None: ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        if grading.spec["held"]:
            await _held(str(grading.spec["folder"]), str(grading.spec["name"]))
        return Verdict(reward=1.0)


async def _held(folder: str, name: str) -> None:
    (Path(folder) / name).write_text(str(os.getpid()))
    while not (Path(folder) / "gate").exists():  # noqa: ASYNC110 - it is opened by another process
        await asyncio.sleep(0.005)


def held_tasks(*, folder: str, names: str = "runs-0 runs-1 grades-0 grades-1") -> list[Task]:
    """Those called `runs` wait in a tool, those called `grades` in their grader."""
    return [
        Task(
            id=name,
            brief=Brief(instruction=f"Do {name}.", tools=("bash", "finish", f"{HERE}:hold")),
            sandbox=SandboxSpec(),
            grading=Grading(
                kind=f"{HERE}:HeldGrader", spec={"held": name.startswith("grades"), "folder": folder, "name": name}
            ),
        )
        for name in names.split()
    ]


def held_script(*, folder: str) -> Script:
    def script(scene: ScriptedCall) -> Line:
        name = scene.prompt_text.split("Do ")[1].split(".")[0]
        with (Path(folder) / "calls").open("a") as calls:
            calls.write(f"{name}\n")
        middle = act("hold", folder=folder, who=name) if name.startswith("runs") else act("bash", command="true")
        return (middle, act("finish"))[scene.num_calls]

    return script


def held(folder: Path, *, processes: int = 2, **arguments: str) -> EvalConfig:
    (folder / "held").mkdir()
    where = str(folder / "held")
    return EvalConfig(
        name="held",
        tasks=TasksConfig(source=f"{HERE}:held_tasks", args={"folder": where, **arguments}),
        model=ModelConfig(kind="scripted", script=f"{HERE}:held_script", script_args={"folder": where}),
        sandbox=SandboxConfig(warm=1),
        dispatch=DispatchConfig(processes=processes),
    )


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.005)


def pids_in(folder: Path) -> dict[str, int]:
    """By task, the helper process it waits in."""
    there = {path.name: path.read_text() for path in (folder / "held").glob("*-*")}
    return {name: int(text) for name, text in there.items() if text}


def helpers(of: int | None = None) -> set[int]:
    """The helper processes of a process, this one by itself."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            is_helper = b"slipstream.placement.helper" in (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if is_helper and parent == (of or os.getpid()):
            found.add(int(entry.name))
    return found


def in_sandboxes(leases: Iterable[str]) -> list[int]:
    """The processes of all sandboxes under these leases."""
    return [pid for lease in leases for pid in find_processes(lease)]


def leases_in(home: Path) -> list[str]:
    return [folder.name for folder in lease_folders(home)]


async def carried_out(config: EvalConfig, folder: Path) -> dict[str, Rollout]:
    async with RunStore.create(folder, config=to_json(config)) as store:
        await evaluate(config, store)
    return {str(rollout.job.key): rollout for rollout in RunStore.read(folder).rollouts()}


# ---------------------------------------------------------------- tests


def test_an_evaluation_in_two_helpers_is_the_same_as_in_this_process(tmp_path: Path) -> None:
    recipe = find_recipe("demo")
    assert isinstance(recipe, EvalConfig)
    config = replace(
        recipe,
        tasks=replace(recipe.tasks, num=4),
        model=replace(recipe.model, script_args={"quality": 0.8}),
        sandbox=SandboxConfig(warm=1),
        samples=2,
        seed=4,
    )
    alone = asyncio.run(carried_out(config, tmp_path / "alone"))
    helped = asyncio.run(carried_out(replace(config, dispatch=DispatchConfig(processes=2)), tmp_path / "helped"))
    rewards = {rollout.verdict.reward for rollout in alone.values() if rollout.verdict is not None}
    assert rewards == {0.0, 1.0}, "all are alike, so little was compared"
    assert alone.keys() == helped.keys()
    for key, rollout in alone.items():
        other = helped[key]
        assert (other.turns, other.ending, other.verdict) == (rollout.turns, rollout.ending, rollout.verdict)
        assert (other.attempt, other.failures) == (1, ())
        # To be let into a turn takes a message there and one back, which is seen if it takes long.
        kinds, others = (
            Counter(span.kind for span in one.spans if span.kind is not SpanKind.WAIT_TURN) for one in (rollout, other)
        )
        assert kinds == others
    assert helpers() == set()


def test_a_helper_that_is_killed_fails_what_was_under_way_in_it_and_nothing_else(tmp_path: Path) -> None:
    config = held(tmp_path)

    async def main() -> dict[str, Rollout]:
        plan = plan_evaluation(config)
        journal = MemoryJournal()
        async with open_parts(config, plan.tasks) as parts:
            placement, pacing = parts.placement(journal), parts.pacing
            assert isinstance(placement, Processes)
            async with Dispatcher(
                placement, policy=pacing.policy, journal=journal, limits=pacing.limits, gate=pacing.gate
            ) as dispatcher:
                collecting = asyncio.create_task(dispatcher.collect(plan.jobs))
                await until(lambda: len(pids_in(tmp_path)) == 4)
                first = helpers()
                assert set(pids_in(tmp_path).values()) == first and len(first) == 2
                doomed = pids_in(tmp_path)["runs-0"]
                lost.update(name for name, pid in pids_in(tmp_path).items() if pid == doomed)
                os.kill(doomed, signal.SIGKILL)
                await until(lambda: placement.num_lost == 1)
                (tmp_path / "held" / "gate").touch()
                rollouts = await collecting
                await until(lambda: len(helpers()) == 2)
                assert helpers() - first and first - helpers() == {doomed}
            assert placement.num_lost == 1
        ended = Counter(event.key.task_id for event in journal.events() if isinstance(event, RunEnded))
        assert ended == dict.fromkeys(plan.tasks, 1)
        return {rollout.job.key.task_id: rollout for rollout in rollouts}

    lost: set[str] = set()
    rollouts = asyncio.run(main())
    assert {name.split("-")[0] for name in lost} == {"runs", "grades"}, "both kinds are to be lost"
    assert len(rollouts) == 4
    calls = Counter((tmp_path / "held" / "calls").read_text().split())
    for name, rollout in rollouts.items():
        assert rollout.verdict == Verdict(reward=1.0)
        assert rollout.ending.reason is EndReason.FINISHED and len(rollout.turns) == 2
        ran_again = name in lost and name.startswith("runs")
        assert rollout.attempt == (2 if ran_again else 1)
        assert calls[name] == (3 if ran_again else 2), "a run that had ended is not run again"
        failed = [(failure.stage, failure.error) for failure in rollout.failures]
        stage = "run" if name.startswith("runs") else "grade"
        assert failed == ([(stage, "LinkLost")] if name in lost else [])
    assert helpers() == set()


def test_when_the_runs_own_process_is_killed_nothing_is_left_of_its_helpers(tmp_path: Path) -> None:
    home = tmp_path / "home"
    config = held(tmp_path, names="runs-0 runs-1")
    settings = [
        f"tasks.source={config.tasks.source}",
        f"tasks.args={json.dumps(dict(config.tasks.args))}",
        f"model.script={config.model.script}",
        f"model.script_args={json.dumps(dict(config.model.script_args))}",
        "dispatch.processes=2",
    ]
    process = subprocess.Popen(
        [*COMMAND, "demo", *settings, "tasks.num=null", "--runs", str(tmp_path / "runs")],
        env={**os.environ, "SLIPSTREAM_HOME": str(home)},
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_until(lambda: len(pids_in(tmp_path)) == 2 or process.poll() is not None)
        started = helpers(process.pid)
        assert started == set(pids_in(tmp_path).values())
        leases = leases_in(home)
        assert len(leases) == 2 and in_sandboxes(leases)
    finally:
        process.kill()
        process.wait()
    _wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started) and not in_sandboxes(leases))
    assert leases_in(home) == []


def _wait_until(holds: Callable[[], object]) -> None:
    asyncio.run(until(holds))


HANGING = """
import socket, sys, threading, time
from slipstream.link import exit_after
own = socket.socket(fileno=int(sys.argv[1]))
threading.Thread(target=exit_after, args=(own.fileno(), 0.0), daemon=True).start()
print("begun", flush=True)
time.sleep(1000)
"""


def test_a_helper_whose_event_loop_hangs_ends_all_the_same() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", HANGING, str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE) as process:
        theirs.close()
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        ours.sendall(b"what nobody reads")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        ours.close()
        assert process.wait(LIMIT_S) == 1


def test_cancelling_an_evaluation_ends_its_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    config = held(tmp_path)

    async def main() -> None:
        running = asyncio.create_task(carried_out(config, tmp_path / "run"))
        await until(lambda: len(pids_in(tmp_path)) == 4)
        leases = leases_in(tmp_path / "home")
        assert in_sandboxes(leases)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert helpers() == set() and not in_sandboxes(leases) and leases_in(tmp_path / "home") == []

    asyncio.run(main())


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.2])
def test_cancelling_while_helpers_start_leaves_none(tmp_path: Path, after_s: float) -> None:
    async def main() -> None:
        running = asyncio.create_task(carried_out(held(tmp_path), tmp_path / "run"))
        await asyncio.sleep(after_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert helpers() == set()

    asyncio.run(main())


def test_a_sandbox_is_opened_where_there_is_room_for_it(tmp_path: Path) -> None:
    config = held(tmp_path, names=" ".join(f"free-{number}" for number in range(6)))
    config = replace(config, sandbox=SandboxConfig(start_timeout_s=20.0))
    grading = Grading(kind="command", spec={"command": "echo 1", "reward": "stdout"})
    plan = plan_evaluation(config)
    tasks = {name: replace(task, grading=grading) for name, task in plan.tasks.items()}
    crews = ((config, tasks, SandboxShare(warm=0, live=1)),) * 2
    order = HelperSpec(opener="slipstream.wiring.attempts:open_helper_deps", works=crews, max_sandboxes=(1, 1))
    script = held_script(folder=str(tmp_path / "held"))
    renderer = make_renderer(config.model)
    model = ScriptedModel(
        script, decode=renderer.decode, encode=renderer.encode_reply, encode_text=renderer.encode_text
    )

    async def main() -> None:
        async with open_processes(order, model=model, gate=OpenGate(), grade_weight=lambda job, ended: 1) as processes:
            processes.journal = journal = MemoryJournal()
            attempts = [processes.open(job, 1, None) for job in plan.jobs]
            for job in plan.jobs:
                journal.append(JobAdmitted(job=job))
            for attempt in attempts[:3]:  # two in one process and one in the other, and none has a sandbox
                await attempt.init()
                await attempt.run()
                await attempt.release()
            await attempts[3].init()  # beside the one
            await attempts[4].init()  # beside the two
            await attempts[4].aclose()
            for attempt in attempts[:3]:
                assert attempt.grade_weight == 1
                assert (await attempt.grade()).verdict is not None  # wherever it ran, there is room for one more
            await attempts[5].init()
            for attempt in attempts:
                await attempt.aclose()

    asyncio.run(main())


def test_a_chat_model_serves_helpers_too(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    script = held_script(folder=str(tmp_path / "held"))

    async def main() -> dict[str, Rollout]:
        async with ModelServer(chat=ScriptedChat(script)) as server:
            config = EvalConfig(
                name="chat",
                tasks=TasksConfig(
                    source=f"{HERE}:held_tasks", args={"folder": str(tmp_path / "held"), "names": "free-0 free-1"}
                ),
                model=ModelConfig(kind="chat", base_url=server.base_url),
                dispatch=DispatchConfig(processes=1),
            )
            return await carried_out(config, tmp_path / "run")

    rollouts = asyncio.run(main())
    assert [rollout.verdict for rollout in rollouts.values()] == [Verdict(reward=1.0)] * 2
    assert all(len(rollout.turns) == 2 for rollout in rollouts.values())


# ---------------------------------------------------------------- what a helper passes on to its programs


PROGRAMS = """
import asyncio, os
from slipstream.model.scripted import act, replies
from slipstream.tools import Effect, tool
from slipstream.types import Brief, Grading, Task

@tool(effect=Effect.PURE)
async def look() -> str:
    '''How a program that is started here comes to its end, and where it would look for modules.'''
    program = await asyncio.create_subprocess_exec("/bin/sh", "-c", "kill -TERM $$")
    return f"{await program.wait()} {os.environ.get('PYTHONPATH')}"

def tasks():
    brief = Brief(instruction="Look.", tools=(f"{__file__}:look", "finish"))
    return [Task(id="t", brief=brief, grading=Grading(kind="exact", spec={"expected": "yes"}))]

def script():
    return replies(act("look"), act("finish", answer="yes"))
"""


def test_programs_of_a_helper_heed_signals_and_find_modules_as_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs.py").write_text(PROGRAMS)
    (tmp_path / "dataclasses.py").write_text("raise ValueError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    config = EvalConfig(
        name="programs",
        tasks=TasksConfig(source="programs.py:tasks"),
        model=ModelConfig(kind="scripted", script="programs.py:script"),
        dispatch=DispatchConfig(processes=1),
    )
    (rollout,) = asyncio.run(carried_out(config, tmp_path / "run")).values()
    assert rollout.verdict == Verdict(reward=1.0)
    assert rollout.turns[-1].messages[0].content == f"{-signal.SIGTERM} /mine"


# ---------------------------------------------------------------- what goes wrong


def failing(config: EvalConfig, folder: Path) -> str:
    """The ConfigError that a run ends with before it begins; nothing else is said, and no process is left."""
    with pytest.raises(ConfigError) as raised:
        asyncio.run(carried_out(config, folder / "run"))
    assert helpers() == set()
    return str(raised.value)


def test_more_helpers_than_sandboxes_are_refused(tmp_path: Path) -> None:
    config = held(tmp_path)
    few = DispatchConfig(processes=3, limits=DispatchLimits(sandboxes=2))
    said = failing(replace(config, dispatch=few), tmp_path)
    assert said.startswith("dispatch.processes=3: dispatch.limits.sandboxes=2 leaves")


@pytest.mark.parametrize(
    ("sandbox", "tools", "said"),
    [
        (
            SandboxConfig(provider="oci", engine="poodman"),
            "finish",
            "'poodman' is not a container engine: use 'podman'",
        ),
        (SandboxConfig(), "finsh", 'did you mean "finish"?'),
    ],
    ids=["an engine that is none", "a tool that is none"],
)
def test_what_a_helper_finds_wrong_comes_out_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sandbox: SandboxConfig, tools: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(f"""
from slipstream.types import Brief, Grading, Task
def tasks():
    brief = Brief(instruction="Say yes.", tools=("{tools}",))
    return [Task(id="t", brief=brief, grading=Grading(kind="exact", spec={{"expected": "yes"}}))]
""")
    config = replace(held(tmp_path), tasks=TasksConfig(source=f"{tmp_path}/mine.py:tasks"), sandbox=sandbox)
    assert said in failing(config, tmp_path)
    gc.collect()
    assert not caplog.records, "a helper that did not start is told of once"


def test_a_journal_that_does_not_take_an_event_ends_the_run(tmp_path: Path) -> None:
    class Choosy(MemoryJournal):
        def append(self, event: Event) -> None:
            if isinstance(event, RunEnded):
                raise JournalError("not this one")
            super().append(event)

    config = held(tmp_path, processes=1, names="free-0")

    async def main() -> None:
        plan = plan_evaluation(config)
        journal = Choosy()
        async with open_parts(config, plan.tasks) as parts:
            async with Dispatcher(parts.placement(journal), policy=parts.pacing.policy, journal=journal) as dispatcher:
                with pytest.raises(JournalError, match="not this one"):
                    await dispatcher.collect(plan.jobs)

    asyncio.run(main())


@given(processes=st.integers(0, 9), warm=st.integers(0, 40), live=st.none() | st.integers(9, 80))
def test_the_shares_of_all_processes_add_up_to_what_the_run_may_have(
    processes: int, warm: int, live: int | None
) -> None:
    config = EvalConfig(
        name="shares",
        tasks=TasksConfig(source="x:y"),
        sandbox=SandboxConfig(warm=warm),
        dispatch=DispatchConfig(processes=processes),
    )
    shares = sandbox_shares(config, live)
    assert len(shares) == max(1, processes)
    assert sum(share.warm for share in shares) == warm
    lives = [share.live for share in shares]
    if live is None:
        assert set(lives) == {None}
    else:
        counted = [each for each in lives if each is not None]
        assert sum(counted) == live and len(counted) == len(lives) and max(counted) - min(counted) <= 1


# ---------------------------------------------------------------- turns at a gate in the run's own process


class Doorkeeper(OpenGate):
    """Holds every turn for a while before it lets it in."""

    def __init__(self, holds_s: float) -> None:
        super().__init__()
        self._holds_s = holds_s
        self.num_sampled: list[int] = []
        """As it was told, by turn."""

    @asynccontextmanager
    async def turn(self, key: JobKey, num_context_tokens: int, *, nested: bool = False) -> AsyncIterator[TurnPass]:
        await asyncio.sleep(self._holds_s)
        async with super().turn(key, num_context_tokens, nested=nested) as passed:
            passed.waited_s = self._holds_s
            yield passed
            self.num_sampled.append(passed.num_sampled)


class BrokenModel:
    """Fails every call, after a while."""

    async def complete(self, *_: Any, **__: Any) -> Sampled:
        await asyncio.sleep(0.05)
        raise ModelError("no answer")

    def load(self) -> None: ...

    async def aclose(self) -> None: ...


@asynccontextmanager
async def host_broken(work: None, tell: Tell) -> AsyncIterator[Hosted]:
    yield Hosted(completer=BrokenModel())


@asynccontextmanager
async def opened(model: Any, host: str, work: Any) -> AsyncIterator[Any]:
    """`model`, or what `host` opens in a process of its own."""
    if not host:
        yield model
        return
    async with open_model_process(host, work) as process:
        yield process


def spans_at_the_gate(
    model: Any, gate: OpenGate, *, deadline_s: float = 60.0, host: str = "", work: Any = None
) -> tuple[Rollout, list[Span]]:
    """Of one rollout of two turns in a helper, its model calls and waits for turns."""

    async def main() -> Rollout:
        order = HelperSpec(opener="slipstream.bench.harness.helpers:open_attempt_deps", works=(2,))
        async with (
            opened(model, host, work) as there,
            open_processes(order, model=there, gate=gate, grade_weight=lambda job, ended: 0) as placement,
        ):
            journal = placement.journal = MemoryJournal()
            job = Job(key=JobKey(phase="test", step=0, task_id="overhead", sample=0), seed=0, weight=0)
            deadlines, retries = Deadlines(run_s=deadline_s), Retries(attempts=1)
            async with Dispatcher(
                placement, policy=Batch(), journal=journal, gate=gate, deadlines=deadlines, retries=retries
            ) as dispatcher:
                (rollout,) = await dispatcher.collect([job])
                return rollout

    rollout = asyncio.run(main())
    return rollout, [span for span in rollout.spans if span.kind in (SpanKind.WAIT_TURN, SpanKind.MODEL)]


ANSWERING = "slipstream.bench.harness.helpers:host_model"
here_or_apart = pytest.mark.parametrize("apart", [False, True], ids=["model in the run's process", "model apart"])


@here_or_apart
def test_a_turn_is_held_by_the_gate_of_the_runs_own_process_and_says_how_long(apart: bool) -> None:
    gate = Doorkeeper(0.2)
    rollout, spans = spans_at_the_gate(AnsweringModel(2), gate, host=ANSWERING if apart else "", work=2)
    assert rollout.ending.reason is EndReason.FINISHED
    assert [span.kind for span in spans] == [SpanKind.WAIT_TURN, SpanKind.MODEL] * 2
    for wait, call in itertools.pairwise(spans):
        if wait.kind is SpanKind.WAIT_TURN:
            assert wait.end_s - wait.start_s >= 0.19 and wait.end_s == call.start_s
            assert call.counts["concurrent"] == 1
    assert gate.num_turns_under_way == 0
    assert gate.num_sampled == [span.counts["sampled"] for span in spans[1::2]] != [0, 0]


@here_or_apart
def test_a_call_that_fails_behind_the_gate_was_let_in_and_leaves_it(apart: bool) -> None:
    gate = Doorkeeper(0.1)
    rollout, spans = spans_at_the_gate(BrokenModel(), gate, host=f"{HERE}:host_broken" if apart else "")
    assert rollout.ending.reason is EndReason.INFRASTRUCTURE
    assert [(span.kind, dict(span.counts)) for span in spans] == [
        (SpanKind.WAIT_TURN, {}),
        (SpanKind.MODEL, {"new": ANY, "kept": 0, "encoded": ANY, "concurrent": 1, "failed": 1}),
    ]
    assert gate.num_turns_under_way == 0


@here_or_apart
def test_a_turn_that_was_never_let_in_leaves_its_wait_alone(apart: bool) -> None:
    host = ANSWERING if apart else ""
    rollout, spans = spans_at_the_gate(AnsweringModel(2), Doorkeeper(600.0), deadline_s=2.0, host=host, work=2)
    assert rollout.ending.reason is EndReason.DEADLINE
    assert [span.kind for span in spans] == [SpanKind.WAIT_TURN]


class Hanging:
    """Writes into a file that it was asked, hangs, and writes there that this was cancelled."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    async def complete(self, *_: Any, **__: Any) -> Sampled:
        self._file.write_text("asked")
        try:
            await asyncio.Event().wait()
        finally:
            self._file.write_text("cancelled")
        raise AssertionError("nobody sets it")

    def load(self) -> None: ...

    async def aclose(self) -> None: ...


@asynccontextmanager
async def host_hanging(file: str, tell: Tell) -> AsyncIterator[Hosted]:
    yield Hosted(completer=Hanging(file))


def test_a_helper_that_is_killed_has_its_requests_cancelled_and_its_turns_ended(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    gate = OpenGate()

    async def main() -> None:
        order = HelperSpec(opener="slipstream.bench.harness.helpers:open_attempt_deps", works=(2,))
        async with (
            open_model_process(f"{HERE}:host_hanging", str(asked)) as model,
            open_processes(order, model=model, gate=gate, grade_weight=lambda job, ended: 0) as placement,
        ):
            placement.journal = MemoryJournal()
            attempt = placement.open(bench_job(), 1, None)
            await attempt.init()
            running = asyncio.create_task(attempt.run())
            await until(lambda: asked.exists() and asked.read_text() == "asked")
            assert gate.num_turns_under_way == 1
            (helper,) = helpers()
            os.kill(helper, signal.SIGKILL)
            with pytest.raises(LinkLost):
                await running
            await until(lambda: asked.read_text() == "cancelled")
            await until(lambda: gate.num_turns_under_way == 0)

    asyncio.run(main())


def test_when_the_engines_process_is_killed_the_run_ends_and_no_rollout_is_given_up(tmp_path: Path) -> None:
    asked = tmp_path / "asked"

    async def main() -> MemoryJournal:
        order = HelperSpec(opener="slipstream.bench.harness.helpers:open_attempt_deps", works=(2,))
        journal = MemoryJournal()
        gate = OpenGate()
        async with open_model_process(f"{HERE}:host_hanging", str(asked)) as model, task_group() as group:
            group.create_task(model.watch())
            async with open_processes(order, model=model, gate=gate, grade_weight=lambda job, ended: 0) as placement:
                placement.journal = journal
                async with Dispatcher(placement, policy=Batch(), journal=journal, gate=gate) as dispatcher:
                    collecting = asyncio.create_task(dispatcher.collect([bench_job()]))
                    await until(lambda: asked.exists() and asked.read_text() == "asked")
                    os.kill(model.pid, signal.SIGKILL)
                    await collecting
        return journal

    with pytest.raises(ModelError, match=r"the engine's process ended \(killed by signal 9"):
        asyncio.run(main())
    assert helpers() == set()


def bench_job() -> Job:
    return Job(key=JobKey(phase="test", step=0, task_id="overhead", sample=0), seed=0, weight=0)


def test_an_attempt_whose_first_stage_was_cancelled_before_it_began_is_closed_and_can_begin_again() -> None:
    async def main() -> None:
        order = HelperSpec(opener="slipstream.bench.harness.helpers:open_attempt_deps", works=(2,))
        gate = OpenGate()
        async with open_processes(
            order, model=AnsweringModel(2), gate=gate, grade_weight=lambda job, ended: 0
        ) as placement:
            placement.journal = MemoryJournal()
            job = Job(key=JobKey(phase="test", step=0, task_id="overhead", sample=0), seed=0, weight=0)
            for goes_on in (False, True):
                attempt = placement.open(job, 1, None)
                first = asyncio.create_task(attempt.init())
                await asyncio.sleep(0)  # the call and its cancellation go out together
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                if goes_on:
                    await attempt.run()
                await attempt.aclose()

    asyncio.run(main())

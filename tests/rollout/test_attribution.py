"""Who is to blame: what an agent does to its own sandbox is an observation or an ending of its own, what provider and
host do is tried again and never a reward. Real local sandboxes, a scripted agent, the dispatcher with its retries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.agent.loop import ToolAgent
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dispatch.base import Retries
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.gate import OpenGate
from slipstream.dispatch.policies import Bounded
from slipstream.errors import SandboxLimitError
from slipstream.graders.registry import find_grader
from slipstream.model.scripted import Line, ScriptedCall, ScriptedChat, act
from slipstream.placement.inprocess import InProcess
from slipstream.record import MemoryJournal
from slipstream.rollout.attempt import AttemptDeps
from slipstream.sandbox import LocalProvider
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.metering.meter import Meters
from slipstream.tools import Toolset
from slipstream.types import (
    Brief,
    EndReason,
    Grading,
    Job,
    JobKey,
    Json,
    Role,
    Rollout,
    SampleParams,
    SandboxLimits,
    SandboxSpec,
    Task,
    Trust,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

SMALL = SandboxLimits(memory_mb=128, processes=32, disk_mb=16, file_mb=8, cpu_s=60)
HURRIED = SandboxLimits(memory_mb=128, processes=32, disk_mb=16, cpu_s=1)
RIGHT = 'test "$(cat out)" = done'
MARK = f"7{os.getpid()}"
BURN = "(while :; do :; done) & (while :; do :; done) & (while :; do :; done) &"
"""Each burner has CPU time enough; together they have not."""


class Watched(LocalProvider):
    """Knows every sandbox it opened; two are never open at once."""

    def __init__(self, *, meters: Meters | None = None) -> None:
        super().__init__(meters=meters)
        self.opened: list[LocalSandbox] = []

    async def open(self, spec: SandboxSpec) -> LocalSandbox:
        assert not [sandbox for sandbox in self.opened if is_alive(sandbox.host_pid)], "the one before is still open"
        sandbox = await super().open(spec)
        self.opened.append(sandbox)
        return sandbox


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def child_of(parent: int) -> int:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                return int(path.parent.name)
    raise AssertionError(f"{parent} has no child")


def work(
    *lines: Line | Callable[[Watched], Line],
    limits: SandboxLimits = SMALL,
    check: str = RIGHT,
    hidden: dict[str, Json] | None = None,
    artifact: tuple[str, ...] = ("out",),
    provider: Watched | None = None,
) -> tuple[Rollout, Watched]:
    """The rollout of one job whose agent says these lines, in each of its attempts."""
    provider = provider or Watched()
    task = Task(
        id="t",
        brief=Brief(instruction="Write done to out.", tools=("bash", "finish")),
        sandbox=SandboxSpec(limits=limits),
        artifact=artifact,
        grading=Grading(kind="command", spec={"command": check, "files": hidden or {}}),
    )

    def script(scene: ScriptedCall) -> Line:
        line = lines[sum(message.role is Role.ASSISTANT for message in scene.messages)]
        return line(provider) if callable(line) else line

    def make_dialogue(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        terms = CallContext(
            params=SampleParams(), max_context_tokens=9999, gate=OpenGate(), key=job.key, attempt=attempt
        )
        return ChatDialogue(ScriptedChat(script), terms, log)

    async def main() -> Rollout:
        journal = MemoryJournal()
        crew = AttemptDeps(
            provider=provider,
            journal=journal,
            make_dialogue=make_dialogue,
            make_runner=lambda task: ToolAgent(Toolset.named(task.brief.tools)),
            find_grader=find_grader,
        )
        placement, retries = InProcess(crew, {"t": task}), Retries(attempts=3, grades=2)
        job = Job(key=JobKey(phase="eval", step=0, task_id="t", sample=0), seed=1)
        try:
            async with Dispatcher(placement, policy=Bounded(slots=1), journal=journal, retries=retries) as dispatcher:
                return (await dispatcher.collect([job]))[0]
        finally:
            await provider.aclose()

    return asyncio.run(main()), provider


def bash(command: str, timeout_s: float = 30.0) -> Line:
    return act("bash", command=command, timeout_s=timeout_s)


def observations(rollout: Rollout) -> list[str]:
    return [message.content for turn in rollout.turns for message in turn.messages if message.role is Role.TOOL]


def trusted(rollout: Rollout) -> tuple[EndReason, Trust, float, int, int]:
    """How it ended, what that is worth, which attempt it was and how many failed."""
    assert rollout.verdict is not None, rollout.ending
    return (
        rollout.ending.reason,
        rollout.trust,
        rollout.verdict.reward,
        rollout.attempt,
        len(rollout.failures),
    )


DONE = (bash("echo done > out"), act("finish"))
WELL = (EndReason.FINISHED, Trust.TRUSTED, 1.0, 1, 0)
WRONG = (EndReason.FINISHED, Trust.TRUSTED, 0.0, 1, 0)
BROKE = (EndReason.BROKE_SANDBOX, Trust.TRUSTED, 0.0, 1, 0)


# ---------------------------------------------------------------- what the agent sees, and goes on


def python(*lines: str) -> str:
    return "python3 - <<'END'\n" + "\n".join(lines) + "\nEND"


FORKS = ("import os, time", "while True:", "  try: os.fork()", "  except OSError: time.sleep(0.01)")


@pytest.mark.parametrize(
    ("command", "timeout_s", "seen"),
    [
        (python("x = []", "while True: x.append(b'x' * (1 << 20))"), 30, ("[exit code 137]", "MemoryError")),
        (python(*FORKS), 1, ("timed out after 1 s",)),
        (
            "for n in 1 2 3 4; do head -c 7M /dev/zero > $n || break; done; rm 1; false",
            30,
            ("No space left on device",),
        ),
        ("yes", 1, ("bytes left out", "characters", "the output had")),
        ("sleep 1000", 0.5, ("timed out after 0.5 s",)),
    ],
    ids=["memory bomb", "fork bomb", "full disk", "endless output", "time of a tool"],
)
def test_what_a_sandbox_holds_back_is_an_observation(command: str, timeout_s: float, seen: tuple[str, ...]) -> None:
    rollout, provider = work(bash(command, timeout_s), *DONE)
    assert trusted(rollout) == WELL
    first = observations(rollout)[0]
    assert any(words in first for words in seen), first[-500:]
    assert len(first) < 100_000
    assert len(provider.opened) == 2, "the agent's and the grader's"


# ---------------------------------------------------------------- what the agent breaks


def test_cpu_time_that_ran_out_ends_the_rollout_and_is_never_tried_again() -> None:
    rollout, provider = work(bash(f"{BURN} wait"), *DONE, limits=HURRIED)
    assert trusted(rollout) == BROKE
    assert "cpu" in rollout.ending.detail
    assert len(provider.opened) == 2, "one attempt, and the grader's sandbox"


def test_memory_that_kills_the_whole_sandbox_ends_the_rollout_and_is_never_tried_again() -> None:
    """The watchdog kills all where killing one after the other does not help."""
    hogs = (
        "import os, time",
        "num = 0",
        "while True:",
        "  if num == 12: os.wait(); num -= 1",
        "  elif os.fork(): num += 1",
        "  else: x = b'x' * (80 << 20); time.sleep(60); os._exit(0)",
    )
    provider = Watched(meters=Meters(f"attribution-{os.getpid()}", kind="watchdog"))
    rollout, _ = work(bash(python(*hogs)), *DONE, provider=provider)
    assert trusted(rollout) == BROKE
    assert "memory" in rollout.ending.detail
    assert len(provider.opened) == 2


def test_a_sandbox_that_breaks_after_the_last_turn_is_the_agents_doing_too() -> None:
    def finish(provider: Watched) -> Line:
        while is_alive(provider.opened[-1].host_pid):
            time.sleep(0.01)
        return act("finish")

    rollout, provider = work(bash(f"{BURN} true"), finish, limits=HURRIED)
    assert (rollout.trust, rollout.attempt, rollout.failures) == (Trust.TRUSTED, 1, ())
    assert len(provider.opened) == 2


SEAL = python(
    "import fcntl, os",
    "shell = f'/proc/{os.getppid()}/fd/'",
    "for name in os.listdir(shell):",
    "  if 'memfd:' in os.readlink(shell + name):",
    "    fcntl.fcntl(os.open(shell + name, os.O_RDWR), fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)",
)


def test_an_agent_that_seals_the_files_of_its_shell_goes_on() -> None:
    rollout, _ = work(bash(SEAL), *DONE)
    assert trusted(rollout) == WELL
    assert "Operation not permitted" in observations(rollout)[0]


@pytest.mark.parametrize(
    "then", [bash("echo on"), act("finish")], ids=["before the next command", "before the work is taken"]
)
def test_a_sandbox_that_fails_without_a_known_reason_is_the_agents_doing_if_a_fresh_one_works(then: Line) -> None:
    def crash(provider: Watched) -> Line:
        provider.opened[0]._channel.tell({"op": "crash"})  # the supervisor knows no such request
        return then

    rollout, provider = work(bash("echo done > out"), crash, act("finish"))
    assert trusted(rollout) == BROKE
    assert "a fresh sandbox works" in rollout.ending.detail
    assert len(provider.opened) == 3, "the agent's, the probe and the grader's, one after the other"


def test_work_that_a_limit_keeps_from_being_read_is_worth_nothing() -> None:
    class Full(LocalSandbox):
        async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
            raise SandboxLimitError(f"{path}: Cannot allocate memory")

    class Fulls(Watched):
        async def open(self, spec: SandboxSpec) -> LocalSandbox:
            sandbox = await super().open(spec)
            sandbox.__class__ = Full
            return sandbox

    rollout, _ = work(*DONE, provider=Fulls())
    assert trusted(rollout) == WRONG


# ---------------------------------------------------------------- what the host breaks


def kill(pid: int) -> None:
    """Kill a process and wait for its end: on a busy machine its sandbox may answer once more before that."""
    os.kill(pid, signal.SIGKILL)
    while is_alive(pid):
        time.sleep(0.001)


def kill_supervisor(provider: Watched) -> None:
    kill(provider.opened[-1].host_pid)


def kind_of_meter() -> str:
    meters = Meters(f"attribution-{os.getpid()}")
    asyncio.run(meters.aclose())
    return meters.kind


def test_a_host_fault_is_tried_again_on_a_fresh_sandbox_and_then_untrusted() -> None:
    def lose(provider: Watched) -> Line:
        kill_supervisor(provider)
        return bash("echo on")

    rollout, provider = work(bash("echo done > out"), lose, act("finish"))
    assert (rollout.ending.reason, rollout.trust) == (EndReason.INFRASTRUCTURE, Trust.UNTRUSTED)
    assert (rollout.verdict, rollout.attempt) == (None, 3)
    assert [(one.attempt, one.stage, one.error) for one in rollout.failures] == [
        (attempt, "run", "SandboxError") for attempt in (1, 2, 3)
    ]
    assert len({sandbox.id for sandbox in provider.opened}) == 3


def test_the_attempt_after_a_host_fault_counts() -> None:
    def lose_the_first(provider: Watched) -> Line:
        if len(provider.opened) == 1:
            kill_supervisor(provider)
        return bash("ls out && exit 5; echo done > out")

    rollout, provider = work(bash("true"), lose_the_first, act("finish"))
    assert trusted(rollout) == (EndReason.FINISHED, Trust.TRUSTED, 1.0, 2, 1)
    assert len(provider.opened) == 3


def test_a_host_fault_after_a_fork_bomb_is_still_the_hosts() -> None:
    if kind_of_meter() == "watchdog":
        pytest.skip("the watchdog ends a sandbox for its processes, and cannot tell")

    def lose(provider: Watched) -> Line:
        kill_supervisor(provider)
        return bash("echo on")

    rollout, _ = work(bash(python(*FORKS), 1), lose, act("finish"))
    assert (rollout.ending.reason, rollout.trust) == (EndReason.INFRASTRUCTURE, Trust.UNTRUSTED)


# ---------------------------------------------------------------- work against its grader


@pytest.mark.parametrize(
    ("written", "limits"),
    [(f"{BURN} wait", HURRIED), ("python3 -c 'x = [bytes([n % 256]) * (1 << 20) for n in range(1 << 20)]'", SMALL)],
    ids=["CPU time", "memory"],
)
def test_work_that_exhausts_the_graders_sandbox_is_worth_nothing(written: str, limits: SandboxLimits) -> None:
    write = bash(f"cat > out <<'END'\n{written}\nEND")
    rollout, provider = work(write, act("finish"), limits=limits, check="sh ./out || exit 1")
    assert trusted(rollout) == WRONG
    assert len(provider.opened) == 2, "it is graded once"


FORGING = f"""
echo wrong > out; echo wrong > expected; echo 'exit 0' > check.sh; echo 1 > reward; cp reward /tmp/reward
printf '#!/bin/sh\\nexit 0\\n' > cmp; chmod +x cmp; echo 'cmp() {{ true; }}' > .profile; cp .profile .bashrc
(setsid sh -c 'while :; do echo wrong > expected; echo "exit 0" > check.sh; echo 1 > reward; sleep 0.0{MARK}; done' &)
python3 -c "import os
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execvp('sleep', ['sleep', '{MARK}'])"
until grep -q sleep /proc/[0-9]*/comm; do :; done
"""


def left_behind() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if MARK.encode() in (line := path.read_bytes()):
                found.append(line)
    return found


@pytest.mark.parametrize(("answer", "reward"), [("wrong", 0.0), ("done", 1.0)])
def test_a_forged_reward_changes_nothing(answer: str, reward: float) -> None:
    """The work itself decides, and nothing that was put beside it, even under names that are taken along."""
    seen: list[int] = []

    class Looking(Watched):
        async def open(self, spec: SandboxSpec) -> LocalSandbox:
            seen.append(len(left_behind()))
            return await super().open(spec)

    def finish(provider: Watched) -> Line:
        seen.append(len(left_behind()))
        return act("finish", answer="1.0")

    rollout, _ = work(
        bash(FORGING),
        bash(f"echo {answer} > out"),
        finish,
        check="test ! -e reward -a ! -e /tmp/reward && sh check.sh",
        hidden={"expected": "done\n", "check.sh": "cmp -s out expected\n"},
        artifact=("out", "expected", "check.sh"),
        provider=Looking(),
    )
    assert trusted(rollout) == (EndReason.FINISHED, Trust.TRUSTED, reward, 1, 0)
    before, while_it_ran, at_grading = seen
    assert before == at_grading == 0
    assert while_it_ran >= 2, "the agent's programs waited for the grader"

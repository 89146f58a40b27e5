"""Everything that goes wrong at once, for real: bubblewrap sandboxes, an HTTP endpoint, a run store on disk.

100 rollouts in one run: a tool that raises, a tool that hangs, a sandbox that is killed in the middle of a turn, a
grader that exits with 1, and an endpoint that answers a third of its calls with 500.
"""

import asyncio
import os
import re
import signal
from collections import Counter, defaultdict
from pathlib import Path

from slipstream.aio import task_group
from slipstream.config import to_json
from slipstream.evaluation import evaluate, plan_jobs
from slipstream.model.scripted import Line, ScriptedCall, ScriptedChat, act
from slipstream.model.server import FixedAnswer, ModelServer
from slipstream.record import RunStore
from slipstream.sandbox.local.sandbox import LocalSandbox
from slipstream.sandbox.pool.pooled_sandbox import PooledSandbox
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, TasksConfig
from slipstream.tools import Effect, ToolContext, tool
from slipstream.types import (
    Brief,
    EndReason,
    Grading,
    Role,
    SandboxSpec,
    Task,
    Trust,
)

SAMPLES = 20
MARK = f"slipstream-faults-{os.getpid()}"
"""In the environment of every sandbox of this run, so that its processes can be identified."""


@tool(effect=Effect.PURE)
async def crash() -> str:
    """Crash."""
    raise RuntimeError("a defect of the tool")


@tool(effect=Effect.PURE, timeout_s=0.2)
async def hang() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return "never"


@tool(effect=Effect.SANDBOX)
async def lose(*, ctx: ToolContext) -> str:
    """Kill the sandbox from outside while a command runs in it."""
    sandbox = ctx.need_sandbox()
    assert isinstance(sandbox, PooledSandbox)
    inner = sandbox.inner
    assert isinstance(inner, LocalSandbox)
    async with task_group() as group:
        group.create_task(sandbox.exec(["sleep", "1000"], timeout_s=1000))
        await sandbox.exec(["true"], timeout_s=10)
        assert processes_with(MARK), "the mark does not show processes, so it cannot show that none is left"
        os.kill(inner.host_pid, signal.SIGKILL)
    return "unreachable"


def fault_tasks() -> list[Task]:
    tools = (*(f"{__file__}:{name}" for name in ("crash", "hang", "lose")), "bash", "finish")

    def task(name: str, used: str, check: str) -> Task:
        return Task(
            id=name,
            brief=Brief(instruction=f"Use {used}.", tools=tools),
            sandbox=SandboxSpec(env={"MARK": MARK}),
            artifact=("out",),
            grading=Grading(kind="command", spec={"command": check, "reward": "stdout"}),
        )

    right = 'test "$(cat out)" = done && echo 1'
    return [
        task("sound", "bash", right),
        task("crashing-tool", "crash", right),
        task("hanging-tool", "hang", right),
        task("lost-sandbox", "lose", right),
        task("crashing-grader", "bash", "exit 1"),
    ]


def script(scene: ScriptedCall) -> Line:
    used = re.findall(r"Use (\w+)\.", scene.prompt_text)[0]
    num_replies = sum(message.role is Role.ASSISTANT for message in scene.messages)
    steps = [act("bash", command="echo done > out"), *([act(used)] if used != "bash" else []), act("finish")]
    return steps[num_replies]


def processes_with(mark: str) -> list[int]:
    """Processes of this machine that carry `mark` in their arguments or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            for name in ("cmdline", "environ"):
                try:
                    text = (entry / name).read_bytes()
                except OSError:
                    continue
                if mark.encode() in text:
                    found.append(int(entry.name))
                    break
    return found


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().split("\n")


def test_a_run_of_a_hundred_with_every_fault_ends_whole_and_leaves_nothing(tmp_path: Path) -> None:
    mounts_before = mounts()
    fds_before = num_open_files()

    async def main() -> None:
        faults = lambda number: FixedAnswer(status=500) if number % 3 == 1 else None  # noqa: E731
        async with ModelServer(chat=ScriptedChat(script), faults=faults) as server:
            config = EvalConfig(
                name="faults",
                tasks=TasksConfig(source=f"{__file__}:fault_tasks"),
                model=ModelConfig(kind="chat", base_url=server.base_url, max_retries=12),
                dispatch=DispatchConfig(policy="pipeline", slots=16),
                samples=SAMPLES,
            )
            async with RunStore.create(tmp_path / "run", config=to_json(config)) as store:
                report = await evaluate(config, store)
            assert any(request.status == 500 for request in server.log)
        assert report.num_rollouts == 5 * SAMPLES

        store_again = RunStore.read(tmp_path / "run")
        rollouts = list(store_again.rollouts(with_turns=False))
        jobs = plan_jobs(config, fault_tasks())
        assert Counter(rollout.job.key for rollout in rollouts) == Counter(job.key for job in jobs)
        by_task = defaultdict(set)
        for rollout in rollouts:
            reward = None if rollout.verdict is None else rollout.verdict.reward
            by_task[rollout.job.key.task_id].add((rollout.ending.reason, rollout.trust, reward))
        assert by_task == {
            "sound": {(EndReason.FINISHED, Trust.TRUSTED, 1.0)},
            "hanging-tool": {(EndReason.FINISHED, Trust.TRUSTED, 1.0)},
            "crashing-tool": {(EndReason.INFRASTRUCTURE, Trust.UNTRUSTED, None)},
            "lost-sandbox": {(EndReason.INFRASTRUCTURE, Trust.UNTRUSTED, None)},
            "crashing-grader": {(EndReason.NO_VERDICT, Trust.UNTRUSTED, None)},
        }
        assert report.failures["run: ToolFailure"] == 3 * SAMPLES
        assert report.failures["run: SandboxError"] == 3 * SAMPLES
        assert report.failures["grade: GraderError"] == 3 * SAMPLES
        assert report.mean_reward == 1.0

    asyncio.run(main())
    assert processes_with(MARK) == []
    assert mounts() == mounts_before
    assert num_open_files() == fds_before

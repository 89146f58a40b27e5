"""SIGKILL between two turns, then a resume: the model's own log of its calls shows that none was made twice.

Every job holds at some turn until the run was killed, so no model call is under way at that moment. Jobs whose tools
answer the same continue at the next turn, in a fresh sandbox whose files and shell are as they were; one whose tool
does not starts over.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.model.scripted import Line, Script, ScriptedCall, act
from slipstream.record import RunStore
from slipstream.tools import Effect, tool
from slipstream.types import Brief, Grading, Rollout, Task

COMMAND = [sys.executable, "-c", "from slipstream.cli.main import main; main()", "eval"]
NUM_TASKS, SAMPLES, NUM_TURNS = 3, 2, 7
FORGETFUL = NUM_TASKS
"""The number of the task whose first command never says the same."""
HOLDS = (1, 3)
"""How many turns of the first task are taken before it holds, at the first kill and at the second; of each further
task one more."""


@tool(effect=Effect.SANDBOX, timeout_s=60.0)
async def hold(gate: str) -> str:
    """Wait until the gate is open."""
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - it is opened by another process
        await asyncio.sleep(0.005)
    return "open"


def held_tasks() -> list[Task]:
    def task(number: int) -> Task:
        return Task(
            id=str(number),
            brief=Brief(instruction=f"Task {number}.", tools=("bash", "finish", f"{__file__}:hold")),
            artifact=("out",),
            grading=Grading(
                kind="command", spec={"command": 'test "$(tr -d "\\n" < out)" = 1234 && echo 1', "reward": "stdout"}
            ),
        )

    return [task(number) for number in range(NUM_TASKS + 1)]


def held_turns(number: int) -> tuple[int, ...]:
    """At which turns the task holds, by the kill that it waits for."""
    return tuple(turns + number % NUM_TASKS for turns in HOLDS)


def held_script(*, folder: str) -> Script:
    """Counts in its shell and in its file, holds, and finishes; it writes down each call before it answers."""
    calls = os.open(Path(folder) / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def script(scene: ScriptedCall) -> Line:
        number = int(re.findall(r"Task (\d+)\.", scene.prompt_text)[0])
        turn = scene.prompt_text.count("<|im_start|>assistant") - 1
        os.write(calls, (json.dumps([scene.session, turn]) + "\n").encode())
        os.fsync(calls)
        if turn in held_turns(number):
            return act("hold", gate=str(Path(folder) / f"gate-{held_turns(number).index(turn)}"))
        if turn == NUM_TURNS - 1:
            return act("finish")
        said = "cat /proc/sys/kernel/random/uuid; " if number == FORGETFUL else ""
        return act("bash", command=f"{said}n=$((n + 1)); echo $n | tee -a out")

    return script


def calls_of(folder: Path) -> list[tuple[str, int]]:
    return [tuple(json.loads(line)) for line in (folder / "calls").read_text().splitlines()]


def settings_for(folder: Path) -> list[str]:
    here = Path(__file__).resolve()
    return [
        f"tasks.source={here}:held_tasks", "tasks.num=null", f"samples={SAMPLES}", "dispatch.slots=8",
        f"model.script={here}:held_script", f"model.script_args.folder={folder}",
    ]  # fmt: skip


def num_turns(runs: Path) -> int:
    """How many are on record."""
    folders = list(runs.iterdir()) if runs.is_dir() else []
    try:
        return RunStore.read(folders[0]).counts().turns if folders else 0
    except ConfigError:  # it is being made
        return 0


def kill_between_turns(command: list[str], folder: Path, num_calls: int) -> None:
    """SIGKILL once all jobs hold: so many calls were made, and all of their turns are on record."""
    from store_watch import wait_for_record  # the run loads this file too, and knows nothing of its neighbours

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for_record(process, folder / "runs", lambda: num_turns(folder / "runs") >= num_calls)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert len(calls_of(folder)) == num_calls


def told(rollout: Rollout) -> list[str]:
    """What the tools said."""
    return [message.content for turn in rollout.turns for message in turn.messages[:-1] if message.call_id]


def test_a_run_killed_between_turns_asks_the_model_nothing_twice(tmp_path: Path) -> None:
    runs = ["--runs", str(tmp_path / "runs")]
    resume = [*COMMAND, "--resume", "latest", *runs]
    numbers = range(NUM_TASKS + 1)
    first, second = (SAMPLES * sum(held_turns(number)[kill] + 1 for number in numbers) for kill in (0, 1))
    kill_between_turns([*COMMAND, "demo", *settings_for(tmp_path), *runs], tmp_path, first)
    (tmp_path / "gate-0").touch()
    again = SAMPLES * (held_turns(FORGETFUL)[0] + 1)
    """Turns of the attempts that started over."""
    kill_between_turns(resume, tmp_path, second + again)
    (tmp_path / "gate-1").touch()
    done = subprocess.run([*resume, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["mean_reward"] == 1.0

    (folder,) = (tmp_path / "runs").iterdir()
    rollouts = list(RunStore.read(folder).rollouts())
    assert len(rollouts) == (NUM_TASKS + 1) * SAMPLES
    steady = [rollout for rollout in rollouts if rollout.job.key.task_id != str(FORGETFUL)]
    assert {rollout.attempt for rollout in steady} == {1}
    assert not any(rollout.failures for rollout in steady)
    for rollout in steady:
        assert [turn.index for turn in rollout.turns] == list(range(NUM_TURNS))
        assert [text for text in told(rollout) if text != "open"] == ["1", "2", "3", "4"]

    calls = calls_of(tmp_path)
    assert max(Counter(calls).values()) == 1, "no turn of an attempt was asked for twice"
    asked = {(f"{rollout.job.key}#1", turn) for rollout in steady for turn in range(NUM_TURNS)}
    assert {call for call in calls if f"/{FORGETFUL}/" not in call[0]} == asked

    forgetful = [rollout for rollout in rollouts if rollout.job.key.task_id == str(FORGETFUL)]
    assert [rollout.attempt for rollout in forgetful] == [3] * SAMPLES, "it started over at each kill"
    assert [[failure.error for failure in rollout.failures] for rollout in forgetful] == [["ReplayError"]] * SAMPLES

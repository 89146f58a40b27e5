"""The demo tasks with another reward: a coin that depends on what was read. Even a model that knows next to nothing
gets different rewards for different rollouts, so there is always something to learn."""

from dataclasses import replace

from slipstream.recipes.demo.tasks import demo_tasks
from slipstream.types import File, Grading, Task

_CAT = b'#!/bin/sh\necho "$@" >> /work/log\nexec /bin/cat "$@"\n'
_TOSS = "test $(( $(cksum < log | cut -d' ' -f1) % 2 )) = 0 || exit 1"


def coin_tasks(*, num: int = 12, seed: int = 1, split: str = "train") -> tuple[Task, ...]:
    return tuple(_with_coin(task) for task in demo_tasks(num=num, seed=seed, split=split))


def _with_coin(task: Task) -> Task:
    assert task.sandbox is not None
    files = {**task.sandbox.files, "bin/cat": File(data=_CAT, mode=0o755)}
    return replace(
        task,
        sandbox=replace(task.sandbox, files=files),
        artifact=("log",),
        grading=Grading(kind="command", spec={"command": _TOSS, "timeout_s": 30.0}),
    )

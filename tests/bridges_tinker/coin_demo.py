"""The demo tasks, whose sandboxes and tools are real, with a coin for a reward: even a model that knows nothing gets
different rewards for different rollouts, so there is something to learn."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slipstream.graders.base import GradeContext
from slipstream.recipes.demo.tasks import Split, demo_tasks
from slipstream.types import Artifact, Grading, Json, Task, Verdict

_tosses: Counter[str] = Counter()
"""By task: heads and tails in turn, so that no group is without signal."""


class Coin:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None: ...

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        task = str(grading.spec["task"])
        _tosses[task] += 1
        return Verdict(reward=float(_tosses[task] % 2))


def coin_demo(*, num: int = 8, seed: int = 1) -> tuple[Task, ...]:
    kind = f"{Path(__file__).resolve()}:Coin"
    return tuple(
        replace(task, grading=Grading(kind=kind, spec={"task": task.id}))
        for task in demo_tasks(num=num, seed=seed, split=Split.TRAIN)
    )

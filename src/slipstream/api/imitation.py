"""Learning by example: demonstrations out of recorded rollouts, and tiny models to try them with.

    model = tiny_model(tasks, teacher)
    train(tasks, model=model, demonstrations=demonstrations(tasks, teacher))

A demonstration is the conversation of one rollout in the student's tokens, with a mask on exactly the replies. Rollouts
of any model will do, also of one behind a chat server: their messages are rendered with the student's chat format.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from slipstream.agent.loop import briefed
from slipstream.api.demonstrations import Demonstration, DemonstrationWriter, DraftDemonstration
from slipstream.api.models import ModelLike
from slipstream.api.runs import EvalResult, Run, TasksLike, evaluate, recorded_settings
from slipstream.engine.training.config import WarmStartConfig
from slipstream.errors import ConfigError
from slipstream.hub.tiny import TINY_SHAPE, TinyShape, make_tiny_model
from slipstream.render.formats.chatml import reply_text
from slipstream.settings import DemonstrationsConfig, EvalConfig, ModelConfig
from slipstream.tools import Toolset
from slipstream.types import ForkReason, Json, Role, Rollout, Task
from slipstream.wiring.task_sets import tasks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """The rollouts of a recorded run that are to be imitated before training begins."""

    run: Path
    min_reward: float | None = None
    learning: WarmStartConfig | None = None
    """None: as the settings of the training run say."""

    def as_settings(self, model: ModelConfig, learning: WarmStartConfig) -> DemonstrationsConfig:
        """For a student with these settings."""
        args: dict[str, Json] = {
            "run": str(self.run),
            "min_reward": self.min_reward,
            "family": model.family,
            "family_args": dict(model.family_args),
            "thinking": model.thinking,
        }
        return DemonstrationsConfig(source=f"{__name__}:from_run", args=args, learning=self.learning or learning)


def demonstrations(
    tasks: TasksLike | Run,
    teacher: ModelLike | None = None,
    *,
    samples: int = 1,
    min_reward: float | None = None,
    learning: WarmStartConfig | None = None,
    runs: str | Path = "runs",
    quiet: bool = False,
) -> Demonstrations:
    """Rollouts to imitate: those of a recorded run, or of a teacher who does the tasks now.

    The teacher is whatever `evaluate` takes as a model: a server, a folder, a script. Rollouts without a
    verdict are left out, and with `min_reward` those that earned less.
    """
    if isinstance(tasks, Run):
        run = tasks.path
    elif teacher is None:
        raise ConfigError("there is nothing to imitate: give a teacher, or a recorded run (open_run)")
    else:
        run = _teacher_rollouts(tasks, teacher, samples=samples, runs=runs, quiet=quiet).run_path
    return Demonstrations(run=run.resolve(), min_reward=min_reward, learning=learning)


def _teacher_rollouts(
    tasks: TasksLike, teacher: ModelLike, *, samples: int, runs: str | Path, quiet: bool
) -> EvalResult:
    result = evaluate(tasks, model=teacher, samples=samples, runs=runs, quiet=quiet)
    if not result.report.num_trusted:
        why = next(iter(result.report.failure_messages.values()), "it did not finish")
        raise ConfigError(f"no rollout of the teacher has a verdict, so there is nothing to imitate: {why}")
    return result


def from_run(
    folder: Path,
    *,
    seed: int,
    run: str,
    min_reward: float | None = None,
    family: str = "auto",
    family_args: Mapping[str, JsonValue] | None = None,
    thinking: Literal["auto", "keep", "template"] = "auto",
) -> list[Demonstration]:
    """What `warm_start.source` names: the demonstrations of a run for the model in `folder`. It always returns all of
    them, so the seed does not matter."""
    recorded = Run(Path(run))
    settings = recorded_settings(recorded)
    tasks = {task.id: task for task in tasks_of(settings.tasks)}
    writer = DemonstrationWriter(folder, family=family, family_args=family_args, thinking=thinking)
    made: list[Demonstration] = []
    for rollout in recorded.reader.rollouts():
        if rollout.verdict is not None and (min_reward is None or rollout.verdict.reward >= min_reward):
            made += _demonstrations(rollout, tasks[rollout.job.key.task_id], settings, writer)
    if not made:
        raise ConfigError(f"the run {run} has no rollout to imitate (min_reward={min_reward})")
    return made


def _demonstrations(
    rollout: Rollout, task: Task, settings: EvalConfig, writer: DemonstrationWriter
) -> Iterator[Demonstration]:
    """One for each stretch in which the conversation was not rewritten."""
    specs = Toolset.named(briefed(task.brief, settings.agent).tools).specs
    draft: DraftDemonstration | None = None
    for turn in rollout.turns:
        if turn.fork is ForkReason.NESTED or not turn.messages or turn.messages[-1].role is not Role.ASSISTANT:
            continue
        *prompt, reply = turn.messages
        continues = draft is not None and turn.fork is None and draft.hear(prompt)
        if not continues:
            if draft is not None:
                yield draft.finish()
            draft = writer.begin_with(task.id, prompt, specs)
        assert draft is not None
        draft.say(reply)
    if draft is not None:
        yield draft.finish()


def tiny_model(
    tasks: Iterable[Task],
    teacher: ModelLike,
    *,
    folder: str | Path = "tiny-model",
    seed: int = 0,
    shape: TinyShape = TINY_SHAPE,
) -> Path:
    """A model of half a million random weights with a tokenizer of your tasks' own words: small enough to learn a
    task on two CPU cores in minutes, and to show that a grader rewards what it should. The teacher does each task
    once, so that its words are known. It knows its tools by imitation, so prompts say nothing of them."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as runs:
        result = _teacher_rollouts(list(tasks), teacher, samples=1, runs=runs, quiet=True)
        texts = list(_texts(result.rollouts()))
    return make_tiny_model(Path(folder), texts, seed=seed, shape=shape, family_args={"show_tools": False})


def _texts(rollouts: Iterable[Rollout]) -> Iterator[str]:
    """Every message and reply, in the pieces that are encoded."""
    yield "assistant\n"
    for rollout in rollouts:
        for turn in rollout.turns:
            for message in turn.messages:
                if message.role is Role.ASSISTANT:
                    yield reply_text(message)
                else:
                    yield f"{message.role.value}\n{message.content}"

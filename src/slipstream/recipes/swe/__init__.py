"""Software engineering: mend a bug in a repository, with bash, an editor, code search and hints.

    slipstream tasks make toolz==1.0.0 --out DIR
    slipstream eval swe tasks=DIR model.base_url=http://localhost:8000/v1

The tools are those that each task names; made tasks name bash, edit, search and finish, and the smallest tier its own
short ones.
"""

from __future__ import annotations

from slipstream.agent.config import AgentConfig, HintRules
from slipstream.dispatch.base import Deadlines, DispatchLimits
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.training.config import LearnerConfig, LossConfig, WarmStartConfig
from slipstream.settings import (
    DemonstrationsConfig,
    DispatchConfig,
    EvalConfig,
    ModelConfig,
    TasksConfig,
    TrainConfig,
)

_PART = "slipstream.tasks.factory.parts:read_part"
AGENT = AgentConfig(prompt="code", hints=HintRules(on=True))
DISPATCH = DispatchConfig(
    policy="adaptive",
    limits=DispatchLimits(sandboxes=64),
    deadlines=Deadlines(init_s=300, run_s=5_400, grade_s=6_000, job_s=14_400),
)


def recipe() -> EvalConfig:
    """Any model on any task set."""
    return EvalConfig(name="swe", tasks=TasksConfig(), model=ModelConfig(kind="chat"), agent=AGENT, dispatch=DISPATCH)


def small() -> TrainConfig:
    """The same agent at 135M on the local bridge, for tasks of the smallest tier. Name the folder of made tasks three
    times: `tasks.args.path=DIR held_out.args.path=DIR warm_start.args.path=DIR`."""
    return TrainConfig(
        name="swe-135m",
        tasks=TasksConfig(source=_PART, args={"tier": "tiny", "part": "train"}),
        held_out=TasksConfig(source=_PART, args={"tier": "tiny", "part": "held_out"}),
        model=ModelConfig(
            kind="local", folder="smollm2", max_tokens=256, context_tokens=4_096, engine=EngineConfig(num_slots=16)
        ),
        agent=AGENT,
        warm_start=DemonstrationsConfig(
            source=f"{__name__}.demonstrations:demonstrations",
            args={"tier": "tiny", "part": "train"},
            learning=WarmStartConfig(num_epochs=6, tokens_per_step=4_096, learning_rate=1e-4),
        ),
        learner=LearnerConfig(
            loss=LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.28), learning_rate=1e-5, num_minibatches=2
        ),
        steps=8,
        groups=4,
        samples=4,
        eval_every=0,
    )

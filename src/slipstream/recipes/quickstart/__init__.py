"""The quickstart: a model that is made here learns the demo tasks, first by example, then by reward.

Made for two CPU cores, in real sandboxes. `docs/quickstart.md` says what happens and what to expect.
"""

from __future__ import annotations

from collections.abc import Mapping

import slipstream as ss

STEPS, GROUPS = 24, 64
MINIBATCHES = 8
FAMILY_ARGS: Mapping[str, ss.Json] = {"show_tools": False}
"""The model knows its two tools by training: a description of them would be most of every prompt."""

AGENT = ss.AgentConfig(
    stuck=ss.StuckRules(idle_turns=2, same_turns=0, alternations=0), out_of_turns="failed", cut_replies="failed"
)
"""Two turns of babble end a rollout, and are trained on even if they were cut off. Repetition is no sign of being stuck
for a model this small: it samples its choice again each time. Finishing in six turns is part of the task: if rollouts
that run out of turns were not trained on, nothing would keep the model from wandering about when it does not
succeed."""

_TASKS = "slipstream.recipes.demo.tasks:demo_tasks"


def recipe() -> ss.TrainConfig:
    return ss.TrainConfig(
        name="quickstart",
        tasks=ss.TasksConfig(source=_TASKS, num=STEPS * GROUPS, args={"seed": 1, "split": "train"}),
        held_out=ss.TasksConfig(source=_TASKS, num=256, args={"seed": 2, "split": "held_out"}),
        model=ss.ModelConfig(
            kind="local",
            make=f"{__name__}.model:make_model",
            family_args=FAMILY_ARGS,
            max_tokens=24,
            context_tokens=512,
            engine=ss.EngineConfig(num_slots=64, num_threads=1),
        ),
        agent=AGENT,
        warm_start=ss.DemonstrationsConfig(
            source=f"{__name__}.demonstrations:demonstrations",
            args={"num": 2_000, "quality": 0.45},
            learning=ss.WarmStartConfig(num_epochs=4, tokens_per_step=650, learning_rate=4e-3, betas=(0.9, 0.98)),
        ),
        learner=ss.LearnerConfig(
            loss=ss.LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.2),
            learning_rate=1.2e-3,
            warmup_steps=MINIBATCHES,
            decay_steps=STEPS * MINIBATCHES,
            betas=(0.9, 0.95),
            adam_eps=1e-6,  # so that words that never occur, with next to no gradient, stay where they are
            max_grad_norm=0.1,
            num_minibatches=MINIBATCHES,
            num_threads=2,
        ),
        sandbox=ss.SandboxConfig(warm=32),  # started while the learner updates
        steps=STEPS,
        groups=GROUPS,
        samples=4,
        eval_every=12,
    )

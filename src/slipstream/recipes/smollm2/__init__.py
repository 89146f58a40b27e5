"""SmolLM2-135M, a pretrained chat model, on the demo tasks: a few steps on a CPU, many on a GPU.

`slipstream models get smollm2` fetches it. It has never seen a tool, so it learns the form of a call by example first.
"""

from __future__ import annotations

import slipstream as ss

_TASKS = "slipstream.recipes.demo.tasks:demo_tasks"


def recipe() -> ss.TrainConfig:
    return ss.TrainConfig(
        name="smollm2",
        tasks=ss.TasksConfig(source=_TASKS, num=512, args={"seed": 1, "split": "train"}),
        held_out=ss.TasksConfig(source=_TASKS, num=64, args={"seed": 2, "split": "held_out"}),
        model=ss.ModelConfig(
            kind="local",
            folder="smollm2",
            max_tokens=48,
            context_tokens=1_024,
            engine=ss.EngineConfig(num_slots=64),
        ),
        warm_start=ss.DemonstrationsConfig(
            source=f"{__name__}.demonstrations:demonstrations",
            args={"num": 128, "quality": 0.45},
            learning=ss.WarmStartConfig(num_epochs=1, tokens_per_step=4_096, learning_rate=1e-4),
        ),
        learner=ss.LearnerConfig(
            loss=ss.LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.28),
            learning_rate=1e-5,
            warmup_steps=2,
            num_minibatches=2,
        ),
        steps=4,
        groups=8,
        samples=8,
        eval_every=0,
    )

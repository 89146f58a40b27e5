"""Memory: a document that is too long for the window, read section by section with a summary in hand.

slipstream eval memory                                     # a scripted reader on generated documents
slipstream eval memory tasks=slipstream.recipes.memory.readers:ruler tasks.args.path=FILE model.kind=chat
slipstream train memory                                    # a small model learns it, on two cores
"""

from __future__ import annotations

import slipstream as ss

STEPS, GROUPS = 48, 16
NUM_WORDS = 8
"""Of the vocabulary of the small model: few enough for every line to be a token."""
EPOCHS, MINIBATCHES = 2, 4
AGENT = ss.AgentConfig(
    stuck=ss.StuckRules(idle_turns=2, same_turns=0, same_errors=2, alternations=0),
    out_of_turns="failed",
    cut_replies="failed",
)
"""Of the small model: babble ends a rollout, and its turns are counted out, so both are trained on."""

_NEEDLES = f"{__name__}.needles:needle_tasks"


def recipe() -> ss.EvalConfig:
    """Any model on long documents; without arguments a scripted reader on 24 generated ones of 64 sections."""
    return ss.EvalConfig(
        name="memory",
        tasks=ss.TasksConfig(source=_NEEDLES, num=24, args={"kind": "mixed", "sections": 64}),
        model=ss.ModelConfig(kind="scripted", script=f"{__name__}.policy:reader", max_tokens=1_024),
    )


def training() -> ss.TrainConfig:
    """A model of half a million weights learns to keep a memory over documents of four sections."""
    return _training("memory", window=False)


def window() -> ss.TrainConfig:
    """The same budget for a model that sees the whole document at once and keeps no memory."""
    return _training("memory-window", window=True)


def _training(name: str, *, window: bool) -> ss.TrainConfig:
    args: dict[str, ss.Json] = {"sections": 4, "words": NUM_WORDS, "window": window}
    return ss.TrainConfig(
        name=name,
        tasks=ss.TasksConfig(source=_NEEDLES, num=STEPS * GROUPS, args={"seed": 1, "split": "train", **args}),
        held_out=ss.TasksConfig(source=_NEEDLES, num=128, args={"seed": 2, "split": "held_out", **args}),
        model=ss.ModelConfig(
            kind="local",
            make=f"{__name__}.model:{'make_window_model' if window else 'make_model'}",
            family_args={"show_tools": False},
            max_tokens=16,
            context_tokens=512,
            engine=ss.EngineConfig(num_slots=64, num_threads=1),
        ),
        agent=AGENT,
        warm_start=ss.DemonstrationsConfig(
            source=f"{__name__}.model:demonstrations",
            args={"num": 800, "drills": 3_000, "quality": 0.25, "window": window},
            learning=ss.WarmStartConfig(num_epochs=14, tokens_per_step=1_300, learning_rate=4e-3, betas=(0.9, 0.98)),
        ),
        learner=ss.LearnerConfig(
            loss=ss.LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.2),
            learning_rate=9e-4,
            warmup_steps=5,
            decay_steps=STEPS * EPOCHS * MINIBATCHES,
            betas=(0.9, 0.95),
            adam_eps=1e-6,
            max_grad_norm=0.1,
            num_epochs=EPOCHS,
            num_minibatches=MINIBATCHES,
            num_threads=1,
        ),
        steps=STEPS,
        groups=GROUPS,
        samples=8,
        eval_every=16,
    )

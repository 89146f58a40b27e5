"""Deep research: search, read pages, answer. The sample is an invented encyclopedia, with a scripted agent."""

from __future__ import annotations

import slipstream as ss


def recipe() -> ss.EvalConfig:
    """Needs 90 MB for the encoder the first time."""
    return ss.EvalConfig(
        name="research",
        tasks=ss.TasksConfig(source=f"{__name__}.tasks:research_tasks", num=16),
        model=ss.ModelConfig(kind="scripted", script=f"{__name__}.solver:solver", max_tokens=1_024),
    )


STEPS, GROUPS = 48, 16
EPOCHS, MINIBATCHES = 2, 4
_LOOKUPS = f"{__name__}.lookups:lookup_tasks"


def lookups() -> ss.TrainConfig:
    """A model that is made here learns two-hop lookups in a generated corpus, first by example, then by reward."""
    return ss.TrainConfig(
        name="research",
        tasks=ss.TasksConfig(source=_LOOKUPS, num=STEPS * GROUPS, args={"seed": 1, "split": "train"}),
        held_out=ss.TasksConfig(source=_LOOKUPS, num=256, args={"seed": 2, "split": "held_out"}),
        model=ss.ModelConfig(
            kind="local",
            make=f"{__name__}.lookup_model:make_model",
            family_args={"show_tools": False},  # the model knows its tools by training
            max_tokens=24,
            context_tokens=384,
            engine=ss.EngineConfig(num_slots=64, num_threads=1),
        ),
        agent=ss.AgentConfig(
            stuck=ss.StuckRules(idle_turns=2, same_turns=0, alternations=0), out_of_turns="failed", cut_replies="failed"
        ),
        warm_start=ss.DemonstrationsConfig(
            source=f"{__name__}.lookup_model:demonstrations",
            args={"num": 3_000, "quality": 0.6},
            learning=ss.WarmStartConfig(num_epochs=8, tokens_per_step=2_000, learning_rate=4e-3, betas=(0.9, 0.98)),
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
            num_threads=2,
        ),
        steps=STEPS,
        groups=GROUPS,
        samples=8,
        eval_every=16,
    )

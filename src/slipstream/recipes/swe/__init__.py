"""Software engineering: fix a bug in a repository, with bash, an editor, code search and hints.

    slipstream tasks make toolz==1.0.0 --out DIR
    slipstream eval swe tasks=DIR model.base_url=http://localhost:8000/v1

The tools are those that each task names; made tasks name bash, edit, search and finish, and the smallest tier its own
short ones. `swe-1.5b` trains on a curriculum of levels, and `swe-levels` evaluates on each of them.
"""

from __future__ import annotations

import slipstream as ss

_PART = "made"
DEMONSTRATED = ("semver", "python-slugify")
"""Packages whose tasks `swe-1.5b` is shown before it learns by reward. It is not trained on them by reward."""
VALIDATION = ("inflection", "jmespath", "schema")
"""Packages that settings are chosen on. Those that no list names are trained on."""
HELD_OUT = ("munch", "sqlparse", "boltons", "addict", "voluptuous", "webcolors", "isodate", "xmltodict")
"""Packages that a finished model is measured on."""
AGENT = ss.AgentConfig(prompt="code", hints=ss.HintRules(on=True))
SHORT = ss.AgentConfig(prompt="code", hints=ss.HintRules(on=True), out_of_turns="failed")
"""Of the levels: their few turns are part of the task, or nothing would teach an agent not to dawdle."""
DISPATCH = ss.DispatchConfig(
    policy="adaptive",
    limits=ss.DispatchLimits(sandboxes=64),
    deadlines=ss.Deadlines(init_s=300, run_s=5_400, grade_s=6_000, job_s=14_400),
)


def _part(part: str, **args: ss.Json) -> ss.TasksConfig:
    """Tasks of some of the packages."""
    split: dict[str, ss.Json] = {"validation": list(VALIDATION), "held_out": list(HELD_OUT)}
    return ss.TasksConfig(source=_PART, args={"part": part, **split, **args})


def recipe() -> ss.EvalConfig:
    """Any model on any task set."""
    return ss.EvalConfig(
        name="swe", tasks=ss.TasksConfig(), model=ss.ModelConfig(kind="chat"), agent=AGENT, dispatch=DISPATCH
    )


def small() -> ss.TrainConfig:
    """The same agent at 135M on the local bridge, for tasks of the smallest tier. Name the folder of made tasks three
    times: `tasks.args.path=DIR held_out.args.path=DIR warm_start.args.path=DIR`."""
    return ss.TrainConfig(
        name="swe-135m",
        tasks=_part("train", tier="tiny"),
        held_out=_part("held_out", tier="tiny"),
        model=ss.ModelConfig(
            kind="local", folder="smollm2", max_tokens=256, context_tokens=4_096, engine=ss.EngineConfig(num_slots=16)
        ),
        agent=AGENT,
        warm_start=ss.DemonstrationsConfig(
            source=f"{__name__}.demonstrations:demonstrations",
            args=_part("train", tier="tiny").args,
            learning=ss.WarmStartConfig(num_epochs=6, tokens_per_step=4_096, learning_rate=1e-4),
        ),
        learner=ss.LearnerConfig(
            loss=ss.LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.28), learning_rate=1e-5, num_minibatches=2
        ),
        steps=8,
        groups=4,
        samples=4,
        eval_every=0,
    )


_TIERS: ss.Json = ["tiny", "easy"]
_CODER = ss.ModelConfig(
    kind="local",
    folder="qwen2.5-coder-1.5b",
    family="qwen2.5",
    template_mismatch="allow",  # its own template doubles the braces of the example call
    family_args={"bare_calls": True},
    temperature=0.8,
    max_tokens=512,
    context_tokens=4_096,
    engine=ss.EngineConfig(num_slots=128),
)
_ON_GPU = ss.DispatchConfig(
    policy="adaptive",
    limits=ss.DispatchLimits(sandboxes=160),
    deadlines=ss.Deadlines(init_s=120, run_s=600, grade_s=600, job_s=1_500),
    processes=10,
)


def measured(part: str) -> ss.TasksConfig:
    """The tasks of a part, each at every level."""
    return _part(part, tier=_TIERS, levels={"shown": 1, "named": 1, "search": 1})


def levels() -> ss.EvalConfig:
    """Qwen2.5-Coder-1.5B on the validation packages, each task at every level: `tasks.args.path=DIR`. Outcomes by
    level: `slipstream tasks outcomes RUN`."""
    return ss.EvalConfig(
        name="swe-levels",
        tasks=measured("validation"),
        model=_CODER,
        agent=SHORT,
        dispatch=_ON_GPU,
        samples=4,
    )


def coder() -> ss.TrainConfig:
    """Qwen2.5-Coder-1.5B on a mixture of levels, for one GPU of 80 GB, after a few demonstrations on packages of their
    own, without which it solves almost nothing (`docs/results.md`). Name the folder of made tasks three times:
    `tasks.args.path=DIR held_out.args.path=DIR warm_start.args.path=DIR`."""
    shown = {"demonstrated": list[ss.Json](DEMONSTRATED)}
    return ss.TrainConfig(
        name="swe-1.5b",
        tasks=_part("train", tier=_TIERS, levels={"shown": 1, "named": 0.5}, **shown),
        held_out=_part("validation", tier=_TIERS, levels={"shown": 1, "named": 1, "search": 1}, **shown),
        model=_CODER,
        agent=SHORT,
        dispatch=_ON_GPU,
        warm_start=ss.DemonstrationsConfig(
            source=f"{__name__}.demonstrations:demonstrations",
            args={
                **_part("demonstrated", tier=_TIERS, levels={"shown": 1, "named": 1}, **shown).args,
                "num": 100,
                "with_search": False,
            },
            learning=ss.WarmStartConfig(num_epochs=3, learning_rate=3e-4),
        ),
        learner=ss.LearnerConfig(
            method="lora",
            lora=ss.LoraConfig(rank=8, alpha=16),
            loss=ss.LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.28),
            learning_rate=1e-4,
            num_minibatches=2,
            betas=(0.9, 0.95),
            tokens_per_microbatch=8_192,
            gradient_checkpointing=True,
        ),
        steps=40,
        groups=16,
        samples=8,
        staleness=1,
        replace_flat=8,
        solve_rate=ss.SolveRateFilter(),
        eval_every=20,
        checkpoint_every=3,
    )

"""The settings of a run, as data. A recipe is a function that returns an EvalConfig; the command line changes it.

Nothing here imports a model, a sandbox or a trainer: `wiring` turns settings into live parts, late.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import JsonValue

from slipstream.agent.config import AgentConfig
from slipstream.dispatch.base import Deadlines, DispatchLimits, Retries
from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.training.config import LearnerConfig, WarmStartConfig, run_settings
from slipstream.errors import ConfigError
from slipstream.feed import SolveRateFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetConfig:
    """One set of a mixture. Its tasks bring their own tools, grader and limits."""

    MAIN: ClassVar[str] = "source"
    RESETS: ClassVar[Mapping[str, tuple[str, ...]]] = {"source": ("num", "args")}
    source: str = ""
    """As `tasks.source`."""
    num: int | None = None
    """How many of its tasks to use, from the first; null is all."""
    args: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keyword arguments for the function."""
    weight: float = 1.0
    """Its share of the tasks that are trained on, relative to the weights of the other sets. An evaluation runs all
    tasks of every set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    MAIN: ClassVar[str] = "source"
    """What `tasks=x` sets."""
    RESETS: ClassVar[Mapping[str, tuple[str, ...]]] = {"source": ("num", "args", "sets")}
    """Changing the source resets these to their defaults: their values were for the old one."""
    source: str = ""
    """A JSONL file, a folder that holds `tasks.jsonl`, or `package.module:function` (or `file.py:function`) that
    returns tasks; empty: no tasks, or those of `sets`. Changing it resets `num`, `args` and `sets` to their
    defaults."""
    num: int | None = None
    """How many of them to use, from the first; null is all."""
    args: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keyword arguments for the function: `tasks.args.seed=3`, `held_out.args.seed=4`."""
    sets: Mapping[str, TaskSetConfig] = field(default_factory=dict)
    """A mixture, in place of `source`: task sets by name, each with `source`, `num`, `args` and `weight`:
    `tasks.sets.math.source=gsm8k.jsonl`, `tasks.sets.math.weight=2`. Null removes a set."""

    @property
    def are_named(self) -> bool:
        return bool(self.source or self.sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesConfig:
    """What a model's tokens cost, by the million, in any currency; 0 for free."""

    prompt: float = 0.0
    """What a million prompt tokens cost, in any currency, for the cost in the report of an evaluation; 0 is free."""
    cached: float | None = None
    """The same for prompt tokens that the server had cached; null: as much as others."""
    sampled: float = 0.0
    """The same for sampled tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    kind: Literal["local", "tokens", "chat", "scripted"] = "chat"
    """`local`: the model in `folder`, run by the embedded engine. `tokens`: an OpenAI-compatible server that takes and
    returns token ids, as vLLM does; its rollouts can be trained on. `chat`: any OpenAI-compatible server; evaluation
    only. `scripted`: a script, for demos and tests."""
    base_url: str = "http://localhost:8000/v1"
    """The address of the server, for `tokens` and `chat`. Several servers of the same model are separated by commas."""
    name: str = ""
    """The model's name on the server; may be empty if the server lists just one (`/models`), and is needed if it has no
    such list."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key, if the server needs one."""
    extra_body: Mapping[str, JsonValue] = field(default_factory=dict)
    """Fields added to the body of every request to a server: `model.extra_body.reasoning_effort=low`,
    `model.extra_body.chat_template_kwargs.enable_thinking=false`. They override other fields; null removes a field."""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of every request to a server. A value `env:NAME` is read from that environment variable, so that no
    secret is recorded with the run."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """For `chat`: the name of the server's field for the maximum length of a reply."""
    resend_thinking: bool = False
    """For `chat`: send the thinking of earlier replies back, for models that think between tool calls."""
    folder: str = "bytes"
    """The model's folder, its tokenizer.json alone (for `tokens`), or the name of a fetched model; `bytes` is the
    tokenizer for scripted models."""
    family: str = "auto"
    """The chat format: a family of `docs/rendering.md`, `template` (the folder's own Jinja template), or a
    `module:Class` of your own; `auto` chooses by the model folder."""
    template_mismatch: Literal["stop", "allow"] = "stop"
    """What happens at the start if the family renders messages differently from the folder's own chat template."""
    family_args: Mapping[str, JsonValue] = field(default_factory=dict)
    """Extra variables for the family's template: `model.family_args.enable_thinking=false`."""
    thinking: Literal["auto", "keep", "template"] = "auto"
    """`keep`: thinking stays in the history, and a rollout stays one sample. `template`: it is left out where the
    family's own template leaves it out, and every such place is a fork. `auto`: as the model was trained, which its
    folder records; otherwise `keep`."""
    logprobs: Literal["processed", "raw", "none"] = "raw"
    """Which logprobs the server returns: vLLM returns raw ones unless started with `--logprobs-mode
    processed_logprobs`. `none`: it returns none."""
    script: str = ""
    """`package.module:function` that returns a script, for `scripted`."""
    script_args: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keyword arguments for that function: `model.script_args.quality=0.5`."""
    temperature: float = 1.0
    """The sampling temperature; 0 takes the likeliest token. The learner uses it too."""
    top_p: float = 1.0
    """Sample only from the likeliest tokens that make up this share of the probability, at most 1."""
    max_tokens: int | None = None
    """Maximum tokens of one reply; null: all that the window leaves. The agent is told if a reply was cut off."""
    context_tokens: int | None = None
    """The model's context window; null: the one of the server or of `model.engine`. A task's own limit applies if it is
    smaller."""
    timeout_s: float = 900.0
    """For one model call, retries included."""
    max_retries: int = 5
    """How often a failed model call is retried; 0: never."""
    prices: PricesConfig = PricesConfig()
    """For the cost in the report of an evaluation."""
    engine: EngineConfig = EngineConfig()
    """Of `local`."""
    make: str = ""
    """`package.module:function` that makes the model of a training run; it is called with the folder and the seed.
    Empty: the model is in `folder`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    provider: Literal["local", "oci"] = "local"
    """`local`: bubblewrap, on this machine. `oci`: podman or docker containers; a task's base is an image."""
    warm: int = 4
    """Sandboxes kept started for the next jobs; they count towards `dispatch.limits.sandboxes`. 0: none."""
    start_timeout_s: float = 60.0
    """How long a job waits for its sandbox to start; after that it is an infrastructure failure, and is retried."""
    engine: str = ""
    """For `oci`: `podman` or `docker`; empty: whichever is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    policy: Literal["batch", "bounded", "pipeline", "adaptive"] = "pipeline"
    """Which job may continue next. `batch`: everything at once. `bounded`: a slot for each job, from its sandbox to its
    grade. `pipeline`: workers for each stage. `adaptive`: by the room in the engine's cache, with no number to tune."""
    slots: int = 32
    """Jobs in flight under `bounded`; workers of each stage under `pipeline`. `batch` and `adaptive` do not use it."""
    limits: DispatchLimits = DispatchLimits(sandboxes=64)
    """Not for `batch`, which has none by definition."""
    deadlines: Deadlines = Deadlines()
    retries: Retries = Retries()
    processes: int = 0
    """Helper processes for agents, tools, sandboxes and graders; the model, the learner and the run store stay in the
    main process (but see `model.engine.process`). 0: everything runs in the main process. Helpers pay off if many cores
    wait for one Python process, as beside a GPU (`docs/dispatch.md`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    MAIN: ClassVar[str] = "every_s"
    every_s: float = 0.5
    """Time between two samples of GPU and CPU utilisation; 0: no samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    name: str
    """The start of the run folder's name."""
    tasks: TasksConfig
    model: ModelConfig = ModelConfig()
    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    dispatch: DispatchConfig = DispatchConfig()
    hardware: HardwareConfig = HardwareConfig()
    samples: int = 1
    """Rollouts of each task; a training run needs at least 2."""
    seed: int = 0
    """Any whole number. It determines everything random in a run: the order of training tasks, sampling, and what is
    made for the run."""
    solved_at: float = 1.0
    """The reward from which a rollout counts as a success, in pass@k and on held-out tasks; any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationsConfig:
    """Learning by example, before learning by reward."""

    RESETS: ClassVar[Mapping[str, tuple[str, ...]]] = {"source": ("args",)}
    source: str = ""
    """`package.module:function` that returns demonstrations: samples whose mask says what to imitate. It is called with
    the model's folder and the seed. Empty: no warm start."""
    args: Mapping[str, JsonValue] = field(default_factory=dict)
    """More keyword arguments for that function."""
    learning: WarmStartConfig = WarmStartConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerConfig:
    """Of `bridge=tinker`."""

    timeout_s: float = 1_800.0
    """For one request, except sampling, which `model.timeout_s` limits. A server may compile before it answers."""
    overlap: bool = False
    """Sample while an update is in progress, for a server that keeps the weights it samples from separate from those it
    trains. Otherwise rollouts wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    name: str
    """The start of the run folder's name."""
    tasks: TasksConfig
    held_out: TasksConfig = TasksConfig()
    """Never trained on; evaluated before, after and every `eval_every` steps."""
    model: ModelConfig = ModelConfig(kind="local")
    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    dispatch: DispatchConfig = DispatchConfig()
    hardware: HardwareConfig = HardwareConfig()
    bridge: Literal["local", "tinker"] = "local"
    """What trains and samples. `local`: the embedded learner and engine. `tinker`: a server of the Tinker API
    (`docs/bridges.md`)."""
    base_url: str = ""
    """The address of the Tinker server: `http://127.0.0.1:8000`. Empty with `bridge=tinker`: the service of the SDK's
    makers."""
    tinker: TinkerConfig = TinkerConfig()
    learner: LearnerConfig = run_settings()
    warm_start: DemonstrationsConfig = DemonstrationsConfig()
    steps: int = 100
    """Updates of the policy; 0: only a warm start and an evaluation, if the run has them."""
    groups: int = 16
    """Tasks per step; each has a group of `samples` rollouts."""
    samples: int = 8
    """Rollouts of each task; a training run needs at least 2."""
    advantages: Literal["leave_one_out", "grpo", "grpo_sample", "dr_grpo", "reinforce"] = "leave_one_out"
    """What a reward is compared with. `leave_one_out`: the mean of the others in its group. `grpo`: its group's mean,
    divided by the group's standard deviation. `grpo_sample`: the same with the sample standard deviation. `dr_grpo`:
    its group's mean, undivided. `reinforce`: the mean of the whole batch."""
    staleness: int = 0
    """How many versions behind its update a rollout may begin. 0: on policy, so sampling and updates alternate. Above
    0: rollouts continue while the learner works."""
    max_sample_tokens: int | None = None
    """Longer samples are cut between turns; null: never."""
    solve_rate: SolveRateFilter | None = None
    oversample: int = 0
    """Extra rollouts of each task, besides `samples`. The first `samples` with a verdict are trained on and the others
    are cancelled, which favours short rollouts. 0: none."""
    carry: bool = False
    """With `oversample`: cancel nothing. Rollouts still running when every group has its `samples` count for the next
    step, so `staleness` must allow for it."""
    replace_flat: int = 0
    """Maximum groups per step that are replaced by a fresh task because their rewards are all equal; 0: none."""
    eval_every: int = 0
    """Steps between evaluations; 0: only before and after the run."""
    eval_samples: int = 1
    """Rollouts of each held-out task."""
    solved_at: float = 1.0
    """The reward from which a rollout counts as a success, in pass@k and on held-out tasks; any number."""
    checkpoint_every: int = 1
    """Steps between checkpoints of the learner. The last step always has one."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints are kept."""
    deterministic: bool = False
    """A killed and resumed run ends with the same weights as an uninterrupted one, if the tools answer the same every
    time. Slower, and on policy only."""
    shuffle_rewards: bool = False
    """A control: rewards are shuffled among the rollouts of a batch."""
    controls: bool = False
    """After the run, two controls: the warm start continued for as long, and a run with shuffled rewards."""
    tensorboard: bool = False
    """Also write the metrics of every step and evaluation for TensorBoard, in the run's folder."""
    seed: int = 0
    """Any whole number. It determines everything random in a run: the order of training tasks, sampling, and what is
    made for the run."""


_FROM_ZERO = frozenset(
    {
        *("model.temperature", "model.max_retries", "dispatch.deadlines.grace_s", "steps", "staleness", "eval_every"),
        *("model.prices.prompt", "model.prices.cached", "model.prices.sampled"),
        *("oversample", "replace_flat", "hardware.every_s", "dispatch.processes", "sandbox.warm"),
        *("agent.stuck.same_turns", "agent.stuck.same_errors", "agent.stuck.idle_turns", "agent.stuck.alternations"),
        *(
            "learner.weight_decay",
            "learner.warmup_steps",
            "learner.decay_steps",
            "learner.loss.entropy_bonus",
            "learner.loss.kl",
            "warm_start.learning.warmup_steps",
            "solve_rate.above",
        ),
    }
)
_ANY = frozenset({"seed", "solved_at", "warm_start.learning.seed"})


RunConfig: TypeAlias = EvalConfig | TrainConfig


def check_settings(config: RunConfig) -> None:
    """Refuse a number that no run can use. All must be above 0, with a few exceptions."""
    for key, value in _numbers(config, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError.setting(key, value, "give a finite number")
        if key not in _ANY and value < 0:
            raise ConfigError.setting(key, value, f"give a number {'from' if key in _FROM_ZERO else 'above'} 0")
        if key not in _ANY | _FROM_ZERO and value == 0:
            raise ConfigError.setting(key, 0, "give a number above 0")
    if config.model.top_p > 1:
        raise ConfigError.setting("model.top_p", config.model.top_p, "give a probability, at most 1")
    if isinstance(config, TrainConfig):
        _check_training(config)


def _check_training(config: TrainConfig) -> None:
    if config.model.kind != "local":
        raise ConfigError.setting(
            "model.kind",
            config.model.kind,
            "`train` updates the weights in model.folder, so set it to local; a model that the embedded engine does "
            "not run is trained with bridge=tinker, or inside verl or SkyRL (docs/bridges.md)",
            "model.kind=local",
        )
    if config.bridge == "tinker":
        _check_tinker(config)
    elif config.base_url:
        raise ConfigError.setting(
            "base_url",
            config.base_url,
            f"bridge={config.bridge} has no server; did you mean bridge=tinker?",
            "bridge=tinker",
        )
    if config.model.top_p < 1:
        raise ConfigError.setting(
            "model.top_p",
            config.model.top_p,
            "training needs the logprobs of what was sampled from, so set it to 1",
            "model.top_p=1",
        )
    if config.model.temperature == 0:
        raise ConfigError.setting(
            "model.temperature", 0, "training needs something to choose from, so set it above 0", "model.temperature=1"
        )
    _check_decided(config)
    if config.samples < 2:
        raise ConfigError.setting(
            "samples", config.samples, "a baseline needs at least two rollouts of a task", "samples=2"
        )
    _check_group_rules(config)
    if config.controls and not config.held_out.are_named:
        raise ConfigError.setting(
            "controls",
            True,
            "controls are compared on held-out tasks, so set held_out.source, or controls=false",
            "controls=false",
        )
    if config.deterministic and config.staleness:
        raise ConfigError.setting(
            "staleness", config.staleness, "a deterministic run is on policy, so set it to 0", "staleness=0"
        )


def _check_decided(config: TrainConfig) -> None:
    """Refuse a different value for a setting that another one decides."""
    learner, warm = config.learner, config.warm_start.learning
    decided = [
        ("learner.temperature", learner.temperature, "model.temperature", config.model.temperature, LearnerConfig()),
        ("warm_start.learning.seed", warm.seed, "seed", config.seed, WarmStartConfig()),
    ]
    for key, value, by, needed, defaults in decided:
        if value not in (needed, getattr(defaults, key.rpartition(".")[2])):
            raise ConfigError.setting(
                key,
                value,
                f"{by} decides it, so leave it out, or set {by}, which is {needed}",
                f"{key}={needed}",
                f"{by}={value}",
            )


def _check_tinker(config: TrainConfig) -> None:
    """Refuse what the Tinker API cannot do."""
    learner, default = config.learner, LearnerConfig()
    refused = [
        ("model.temperature", config.model.temperature, 1.0, "its losses support no other"),
        ("deterministic", config.deterministic, False, "Slipstream does not control what the server does"),
        ("learner.recompute_proximal", learner.recompute_proximal, False, "ratios are to the sampled logprobs"),
        ("learner.decay", learner.decay, default.decay, "the schedule sent to it falls linearly"),
        *(
            (f"learner.loss.{name}", getattr(learner.loss, name), getattr(default.loss, name), "the server decides it")
            for name in (
                "normaliser",
                "dual_clip",
                "weight_rule",
                "weight_level",
                "weight_floor",
                "entropy_bonus",
                "kl",
            )
        ),
        ("learner.lora.alpha", learner.lora.alpha, default.lora.alpha, "the server decides it"),
        ("learner.lora.targets", learner.lora.targets, default.lora.targets, "the server decides them"),
    ]
    for key, value, needed, why in refused:
        if value != needed:
            raise ConfigError.setting(key, value, f"bridge=tinker takes {needed} alone, since {why}", f"{key}={needed}")
    if learner.loss.kind in ("sequence", "cispo"):
        raise ConfigError.setting(
            "learner.loss.kind", learner.loss.kind, "bridge=tinker has importance_sampling and ppo_clip"
        )


def _check_group_rules(config: TrainConfig) -> None:
    if config.deterministic and config.oversample:
        raise ConfigError.setting(
            "oversample",
            config.oversample,
            "which rollouts come first differs from run to run, so set it to 0, or deterministic=false",
            "oversample=0",
            "deterministic=false",
        )
    if config.carry and not config.oversample:
        raise ConfigError.setting(
            "carry", True, "it needs rollouts in addition to `samples`, so set oversample above 0", "oversample=1"
        )
    if config.carry and not config.staleness:
        raise ConfigError.setting(
            "carry",
            True,
            "what is carried over is a version old at its update, so set staleness to 1 or more",
            "staleness=1",
        )
    if config.carry and config.replace_flat:
        raise ConfigError.setting(
            "replace_flat",
            config.replace_flat,
            "with carry=true a group may get its signal a step later, so set replace_flat to 0",
            "replace_flat=0",
        )
    if config.replace_flat and config.advantages == "reinforce":
        raise ConfigError.setting(
            "replace_flat",
            config.replace_flat,
            "advantages=reinforce learns from such groups too, so set it to 0",
            "replace_flat=0",
        )


def _numbers(group: Any, prefix: str) -> Iterator[tuple[str, int | float]]:
    """Every number in a dataclass and those within it, by its dotted key."""
    for item in dataclasses.fields(group):
        value = getattr(group, item.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{item.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{item.name}", value

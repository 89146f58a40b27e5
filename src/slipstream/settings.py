"""The settings of a run, as data. A recipe is a function that returns an EvalConfig; the command line changes it.

Nothing here imports a model, a sandbox or a trainer: `wiring` turns settings into live parts, late.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from slipstream.dispatch.base import Deadlines, Limits, Retries
from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    source: str = ""
    """A JSONL file, or `package.module:function` (or `file.py:function`) that returns tasks."""
    num: int | None = None
    """How many of them; None is all."""
    args: Mapping[str, JsonValue] = field(default_factory=dict)
    """Handed to the function: `tasks.args.seed=3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    kind: Literal["scripted", "tokens", "chat"] = "chat"
    """`tokens`: an OpenAI-compatible server that takes and returns token ids, as vLLM does; what is recorded can be
    trained on. `chat`: any OpenAI-compatible server; evaluation only. `scripted`: a script, for demos and tests."""
    base_url: str = "http://localhost:8000/v1"
    name: str = ""
    """The model's name on the server; empty if it serves just one."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key, if the server wants one."""
    tokenizer: str = "bytes"
    """A model folder, a tokenizer.json or the name of a fetched model, for `tokens`; `bytes` is the built-in one of
    scripts."""
    family: str = "auto"
    """The chat format: `chatml`, `gpt-oss`, a name of the `renderers` library, or `module:Class` of one's own; `auto`
    goes by the model folder."""
    family_args: Mapping[str, JsonValue] = field(default_factory=dict)
    """What the family's template takes besides: `model.family_args.enable_thinking=false`."""
    thinking: Literal["keep", "template"] = "keep"
    """`keep`: thinking stays in the history, and a rollout stays one sample. `template`: it is left out where the
    family's own template does that, and every such place is a fork."""
    logprobs: Literal["processed", "raw", "none"] = "raw"
    """What the server's logprobs are: vLLM reports raw ones unless started with `--logprobs-mode
    processed_logprobs`."""
    script: str = ""
    """`package.module:function` that returns a script, for `scripted`."""
    script_args: Mapping[str, JsonValue] = field(default_factory=dict)
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4_096
    """Of one reply."""
    context_tokens: int | None = None
    """The model's window; a task's own limit holds if it is smaller."""
    timeout_s: float = 900.0
    """Of one call, its retries included."""
    max_retries: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    provider: Literal["local"] = "local"
    start_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    policy: Literal["batch", "bounded", "pipeline"] = "pipeline"
    slots: int = 32
    """Jobs in flight under `bounded`; workers of each stage under `pipeline`."""
    limits: Limits = Limits(sandboxes=64)
    """Not for `batch`, which has none by definition."""
    deadlines: Deadlines = Deadlines()
    retries: Retries = Retries()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    name: str
    tasks: TasksConfig
    model: ModelConfig = ModelConfig()
    sandbox: SandboxConfig = SandboxConfig()
    dispatch: DispatchConfig = DispatchConfig()
    samples: int = 1
    """Rollouts of each task."""
    seed: int = 0
    solved_at: float = 1.0
    """The reward from which a rollout counts as a success, for pass@k."""


_FROM_ZERO = frozenset({"model.temperature", "model.max_retries", "dispatch.deadlines.grace_s"})
_ANY = frozenset({"seed", "solved_at"})


def check_settings(config: EvalConfig) -> None:
    """Refuse a number that no run can go by. All must be above 0, but for a few."""
    for key, value in _numbers(config, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value}: give a finite number")
        if key not in _ANY and value < 0:
            raise ConfigError(f"{key}={value}: give a number {'from' if key in _FROM_ZERO else 'above'} 0")
        if key not in _ANY | _FROM_ZERO and value == 0:
            raise ConfigError(f"{key}=0: give a number above 0")
    if config.model.top_p > 1:
        raise ConfigError(f"model.top_p={config.model.top_p}: give a probability, at most 1")


def _numbers(group: Any, prefix: str) -> Iterator[tuple[str, int | float]]:
    """Every number in a dataclass and those within it, by its dotted key."""
    for item in dataclasses.fields(group):
        value = getattr(group, item.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{item.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{item.name}", value

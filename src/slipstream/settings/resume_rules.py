"""Which settings of a run may change when it is resumed.

Input: the settings a run has and those requested on resume. Output: the changes, or a ConfigError that names every
setting that may not change, with both values. `RULES` has a rule for every setting; `docs/resume.md` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipstream.config import leaves
from slipstream.errors import ConfigError
from slipstream.settings import EvalConfig, TrainConfig
from slipstream.types import Json


class Rule(StrEnum):
    FREE = "may change"
    ROUNDING = "may change, unless the run is deterministic"
    """It decides memory or speed; results differ in rounding at most."""
    FIXED = "may not change"
    """Another value would change the results of the run, or mix two experiments in one store."""


def _same(rule: Rule, *keys: str) -> dict[str, Rule]:
    return dict.fromkeys(keys, rule)


RULES: Mapping[str, Rule] = {
    **_same(
        Rule.FREE,
        *("model.base_url", "model.api_key_env", "model.template_mismatch", "model.timeout_s", "model.max_retries"),
        *("model.extra_headers", "model.max_tokens_field"),
        *("base_url", "tinker.timeout_s"),
        *("sandbox.warm", "sandbox.start_timeout_s", "sandbox.engine"),
        *("dispatch.*", "hardware.*", "tensorboard"),
        *("eval_every", "checkpoint_every", "keep_checkpoints", "controls", "learner.process", "steps"),
        "model.engine.process",
        "model.prices.*",
    ),
    **_same(
        Rule.ROUNDING,
        *("model.engine.num_slots", "model.engine.prefill_tokens", "model.engine.steps_ahead"),
        *("model.engine.kernels", "model.engine.num_threads"),
        *("learner.tokens_per_microbatch", "learner.gradient_checkpointing", "learner.num_threads"),
    ),
    **_same(
        Rule.FIXED,
        *("name", "tasks.*", "held_out.*", "seed", "samples", "solved_at", "agent.*", "sandbox.provider"),
        *("model.kind", "model.name", "model.folder", "model.make", "model.script", "model.script_args"),
        *("model.family", "model.family_args", "model.thinking", "model.logprobs"),
        *("model.extra_body", "model.resend_thinking"),
        *("model.temperature", "model.top_p", "model.max_tokens", "model.context_tokens"),
        *("model.engine.context_tokens", "model.engine.device", "model.engine.dtype"),
        *("model.engine.deterministic", "model.engine.on_update"),
        *("bridge", "tinker.overlap", "warm_start.*"),
        *("learner.method", "learner.lora.*", "learner.loss.*", "learner.temperature", "learner.learning_rate"),
        *("learner.warmup_steps", "learner.decay_steps", "learner.decay", "learner.betas", "learner.adam_eps"),
        *("learner.weight_decay", "learner.max_grad_norm", "learner.num_epochs", "learner.num_minibatches"),
        *("learner.recompute_proximal", "learner.compute"),
        *("groups", "advantages", "staleness", "max_sample_tokens", "solve_rate.*"),
        *("oversample", "carry", "replace_flat", "eval_samples", "deterministic", "shuffle_rewards"),
    ),
}
"""By dotted key; `group.*` is every setting of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    key: str
    was: Json
    now: Json

    def __str__(self) -> str:
        return f"{self.key} was {self.was!r}, now {self.now!r}"


def rules_of(key: str) -> list[str]:
    """The keys of `RULES` that a setting falls under: exactly one, as a test checks."""
    return [each for each in RULES if each == key or (each.endswith(".*") and f"{key}.".startswith(each[:-1]))]


def check_changes(before: EvalConfig | TrainConfig, asked: EvalConfig | TrainConfig, *, run: str) -> tuple[Change, ...]:
    """What differs between the settings of a run and those requested. Raises ConfigError if one may not change."""
    changes = tuple(_changes(before, asked))
    refused = [reason for change in changes if (reason := _refusal(change, before)) is not None]
    if refused:
        raise ConfigError(f"the run {run} keeps its settings: {'; '.join(refused)}; leave that out, or start a new run")
    return changes


def _refusal(change: Change, before: EvalConfig | TrainConfig) -> str | None:
    (key,) = rules_of(change.key)
    attempted = f"{change.key} was {change.was!r} and cannot become {change.now!r}"
    match RULES[key]:
        case Rule.FIXED:
            return f"{attempted}, which would change its results"
        case Rule.ROUNDING if _is_deterministic(before):
            return f"{attempted}: the run is deterministic, and would end with other bits"
        case _:
            return None


def _is_deterministic(config: EvalConfig | TrainConfig) -> bool:
    return config.model.engine.deterministic or (isinstance(config, TrainConfig) and config.deterministic)


def _changes(before: object, asked: object) -> Iterator[Change]:
    was, now = dict(leaves(before)), dict(leaves(asked))
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key):
            yield Change(key=key, was=was.get(key), now=now.get(key))

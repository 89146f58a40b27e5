"""From verl's configuration to a Driver.

Input: the whole Hydra config, whose `slipstream` group names the recipe, its overrides and the folder of its runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.bridges.driven import PASS_THROUGH, Driver, check_version, driven_settings
from slipstream.bridges.verl.client import make_completer
from slipstream.errors import ConfigError
from slipstream.settings import TrainConfig

VERSION = "0.9.1"

SEAM = {
    "verl.experimental.agent_loop.agent_loop:AgentLoopOutput": (
        "prompt_ids",
        "response_ids",
        "response_mask",
        "response_logprobs",
        "reward_score",
        "extra_fields",
    ),
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ.__ray_actor_class__._agent_loop_postprocess": (
        "validate",
        "kwargs",
    ),
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.generate_sequences": ("prompts",),
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._update_actor": ("batch", "metrics"),
}
"""What of verl the bridge gives, takes and overrides."""

SEVERAL_ROWS = (PASS_THROUGH, "grpo")
"""Estimators that count a rollout once, however many rows it has."""


def check_config(config: Any) -> None:
    """Refuse settings of verl's that cannot work with this bridge. (Any: an omegaconf DictConfig.)"""
    check_version("verl", VERSION, SEAM)
    rollout = config.actor_rollout_ref.rollout
    if not rollout.calculate_log_probs:
        raise ConfigError(
            "actor_rollout_ref.rollout.calculate_log_probs=false: training needs the logprobs of what was sampled, so "
            "set it to true"
        )
    if rollout.get("logprobs_mode", "processed_logprobs") != "processed_logprobs":
        raise ConfigError(
            f"actor_rollout_ref.rollout.logprobs_mode={rollout.logprobs_mode}: training needs those of the "
            "distribution that was sampled from, so set it to processed_logprobs"
        )
    if config.algorithm.adv_estimator == PASS_THROUGH and config.algorithm.use_kl_in_reward:
        raise ConfigError(
            "algorithm.use_kl_in_reward=true: advantages that are passed through have no reward to take it from, so "
            "use actor_rollout_ref.actor.use_kl_loss=true"
        )
    if config.get("slipstream") is None or not config.slipstream.get("recipe"):
        raise ConfigError("slipstream.recipe is not set: name a recipe, or file.py:function")


def settings_of(config: Any) -> TrainConfig:
    """The recipe's settings, with verl's model and window."""
    rollout = config.actor_rollout_ref.rollout
    window = rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length
    return driven_settings(
        config.slipstream.recipe,
        list(config.slipstream.get("set") or ()),
        tasks=config.slipstream.get("tasks"),
        model_folder=config.actor_rollout_ref.model.path,
        context_tokens=int(window),
    )


def make_driver(config: Any, client: Any, tokenizer: Any) -> Driver:
    check_config(config)
    settings = settings_of(config)
    return Driver(
        settings,
        make_completer(client, config.actor_rollout_ref.rollout),
        folder=Path(config.slipstream.get("folder") or f"runs/verl-{settings.name}"),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def task_id_of(row: Any) -> str:
    """Of a row of the trainer's data file."""
    found = (row.get("extra_info") or {}).get("task_id")
    if not found:
        raise ConfigError("a row of data.train_files has no extra_info.task_id: write the files with write_prompts")
    return str(found)

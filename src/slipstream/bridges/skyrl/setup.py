"""SkyRL-train's configuration with a group of ours, and from it to a generator.

Its configuration is built from the annotations of dataclasses, as types: this file cannot postpone them.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, List, Optional  # noqa: UP035  as SkyRL-train's own reader of annotations takes them

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.config.config import BaseConfig

from slipstream.bridges.driven import PASS_THROUGH, Driver, check_version, driven_settings
from slipstream.bridges.skyrl.client import make_completer
from slipstream.bridges.skyrl.generator import SlipstreamGenerator
from slipstream.errors import ConfigError
from slipstream.settings import TrainConfig

VERSION = "0.4.0"

SEAM = {
    "skyrl.train.generators.base:GeneratorInput": ("trajectory_ids", "env_extras", "batch_metadata", "sampling_params"),
    "skyrl.train.generators.base:GeneratorOutput": (
        "prompt_token_ids",
        "response_ids",
        "rewards",
        "loss_masks",
        "stop_reasons",
        "rollout_logprobs",
        "trajectory_ids",
        "is_last_step",
    ),
    "skyrl.backends.skyrl_train.inference_servers.base:InferenceEngineInput": (
        "prompt_token_ids",
        "session_ids",
        "sampling_params",
        "cache_salt",
    ),
    "skyrl.train.trainer:RayPPOTrainer.convert_to_training_input": ("generator_output", "uids"),
    "skyrl.train.trainer:RayPPOTrainer._normalize_advantages": ("data", "mini_batch_boundaries", "prompt_boundaries"),
    "skyrl.train.trainer:RayPPOTrainer.train_critic_and_policy": ("data",),
}
"""What of SkyRL-train the bridge gives, takes and overrides."""


@dataclass
class SlipstreamSection(BaseConfig):  # type: ignore[misc]  # skyrl is not typed
    recipe: str = ""
    """A recipe's name, or file.py:function."""
    tasks: Optional[str] = None  # noqa: UP045
    """Tasks in place of the recipe's: a JSONL file, or package.module:function."""
    set: List[str] = field(default_factory=list)  # noqa: UP006
    """Changes to its settings: `slipstream.set='[dispatch.slots=64]'`."""
    folder: Optional[str] = None  # noqa: UP045
    """Where its runs are recorded, a folder for each session; by default runs/skyrl-NAME."""
    observe: Optional[str] = None  # noqa: UP045
    """A file that gets, for each step, what the trainer computed beside what it was given."""


@dataclass
class SlipstreamTrainConfig(SkyRLTrainConfig):  # type: ignore[misc]
    slipstream: SlipstreamSection = field(default_factory=SlipstreamSection)


def check_config(cfg: Any) -> None:
    """Refuse settings of SkyRL-train's that cannot work with this bridge."""
    check_version("skyrl", VERSION, SEAM)
    if not cfg.slipstream.recipe:
        raise ConfigError("slipstream.recipe is not set: name a recipe, or file.py:function")
    if cfg.trainer.algorithm.advantage_estimator == PASS_THROUGH and cfg.trainer.algorithm.use_kl_in_reward:
        raise ConfigError(
            "trainer.algorithm.use_kl_in_reward=true: advantages that are passed through have no reward to take it "
            "from, so use trainer.algorithm.use_kl_loss=true"
        )
    if cfg.trainer.algorithm.advantage_batch_normalize:
        raise ConfigError(
            "trainer.algorithm.advantage_batch_normalize=true: its mean counts rollouts that are not learnt from, so "
            "set it to false"
        )
    sampling = cfg.generator.sampling_params
    if sampling.logprobs is None:
        raise ConfigError("generator.sampling_params.logprobs is none: training needs them, so set it to 1")
    is_plain = sampling.temperature == 1 and sampling.top_p == 1 and sampling.top_k == -1 and sampling.min_p == 0
    if not is_plain and cfg.generator.inference_engine.engine_init_kwargs.get("logprobs_mode") != "processed_logprobs":
        raise ConfigError(
            f"generator.sampling_params.temperature={sampling.temperature}, top_p={sampling.top_p}: vLLM reports "
            "logprobs from before them, so set "
            "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs"
        )
    if cfg.generator.merge_stepwise_output:
        raise ConfigError("generator.merge_stepwise_output=true: rows are merged already, so set it to false")


def settings_of(cfg: Any) -> TrainConfig:
    """The recipe's settings, with SkyRL-train's model and window."""
    window = cfg.generator.max_input_length + cfg.generator.sampling_params.max_generate_length
    return driven_settings(
        cfg.slipstream.recipe,
        list(cfg.slipstream.set),
        tasks=cfg.slipstream.tasks,
        model_folder=cfg.trainer.policy.model.path,
        context_tokens=int(window),
    )


def runs_folder(cfg: Any, settings: TrainConfig) -> Path:
    return Path(cfg.slipstream.folder or f"runs/skyrl-{settings.name}")


def make_generator(cfg: Any, tokenizer: Any, client: Any, *, model: str | None = None) -> SlipstreamGenerator:
    check_config(cfg)
    settings = settings_of(cfg)
    driver = Driver(
        settings,
        make_completer(client, model=model, salted=cfg.generator.use_cache_salt),
        folder=runs_folder(cfg, settings),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )
    return SlipstreamGenerator(
        driver,
        step_wise=cfg.generator.step_wise_trajectories,
        passes_through=cfg.trainer.algorithm.advantage_estimator == PASS_THROUGH,
    )

"""Start SkyRL-train with rollouts by Slipstream.

    python -m slipstream.bridges.skyrl.main config=swe_32b slipstream.tasks=tasks.jsonl
    python -m slipstream.bridges.skyrl.main slipstream.recipe=quickstart trainer.policy.model.path=MODEL ...

With `--plan` everything is checked and nothing is started, which needs no GPU.
Settings are SkyRL-train's, over those of a file: `config` is its path, or a name in `config/`; `${...}` is another
setting that is given. Data files are written from the recipe's tasks unless `data.train_data` names some.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray
from skyrl.utils.tok import get_tokenizer

from slipstream.bridges.driven import PASS_THROUGH, write_prompts
from slipstream.bridges.skyrl.advantage import register
from slipstream.bridges.skyrl.observe import ObservedTrainer
from slipstream.bridges.skyrl.setup import (
    SlipstreamTrainConfig,
    check_config,
    make_generator,
    runs_folder,
    settings_of,
)
from slipstream.bridges.skyrl.trainer import SlipstreamTrainer
from slipstream.errors import ConfigError

CONFIGS = Path(__file__).parent / "config"
DEFAULTS = {
    # Advantages are made by Slipstream, from trusted rollouts alone, and passed through.
    "trainer.algorithm.advantage_estimator": PASS_THROUGH,
    "generator.step_wise_trajectories": True,
    # Only says that there is more than one: the number is the agent's own limit.
    "generator.max_turns": 50,
}


_PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


class SlipstreamExp(BasePPOExp):  # type: ignore[misc]  # skyrl is not typed
    def get_train_dataset(self) -> Any:
        if self.tokenizer.chat_template is None:
            # Prompts are rendered by Slipstream: SkyRL-train only wants to know how long the tasks are.
            self.tokenizer.chat_template = _PLAIN_TEMPLATE
        return super().get_train_dataset()

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        return make_generator(cfg, tokenizer, inference_engine_client, model=resolve_policy_model_name(cfg))

    def get_trainer(self, *given: Any, **named: Any) -> Any:
        return (ObservedTrainer if self.cfg.slipstream.observe else SlipstreamTrainer)(*given, **named)


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator]
def entrypoint(cfg: Any) -> None:
    register()
    SlipstreamExp(cfg).run()


def read_config(arguments: Sequence[str]) -> Any:
    """The configuration, checked; data files are written if none are named."""
    given: dict[str, Any] = dict(DEFAULTS)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError(f'"{argument}" is not a setting: write key=value')
        given |= dict(_flat(_read(value))) if key == "config" else {key: _parsed(value)}
    names_data = "data.train_data" in given
    cfg = SlipstreamTrainConfig.from_cli_overrides(_resolved(given))
    check_config(cfg)
    register()
    if not names_data:
        settings = settings_of(cfg)
        train, held_out = write_prompts(settings, (runs_folder(cfg, settings) / "data").absolute())
        cfg.data.train_data, cfg.data.val_data = [str(train)], [str(held_out)] if held_out else []
    validate_cfg(cfg)
    return cfg


def _read(name: str) -> Any:
    path = Path(name) if Path(name).is_file() else CONFIGS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in CONFIGS.glob("*.yaml")))
        raise ConfigError(f"config={name}: there is no such file; those that ship are {known}")
    return OmegaConf.to_container(OmegaConf.load(path))


def _resolved(given: dict[str, Any]) -> dict[str, Any]:
    settings = OmegaConf.create()
    for key, value in given.items():
        OmegaConf.update(settings, key, value)
    try:
        return dict(_flat(OmegaConf.to_container(settings, resolve=True)))
    except InterpolationResolutionError as raised:
        raise ConfigError(f"a setting refers to another that is not given: {str(raised).splitlines()[0]}") from raised


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parsed(value: str) -> Any:
    return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]))["value"]


def plan(cfg: Any) -> str:
    """What a checked configuration will do. Loads tasks and tokenizer, and starts nothing."""
    tokenizer = get_tokenizer(cfg.trainer.policy.model.path, trust_remote_code=True)
    placement, engine = cfg.trainer.placement, cfg.generator.inference_engine
    training = placement.policy_num_nodes * placement.policy_num_gpus_per_node
    per_engine = engine.tensor_parallel_size * engine.pipeline_parallel_size * engine.data_parallel_size
    sampling = engine.num_engines * per_engine
    gpus = f"{training}, which sample too" if placement.colocate_all else f"{training}, and {sampling} that sample"
    return (
        f"{make_generator(cfg, tokenizer, None).driver.plan}\n"
        f"SkyRL-train: {cfg.trainer.train_batch_size} prompts of {cfg.generator.n_samples_per_prompt} rollouts a step; "
        f"GPUs that train: {gpus}"
    )


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--plan"]
    cfg = read_config(arguments)
    if len(arguments) < len(sys.argv) - 1:
        sys.stdout.write(plan(cfg) + "\n")
        return
    initialize_ray(cfg)
    ray.get(entrypoint.remote(cfg))


if __name__ == "__main__":
    main()

"""Start verl's own trainer with rollouts by Slipstream.

    python -m slipstream.bridges.verl.main slipstream.recipe=quickstart \\
        actor_rollout_ref.model.path=MODEL data.train_batch_size=16 actor_rollout_ref.rollout.n=8

With `slipstream.plan=true` everything is checked and nothing is started, which needs no GPU.
Settings are verl's, over those of `config/slipstream.yaml`; data files are written from the recipe's tasks unless they
are named.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hydra
import ray
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import hf_tokenizer
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from slipstream.bridges.driven import write_prompts
from slipstream.bridges.verl.advantage import register
from slipstream.bridges.verl.observe import ObservedRunner
from slipstream.bridges.verl.setup import check_config, make_driver, settings_of


def prepare(config: Any) -> None:
    """Check the settings and write the data files that they do not name."""
    check_config(config)
    register()
    settings = settings_of(config)
    if config.data.train_files is None:
        folder = Path(config.slipstream.folder or f"runs/verl-{settings.name}") / "data"
        train, held_out = write_prompts(settings, folder.absolute())
        config.data.train_files = str(train)
        config.data.val_files = str(held_out or train)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )


def plan(config: Any) -> str:
    """What a checked configuration will do. Loads tasks and tokenizer, and starts nothing."""
    driver = make_driver(config, None, hf_tokenizer(config.actor_rollout_ref.model.path))
    return (
        f"{driver.plan}\n"
        f"verl: {config.data.train_batch_size} prompts of {config.actor_rollout_ref.rollout.n} rollouts a step, on "
        f"{config.trainer.nnodes * config.trainer.n_gpus_per_node} GPUs"
    )


@hydra.main(config_path="config", config_name="slipstream", version_base=None)  # type: ignore[untyped-decorator]
def main(config: Any) -> None:
    auto_set_device(config)
    prepare(config)
    if config.slipstream.plan:
        sys.stdout.write(plan(config) + "\n")
        return
    run_ppo(config, task_runner_class=ray.remote(ObservedRunner) if config.slipstream.observe else TaskRunnerV1)


if __name__ == "__main__":
    main()

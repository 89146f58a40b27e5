"""Start verl's own trainer with rollouts by Slipstream.

    python -m slipstream.bridges.verl.main slipstream.recipe=quickstart \\
        actor_rollout_ref.model.path=MODEL data.train_batch_size=16 actor_rollout_ref.rollout.n=8

Settings are verl's, over those of `config/slipstream.yaml`; data files are written from the recipe's tasks unless they
are named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
import ray
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from slipstream.bridges.driven import write_prompts
from slipstream.bridges.verl.advantage import register
from slipstream.bridges.verl.observe import ObservedRunner
from slipstream.bridges.verl.setup import check_config, settings_of


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


@hydra.main(config_path="config", config_name="slipstream", version_base=None)  # type: ignore[untyped-decorator]
def main(config: Any) -> None:
    auto_set_device(config)
    prepare(config)
    run_ppo(config, task_runner_class=ray.remote(ObservedRunner) if config.slipstream.observe else TaskRunnerV1)


if __name__ == "__main__":
    main()

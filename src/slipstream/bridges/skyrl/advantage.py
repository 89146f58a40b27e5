"""An advantage estimator for SkyRL-train that passes on what it is given.

Input: rewards, each a whole rollout's advantage on the last token of its row. Output: that number on every token of
the response. Step-wise, SkyRL-train calls it with the last row of each rollout and gives the others the same.
"""

from __future__ import annotations

from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry

from slipstream.bridges.driven import PASS_THROUGH


def pass_through(token_level_rewards: Any, response_mask: Any, **given: object) -> tuple[Any, Any]:
    """Tensors in, tensors out: the advantages and the returns. (Any: no torch here.)"""
    advantages = token_level_rewards.sum(dim=-1, keepdim=True) * response_mask
    return advantages, advantages


def register() -> None:
    """Make `trainer.algorithm.advantage_estimator=slipstream` known. Calling it twice is fine."""
    if PASS_THROUGH not in AdvantageEstimatorRegistry.list_available():
        AdvantageEstimatorRegistry.register(PASS_THROUGH, pass_through)

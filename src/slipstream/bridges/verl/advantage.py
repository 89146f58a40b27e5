"""An advantage estimator for verl that passes on what it is given.

Input: scores, each a whole rollout's advantage on the last token of its row. Output: that number on every token of the
response that is in the loss.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from slipstream.bridges.driven import PASS_THROUGH


def pass_through(token_level_rewards: Any, response_mask: Any, **given: object) -> tuple[Any, Any]:
    """verl's estimators take and return tensors: one for the advantages, one for the returns. (Any: no torch here.)"""
    advantages = token_level_rewards.sum(dim=-1, keepdim=True) * response_mask
    return advantages, advantages


def register() -> None:
    """Make `algorithm.adv_estimator=slipstream` known in this process. Calling it twice is fine."""
    if ADV_ESTIMATOR_REGISTRY.get(PASS_THROUGH) is not pass_through:
        register_adv_est(PASS_THROUGH)(pass_through)

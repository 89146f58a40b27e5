"""SkyRL-train's trainer, whose loss counts rollouts where it counts rows.

SkyRL-train scales a batch's advantages so that the sum over its tokens is the mean that `loss_reduction` names. Its
means over sequences divide by rows, so rollouts that are masked, and rollouts of several rows, would make every
gradient smaller. Here the scale is that of the embedded learner: a rollout counts once, and only if it is learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from skyrl.train.trainer import RayPPOTrainer

from slipstream.engine.training.losses import row_scales

NORMALISERS: Mapping[str, Literal["token", "sequence", "fixed"]] = {
    "token_mean": "token",
    "sequence_mean": "sequence",
    "seq_mean_token_sum_norm": "fixed",
}
"""SkyRL-train's name of a reduction, and ours. Its others are left to it."""

_ROLLOUTS = "slipstream_rollouts"


class SlipstreamTrainer(RayPPOTrainer):  # type: ignore[misc]  # skyrl is not typed
    def convert_to_training_input(self, generator_output: Mapping[str, Any], uids: Sequence[str]) -> Any:
        data = super().convert_to_training_input(generator_output, uids)
        data.metadata[_ROLLOUTS] = [
            f"{each.instance_id}/{each.repetition_id}" for each in generator_output["trajectory_ids"]
        ]
        return data

    def _normalize_advantages(self, data: Any, mini_batch_boundaries: Any, prompt_boundaries: Any = None) -> Any:
        """The only place where SkyRL-train scales them. (Any: a TrainingInputBatch of tensors.)"""
        algorithm = self.cfg.trainer.algorithm
        normaliser = NORMALISERS.get(algorithm.loss_reduction)
        if normaliser is None:
            return super()._normalize_advantages(data, mini_batch_boundaries, prompt_boundaries)
        rollouts = data.metadata[_ROLLOUTS]
        scaled = data["advantages"] * 0
        for start, end in mini_batch_boundaries:
            num_tokens = [int(number) for number in data["loss_mask"][start:end].sum(dim=-1)]
            scales = row_scales(rollouts[start:end], num_tokens, normaliser, fixed_length=algorithm.max_seq_len or 1)
            scaled[start:end] = data["advantages"][start:end] * scaled.new_tensor(scales).unsqueeze(-1)
        data["advantages"] = scaled
        return data

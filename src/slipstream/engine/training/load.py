"""A model folder to a learner, with a word on what to install if torch is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.engine.training.config import LearnerConfig
from slipstream.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.engine.training.learner import TorchLearner


def open_learner(folder: Path, config: LearnerConfig, *, device: str = "auto", seed: int = 0) -> TorchLearner:
    """Raises ConfigError if torch is not installed, or if the folder holds no model that can be trained."""
    try:
        from slipstream.engine.training.learner import TorchLearner
    except ImportError:
        raise ConfigError("the embedded learner needs torch: pip install 'slipstream[local]'") from None
    return TorchLearner(folder, config, device=device, seed=seed)

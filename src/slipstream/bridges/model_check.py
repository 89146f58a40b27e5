"""Whether the embedded engine and learner can run the model in a folder: checked before anything is started for it."""

from __future__ import annotations

from pathlib import Path

from slipstream.engine.model.spec import read_spec
from slipstream.errors import ConfigError


def check_model(folder: Path) -> None:
    read_spec(folder)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} has no weights: give a Hugging Face model folder with safetensors files")

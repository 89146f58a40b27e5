"""Opens an engine on a model folder, and says what to install if torch is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.engine.inference.config import EngineConfig
from slipstream.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.engine.inference.engine import TorchEngine


def open_engine(folder: Path, config: EngineConfig) -> TorchEngine:
    """Raises ConfigError if torch is not installed, or if this engine cannot run the folder's model."""
    try:
        from slipstream.engine.inference.engine import TorchEngine
    except ImportError:
        raise ConfigError("the embedded engine needs torch: pip install 'slipstream[local]'") from None
    return TorchEngine.from_folder(folder, config)

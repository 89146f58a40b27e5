"""What a session ran on: the machine, and the versions of what computed."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from slipstream import __version__
from slipstream.types import Json

_LIBRARIES = ("torch", "transformers", "peft", "triton", "numpy")
_DRIVER = Path("/proc/driver/nvidia/gpus")


def machine_facts() -> dict[str, Json]:
    return {
        "slipstream": __version__,
        "python": platform.python_version(),
        **{name: version for name in _LIBRARIES if (version := _version(name))},
        "cores": len(os.sched_getaffinity(0)),
        "gpus": list[Json](_gpus()),
    }


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> list[str]:
    """Their models, as the driver names them."""
    found = []
    for path in sorted(_DRIVER.glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found

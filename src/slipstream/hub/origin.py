"""Where a model folder came from: its `slipstream.json`.

Invariants: the file is written last, so a folder that has it was complete when it was made.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.types import Json

ORIGIN_NAME = "slipstream.json"


class Dtype(StrEnum):
    """What the weights are stored as."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT16 = "float16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    name: str
    family: str
    dtype: Dtype
    package: str
    version: str
    sha256: str
    file: str
    quantisation: str
    """What the weights were stored as in `file`; they keep its loss of precision."""

    def to_json(self) -> dict[str, Json]:
        return dataclasses.asdict(self)


def read_origin(folder: Path) -> Origin | None:
    """What the folder says about itself, or None if it is not one of ours."""
    found = _read(folder)
    if found is None:
        return None
    texts = {field.name: found.get(field.name) for field in dataclasses.fields(Origin)}
    strings = {key: value for key, value in texts.items() if isinstance(value, str)}
    try:
        return Origin(**{**strings, "dtype": Dtype(strings["dtype"])})  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):
        path = folder / ORIGIN_NAME
        raise ConfigError(f"{path} does not say where the model came from: fetch the model again") from None


def family_of(folder: Path) -> str | None:
    """The chat family that a model folder names, or None if it names none."""
    family = (_read(folder) or {}).get("family")
    return family if isinstance(family, str) else None


def _read(folder: Path) -> dict[str, Json] | None:
    path = folder / ORIGIN_NAME
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as raised:
        raise ConfigError(f"{path} cannot be read ({raised}): remove the folder and fetch the model again") from raised
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no object: remove the folder and fetch the model again")
    return found

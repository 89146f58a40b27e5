"""Validates SandboxLimits, for every provider."""

from __future__ import annotations

from dataclasses import fields

from slipstream.errors import ConfigError
from slipstream.types import SandboxLimits


def check_limits(limits: SandboxLimits) -> None:
    for field in fields(limits):
        value = getattr(limits, field.name)
        if not value > 0:
            raise ConfigError(f"the limit {field.name} of a sandbox is {value}: it must be greater than 0")

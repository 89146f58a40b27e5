"""The settings of the agent loop."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRules:
    """How often is too often; 0 switches a rule off."""

    same_turns: int = 4
    """Turns in a row with the same calls and the same answers."""
    same_errors: int = 3
    """Turns in a row with the same calls, all of which failed, however the answers differ."""
    idle_turns: int = 3
    """Turns in a row in which no call could be run: there was none, or none that could be read."""
    alternations: int = 3
    """Times that two different turns follow each other in turn, with the same calls and the same answers."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (times := getattr(self, name)) < 0 or times == 1:
                raise ConfigError(f"agent.stuck.{name}={times}: give 2 or more, or 0 for never")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    stuck: StuckRules = StuckRules()
    """When a rollout is given up because the agent goes round in circles; it is graded and trained on all the same."""

"""How hard a bug is to find and fix: how local it is, how visible, how well tested. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.tasks.factory.plant import Bug
from slipstream.tasks.factory.statement import Statement

TINY_LINES = 40
TINY_CHARS = 1_200
"""Of the statement: with the tools' schemas and a function of so many lines it leaves room in 4,096 tokens."""


class Tier(StrEnum):
    TINY = "tiny"
    """For small models: one place, in a short function, with the failing assertion shown."""
    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"


def tier_named(name: str) -> Tier:
    if name not in set(Tier):
        raise ConfigError(f'there is no tier "{name}"{did_you_mean(name, list(Tier))}: give one of {", ".join(Tier)}')
    return Tier(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    tier: Tier
    locality: float
    """0: one place in a short function; 1: several functions."""
    visibility: float
    """0: the failing program calls the faulty function by name; 1: nothing of it is seen."""
    testing: float
    """0: many tests fail; 1: a single one does."""

    @property
    def score(self) -> float:
        return round((self.locality + self.visibility + self.testing) / 3, 3)


def difficulty_of(bug: Bug, statement: Statement) -> Difficulty:
    functions = bug.mutant.functions
    num_edits = len(bug.mutant.mistakes)
    longest = max(function.num_lines for function in functions)
    locality = min(1.0, 0.5 * (num_edits > 1) + 0.3 * (len(functions) > 1) + 0.4 * min(longest, 100) / 100)
    shown = f"{statement.symptom}\n{statement.snippet}"
    named = sum(_is_named(function.name, shown) for function in functions) / len(functions)
    visibility = 1.0 - 0.7 * named - 0.3 * bool(statement.snippet)
    testing = 1.0 / len(bug.failing)
    is_tiny = (
        num_edits == 1 and longest <= TINY_LINES and bool(statement.snippet) and len(shown) <= TINY_CHARS and named == 1
    )
    mean = (locality + visibility + testing) / 3
    tier = Tier.TINY if is_tiny else Tier.EASY if mean < 0.4 else Tier.MEDIUM if mean < 0.6 else Tier.HARD
    return Difficulty(
        tier=tier, locality=round(locality, 3), visibility=round(visibility, 3), testing=round(testing, 3)
    )


def _is_named(name: str, text: str) -> bool:
    """By its own name, or for a constructor and the like by its class's."""
    parts = name.split(".")
    wanted = parts[-1] if not parts[-1].startswith("__") or len(parts) < 2 else parts[-2]
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None

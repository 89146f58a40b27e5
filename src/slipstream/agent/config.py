"""The settings of the agent loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
class HintRules:
    """Which hints the agent may be given; each can be switched off by itself, to see what it is worth."""

    on: bool | None = None
    """False: none of those below. None: as the model was trained with, which its folder says; else false."""
    from_tools: bool = True
    """What tools advise with their answers, such as the next thing to search for. It needs no `on`."""
    malformed_call: bool = True
    """A call could not be read: how to write what was wrong in it."""
    unknown_tool: bool = True
    """A tool that is not there: the one that does it."""
    no_call: bool = True
    """A reply without a call: an example of one."""
    missed_edit: bool = True
    """The text to replace was not found: how to get it right."""
    syntax_error: bool = True
    """The last edit broke the syntax: mend it or take it back."""
    repeated_failure: bool = True
    """The same call failed again, with no edit between."""
    repeated_call: bool = True
    """The same call had the same answer as before."""
    missing_module: bool = True
    """A program could not import something."""
    traceback: bool = True
    """A traceback: its last frame in the work tree."""
    whole_file: bool = True
    """A large file was read whole: search first."""
    long_output: bool = True
    """An output was cut: how to get less of it."""
    few_turns: bool = True
    """Turns run out."""
    few_tokens: bool = True
    """The window is nearly full."""
    finish_unchanged: bool = True
    """Finishing where nothing was changed, in a task with an editor: asked once whether that is meant."""
    finish_unchecked: bool = True
    """Finishing where nothing was run since the last edit: asked once whether that is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    prompt: Literal["auto", "none", "code"] = "auto"
    """What a task without a system prompt of its own gets. `code`: find the place first, read little, change little.
    `auto`: as the model was trained with, which its folder says; else `none`."""
    stuck: StuckRules = StuckRules()
    """When a rollout is given up because the agent goes round in circles; it is graded and trained on all the same."""
    out_of_turns: Literal["cut_off", "failed"] = "cut_off"
    """What it is to use up the turns of a task. `cut_off`: nobody knows what would have come, so the rollout counts in
    the baseline and is not trained on. `failed`: to be done within them is part of the task, so it is trained on too:
    otherwise nothing tells an agent not to dawdle where it will not succeed."""
    hints: HintRules = HintRules()
    """Advice that is added to the answers of tools, on record with the turn that reads it."""

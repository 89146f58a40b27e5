"""The settings of the agent loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRules:
    """When an agent counts as stuck; 0 disables a rule."""

    same_turns: int = 4
    """Turns in a row with the same calls and the same answers; 0: never."""
    same_errors: int = 3
    """Turns in a row with the same calls, all of which failed, however the answers differ; 0: never."""
    idle_turns: int = 3
    """Turns in a row in which no call could be run: there was none, or it could not be parsed; 0: never."""
    alternations: int = 3
    """How often two different turns alternate, with the same calls and the same answers; 0: never."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (times := getattr(self, name)) < 0 or times == 1:
                raise ConfigError(f"agent.stuck.{name}={times}: use 2 or more, or 0 to disable it")


@dataclass(frozen=True, slots=True, kw_only=True)
class HintRules:
    """Which hints the agent may get; each can be disabled separately, to measure its effect."""

    on: bool | None = None
    """false: none of those below. null: as the model was trained, which its folder records; otherwise false."""
    from_tools: bool = True
    """Advice from tools in their answers, such as what to search for next. Does not depend on `on`."""
    malformed_call: bool = True
    """A call could not be parsed: how to write it correctly."""
    unknown_tool: bool = True
    """A tool that does not exist: the one to use instead."""
    no_call: bool = True
    """A reply without a call: an example of one."""
    missed_edit: bool = True
    """The text to replace was not found: how to get it right."""
    syntax_error: bool = True
    """The last edit broke the syntax: fix or undo it."""
    repeated_failure: bool = True
    """The same call failed again, with no edit between."""
    repeated_call: bool = True
    """The same call got the same answer as before."""
    missing_module: bool = True
    """A program could not import something."""
    traceback: bool = True
    """A traceback: its last frame in the working tree."""
    whole_file: bool = True
    """A large file was read completely: search first."""
    long_output: bool = True
    """An output was truncated: how to get less."""
    few_turns: bool = True
    """Few turns are left."""
    turns_left: bool = False
    """After every turn, how many are left; during the first fifth, also to take some more before finishing."""
    few_tokens: bool = True
    """The context window is nearly full."""
    finish_unchanged: bool = True
    """Finishing without any change, in a task with an editor: asks once for confirmation."""
    finish_unchecked: bool = True
    """Finishing without running anything since the last edit: asks once for confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CondenseConfig:
    MAIN: ClassVar[str] = "on"
    on: bool = False
    """When the window is nearly full, ask the agent for a summary and go on from the task and the summary, instead of
    ending at the limit of tokens. The request and the reply are a turn. (The tool `condense` lets an agent do so by
    itself.)"""
    at: float = 0.75
    """The share of the window from which it is nearly full."""
    max_tokens: int = 1_024
    """The longest summary; at most an eighth of the window."""
    trained: bool = True
    """Whether the summary is trained on with the rollout's advantage, as the agent's actions are."""

    def __post_init__(self) -> None:
        if not 0.0 < self.at < 1.0:
            raise ConfigError.setting("agent.condense.at", self.at, "give a share of the window, between 0 and 1")


PROMPTS = ("auto", "none", "code")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    prompt: str = "auto"
    """The system prompt for tasks without their own: a text, or `@FILE` to read it from a file. `code`: find the place
    first, read little, change little. `none`: no prompt. `auto`: as the model was trained, which its folder records;
    otherwise `none`."""
    stuck: StuckRules = StuckRules()
    """When a rollout ends because the agent goes in circles; it is still graded and trained on."""
    out_of_turns: Literal["cut_off", "failed"] = "cut_off"
    """How to treat a rollout that uses up its turns. `cut_off`: its outcome is unknown, so it counts in the baseline
    but is not trained on. `failed`: finishing in time is part of the task, so it is trained on too: otherwise an agent
    that will not succeed never learns to stop wasting turns."""
    cut_replies: Literal["cut_off", "failed"] = "cut_off"
    """How to treat a rollout that ends after replies without a call (`stuck.idle_turns`), some of which were cut off at
    the limit of a reply. `cut_off`: as one that uses up its turns by default, and the agent is told that it was cut
    off. `failed`: as stuck, so it is trained on."""
    hints: HintRules = HintRules()
    """Advice appended to tool answers, recorded with the turn that reads it."""
    condense: CondenseConfig = CondenseConfig()
    """`agent.condense=true`: a full window does not end a rollout."""

    def __post_init__(self) -> None:
        if self.prompt.startswith("@"):  # the text is recorded with the run, so that a resumed one needs no file
            object.__setattr__(self, "prompt", _read(Path(self.prompt[1:])))
        elif self.prompt not in PROMPTS and len(self.prompt.split()) < 2:
            known = ", ".join(PROMPTS)
            raise ConfigError.setting("agent.prompt", self.prompt, f"use {known}, @FILE or a whole sentence")


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as raised:
        raise ConfigError.setting("agent.prompt", f"@{path}", f"the file cannot be read: {raised}") from raised
    if len(text.split()) < 2:
        raise ConfigError.setting("agent.prompt", f"@{path}", "the file holds no prompt: write at least a sentence")
    return text

"""Demonstrations: conversations to imitate, as the tokens of the model that imitates them.

    writer = DemonstrationWriter("smollm2")
    draft = writer.begin(task)
    draft.say(act("bash", command="ls"))
    draft.hear([Message(role=Role.TOOL, content="notes")])
    draft.say(act("finish"))
    draft.finish()

The mask is 1 on exactly what was said. Where a chat format cannot continue a conversation, `hear` says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from slipstream.agent.config import AgentConfig
from slipstream.agent.loop import briefed, opening
from slipstream.errors import ConfigError
from slipstream.hub import find_model
from slipstream.model.scripted import Line, Script, ScriptedCall
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.tools import Toolset
from slipstream.types import JobKey, Message, SampleParams, Task, TokenIds, ToolSpec, job_seed, turn_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One conversation to imitate: what a function named by `warm_start.source` returns a list of."""

    task_id: str
    ids: TokenIds
    mask: array[int]
    """1 on the teacher's tokens."""


class DemonstrationWriter:
    """Writes conversations in the tokens of the model in `folder`, as it will meet them with these settings."""

    def __init__(
        self,
        folder: str | Path,
        *,
        family: str = "auto",
        family_args: Mapping[str, JsonValue] | None = None,
        thinking: Literal["auto", "keep", "template"] = "auto",
        agent: AgentConfig | None = None,
    ) -> None:
        self._renderer = open_renderer(
            find_model(folder) if isinstance(folder, str) else folder,
            family=family,
            thinking=None if thinking == "auto" else thinking,
            args=family_args,
        )
        self._agent = agent or AgentConfig()

    def begin(self, task: Task, *, seed: int = 0) -> DraftDemonstration:
        """The conversation of a task, up to the first reply. `seed` is for `DraftDemonstration.ask`."""
        brief = briefed(task.brief, self._agent)
        return DraftDemonstration(
            self._renderer,
            task_id=task.id,
            messages=opening(brief),
            tools=Toolset.named(brief.tools).specs,
            seed=job_seed(seed, JobKey(phase="eval", step=0, task_id=task.id, sample=0)),
        )

    def begin_with(self, task_id: str, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> DraftDemonstration:
        """A conversation that begins with these messages."""
        return DraftDemonstration(self._renderer, task_id=task_id, messages=messages, tools=tools, seed=0)


class DraftDemonstration:
    """A demonstration as far as it is written."""

    def __init__(
        self, renderer: Renderer, *, task_id: str, messages: Sequence[Message], tools: Sequence[ToolSpec], seed: int
    ) -> None:
        self._renderer = renderer
        self._task_id = task_id
        self._tools = tools
        self._seed = seed
        self._num_asked = 0
        self._ids = renderer.render(messages, tools)
        self._mask = array("b", bytes(len(self._ids)))
        self._prompt, self._reply = self._ids, array("i")
        """The last stretch of each kind."""

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    @property
    def text(self) -> str:
        """The conversation so far, as the model reads it."""
        return self._renderer.decode(self._ids)

    def ask(self, script: Script, *, max_tokens: int = 256) -> Line:
        """What a script replies here: the same as in the first rollout of an evaluation with this seed."""
        params = SampleParams(max_tokens=max_tokens, seed=turn_seed(self._seed, self._num_asked))
        call = ScriptedCall(prompt_text=self.text, params=params, num_calls=self._num_asked, tools=tuple(self._tools))
        self._num_asked += 1
        return script(call)

    def say(self, reply: Message) -> None:
        """Add a reply, which is to be imitated."""
        self._reply = self._renderer.encode_reply(reply)
        self._ids = self._ids + self._reply
        self._mask = self._mask + array("b", b"\x01" * len(self._reply))

    def hear(self, messages: Sequence[Message]) -> bool:
        """Add the messages before the next reply. False, and nothing added, where the model's chat format cannot
        continue from here: what follows is then another demonstration."""
        extension = self._renderer.extend(self._prompt, self._reply, messages, self._tools)
        if extension is None or extension.num_dropped:
            return False
        self._prompt = extension.added
        self._ids = self._ids + self._prompt
        self._mask = self._mask + array("b", bytes(len(self._prompt)))
        return True

    def finish(self) -> Demonstration:
        """The demonstration. What was heard after the last reply is in it, with mask 0."""
        if not any(self._mask):
            raise ConfigError(f"the demonstration of {self._task_id} has no reply to imitate: `say` at least one")
        return Demonstration(task_id=self._task_id, ids=self._ids, mask=self._mask)

"""Models whose replies come from a function: for tests of agents, tools and everything around them.

Input: a script, a function from a ScriptedCall to a Line. Output: a Completer or a ChatModel.
Invariants: the same calls get the same replies; a script is a distribution with one outcome, so every logprob is 0.0;
latency is `asyncio.sleep`, so it takes no time on a virtual clock.

    model = ScriptedModel(replies("Hello.", "Goodbye."), decode=..., encode=..., encode_text=...)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from slipstream.errors import ContextOverflow, ModelError, boundary
from slipstream.model.base import ChatReply
from slipstream.types import EngineLoad, Json, Message, Role, Sampled, SampleParams, StopReason, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """What a script sees of one call."""

    prompt_text: str
    """The whole prompt, decoded; of a chat, the messages' contents line by line."""
    params: SampleParams
    session: str = ""
    num_calls: int = 0
    """Calls of this session before this one."""
    messages: tuple[Message, ...] = ()
    """The conversation of a chat; empty for a Completer."""
    tools: tuple[ToolSpec, ...] = ()

    @property
    def seed(self) -> int | None:
        return self.params.seed


Line: TypeAlias = Message | str
"""An assistant's message, or raw text as a model might sample it, including malformed calls."""

Script: TypeAlias = Callable[[ScriptedCall], Line]
"""May raise: ModelError and ContextOverflow pass through, any other exception becomes a ModelError."""

Latency: TypeAlias = Callable[[ScriptedCall], float]
"""How long a call takes, in seconds."""


def act(name: str, **arguments: Json) -> Message:
    """A line that calls a tool: `act("bash", command="ls")`."""
    return Message(role=Role.ASSISTANT, calls=(ToolCall(id="call", name=name, arguments=arguments),))


def replies(*lines: Line) -> Script:
    """A script that replies with `lines` in order, starting over in every session."""

    def script(scene: ScriptedCall) -> Line:
        if scene.num_calls >= len(lines):
            raise ModelError(f"the script of session {scene.session!r} has only {len(lines)} lines; add one")
        return lines[scene.num_calls]

    return script


class _Stage:
    """Runs a script: counts the calls of each session, applies latency and deadline."""

    def __init__(self, script: Script, latency_s: Latency | None) -> None:
        self._script = script
        self._latency_s = latency_s
        self._num_calls: Counter[str] = Counter()
        self.num_running = 0

    def next_call(self, session: str) -> int:
        """How many calls this session made before this one, which is then counted."""
        self._num_calls[session] += 1
        return self._num_calls[session] - 1

    async def line(self, scene: ScriptedCall, timeout_s: float | None) -> Line:
        with self._running():
            try:
                async with asyncio.timeout(timeout_s) as scope:
                    if self._latency_s is not None:
                        await asyncio.sleep(self._latency_s(scene))
                    with boundary(ModelError, f"the script, in call {scene.num_calls} of session {scene.session!r}"):
                        return self._script(scene)
            except TimeoutError:
                if not scope.expired():
                    raise
            raise ModelError(f"the script took longer than {timeout_s:g} s")

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1


class ScriptedModel:
    """A Completer that runs a script over real token ids.

    `decode` turns a prompt's ids into text; `encode` renders an assistant's message as the ids that a model of the
    family would sample, including the stop token; `encode_text` does so for raw text. `version` may be set at any time.
    """

    def __init__(
        self,
        script: Script,
        *,
        decode: Callable[[Sequence[int]], str],
        encode: Callable[[Message], Sequence[int]],
        encode_text: Callable[[str], Sequence[int]] | None = None,
        latency_s: Latency | None = None,
        context_tokens: int | None = None,
        version: int = 0,
    ) -> None:
        self.version = version
        self._player = _Stage(script, latency_s)
        self._decode = decode
        self._encode = encode
        self._encode_text = encode_text
        self._context_tokens = context_tokens

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        version, max_tokens = self.version, params.max_tokens
        if self._context_tokens is not None:
            max_tokens = min(max_tokens, self._context_tokens - len(prompt_ids))
        if max_tokens < 1:
            raise ContextOverflow(f"{len(prompt_ids)} prompt tokens leave no room for an answer")
        scene = ScriptedCall(
            prompt_text=self._decode(prompt_ids),
            params=params,
            session=session,
            num_calls=self._player.next_call(session),
        )
        line = await self._player.line(scene, timeout_s)
        with boundary(ModelError, "encoding what the script said"):
            ids = list(self._ids(line))
        end = next((place + 1 for place, token in enumerate(ids) if token in params.stop_ids), len(ids))
        kept = ids[: min(end, max_tokens)]
        return Sampled.at_version(
            kept,
            [0.0] * len(kept),
            version=version,
            stop=StopReason.STOP if len(kept) == end else StopReason.LENGTH,
        )

    def load(self) -> EngineLoad | None:
        return EngineLoad(running=self._player.num_running, waiting=0)

    async def aclose(self) -> None:
        """Does nothing: there is nothing to close."""

    def _ids(self, line: Line) -> Sequence[int]:
        if isinstance(line, Message):
            return self._encode(line)
        if self._encode_text is None:
            raise ModelError("the script gave raw text, for which ScriptedModel needs `encode_text`")
        return self._encode_text(line)


class ScriptedChat:
    """A ChatModel that runs a script over messages. It has no tokens: raw text is the content of its reply."""

    def __init__(self, script: Script, *, latency_s: Latency | None = None) -> None:
        self._player = _Stage(script, latency_s)

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        scene = ScriptedCall(
            prompt_text="\n".join(message.content for message in messages),
            params=params,
            session=session,
            num_calls=self._player.next_call(session),
            messages=tuple(messages),
            tools=tuple(tools),
        )
        line = await self._player.line(scene, timeout_s)
        message = line if isinstance(line, Message) else Message(role=Role.ASSISTANT, content=line)
        return ChatReply(message=message, stop=StopReason.STOP)

    async def aclose(self) -> None:
        """Does nothing: there is nothing to close."""

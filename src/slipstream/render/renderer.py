"""Messages to tokens and back, over the `renderers` library, which is imported when the first Renderer is made.

Enters: messages and tool specs, or sampled ids. Leaves: prompt ids, or the message that the model meant.
Always holds: sampled ids are never encoded again. `extend` keeps them as they were and encodes only what is new; where
a family's template cannot be extended it says so with None, and the caller's re-render is a visible fork.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.render.tokenizers import Tokenizer
from slipstream.types import CallProblem, Json, Message, Role, TokenIds, ToolCall, ToolSpec, token_ids

_PROBLEMS = {
    "invalid_json": CallProblem.BAD_JSON,
    "unclosed_block": CallProblem.UNCLOSED,
    "missing_name": CallProblem.NO_NAME,
    "malformed_structure": CallProblem.BAD_SHAPE,
}


class Renderer:
    """One model family's chat format with one tokenizer: `Renderer("qwen3", ByteTokenizer())`."""

    def __init__(self, family: str, tokenizer: Tokenizer) -> None:
        from pydantic import TypeAdapter, ValidationError
        from renderers import RendererConfig, create_renderer

        settings: dict[str, Json] = {"name": family}
        if family not in ("auto", "default"):
            # Thinking stays in the history, so that a message after a tool cycle extends the sample and does not fork.
            settings["thinking_retention"] = "all"
        try:
            config = TypeAdapter(RendererConfig).validate_python(settings)
        except ValidationError as raised:
            known = re.findall(r"'([^']+)'", str(raised.errors()[0].get("ctx", {}).get("expected_tags", "")))
            raise ConfigError(
                f'there is no family "{family}"{did_you_mean(family, known)}: use one of {", ".join(known)}'
            ) from None
        try:
            # Any: the library types its messages as TypedDicts of its own.
            self._renderer: Any = create_renderer(tokenizer, config)
            self._renderer.render_ids([{"role": "user", "content": "?"}], add_generation_prompt=True)
        except Exception as raised:  # whatever the library raises, it is this pair that does not work
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path!r} does not fit the family {family!r}: {raised}"
            ) from raised
        self._tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenIds:
        """A whole conversation, ready for the model's next reply."""
        ids = self._renderer.render_ids(
            [_as_dict(message) for message in messages], tools=_tool_dicts(tools), add_generation_prompt=True
        )
        return token_ids(ids)

    def extend(
        self, prompt: TokenIds, sampled: TokenIds, new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> TokenIds | None:
        """`prompt` and `sampled` as they are, then `new`, ready for the next reply; None if that cannot be."""
        bridged = self._renderer.bridge_to_next_turn(
            prompt.tolist(), sampled.tolist(), [_as_dict(message) for message in new], tools=_tool_dicts(tools)
        )
        return None if bridged is None else token_ids(bridged.token_ids)

    def parse(self, sampled: TokenIds, prompt: TokenIds, tools: Sequence[ToolSpec], *, call_prefix: str) -> Message:
        """What the model said. Every call counts, in order; a call inside its thinking is none."""
        parsed = self._renderer.parse_response(sampled.tolist(), tools=_tool_dicts(tools), prompt_ids=prompt.tolist())
        calls = [] if self._still_thinking(sampled) else parsed.tool_calls
        return Message(
            role=Role.ASSISTANT,
            content=parsed.content,
            thinking=parsed.reasoning_content or "",
            calls=tuple(_as_call(call, f"{call_prefix}{index}") for index, call in enumerate(calls)),
        )

    def encode_reply(self, message: Message) -> TokenIds:
        """The ids that a model of this family would sample to say `message`: for scripts and demonstrations."""
        rendered = self._renderer.render([{"role": "user", "content": ""}, _as_dict(message)], tools=None)
        if not rendered.sampled_mask:
            raise ConfigError("this renderer does not tell which tokens a model samples, so it cannot carry a script")
        return token_ids(
            index for index, sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if sampled
        )

    def encode_text(self, text: str) -> TokenIds:
        return token_ids(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids))

    def _still_thinking(self, sampled: TokenIds) -> bool:
        """Whether the reply opened its thinking and never closed it. The library lets a call close it."""
        open_id, close_id = (self._tokenizer.convert_tokens_to_ids(token) for token in ("<think>", "</think>"))
        return open_id in sampled and close_id not in sampled


def _as_dict(message: Message) -> dict[str, Any]:
    if message.images:
        raise ConfigError("images need a multimodal renderer, which is not wired in: use a chat endpoint")
    entry: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.thinking:
        entry["reasoning_content"] = message.thinking
    if message.calls:
        entry["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.calls
            if call.problem is None
        ]
    if message.role is Role.TOOL:
        entry["tool_call_id"] = message.call_id
        entry["name"] = message.name
    return entry


def _tool_dicts(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ] or None


def _as_call(call: Any, fallback_id: str) -> ToolCall:
    arguments: Any = call.arguments
    problem = _PROBLEMS.get(call.status.value)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            problem = problem or CallProblem.BAD_JSON
    if problem is None and not isinstance(arguments, Mapping):
        problem = CallProblem.BAD_SHAPE
    return ToolCall(
        id=call.id or fallback_id,
        name=call.name or "",
        arguments=arguments if isinstance(arguments, Mapping) else {},
        problem=problem,
        raw=call.raw,
    )

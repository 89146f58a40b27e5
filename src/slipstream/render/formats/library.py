"""The chat formats of the `renderers` library, which is imported when one of them is first created.

A family and a tokenizer that do not fit each other are a ConfigError that says why.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from slipstream.errors import ConfigError
from slipstream.messages import chat_tool
from slipstream.names import did_you_mean
from slipstream.render.base import Tokenizer, Traits, same_reply, tools_of
from slipstream.render.families import FAMILY_TOKENS, TRAITS
from slipstream.render.formats.calls import as_one_problem, bare_calls
from slipstream.render.template import template_message
from slipstream.types import CallProblem, Json, Message, Role, ToolCall, ToolSpec

_PROBLEMS = {
    "invalid_json": CallProblem.BAD_JSON,
    "unclosed_block": CallProblem.UNCLOSED,
    "missing_name": CallProblem.NO_NAME,
    "malformed_structure": CallProblem.BAD_SHAPE,
}
_KEEPING_THINKING: Mapping[str, bool] = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "drop_thinking": False,
}
"""The options with which some families' templates keep thinking."""


_NO_FAMILIES = ("auto", "default", "custom")
"""Names in the library that are not chat formats."""
_QUESTION: Mapping[str, Any] = {"role": "user", "content": "?"}
_ANSWER: Mapping[str, Any] = {"role": "tool", "content": "", "name": "?", "tool_call_id": "?"}
_OPEN_THINKING = ("<think>", "<think>\n")


@contextmanager
def _no_openai() -> Iterator[None]:
    """The library has a client, unused here, which imports `openai` for an annotation. That is two thirds of what
    importing the library costs, in every process that renders."""
    if "renderers" in sys.modules or "openai" in sys.modules:
        yield
        return
    stand_in: Any = ModuleType("openai")
    stand_in.AsyncOpenAI = object
    sys.modules["openai"] = stand_in
    try:
        yield
    finally:
        del sys.modules["openai"]


class LibraryFormat:
    def __init__(
        self, family: str, tokenizer: Tokenizer, *, keep_thinking: bool, args: Mapping[str, Json] | None = None
    ) -> None:
        """`args` are the template's own, such as `enable_thinking`."""
        with _no_openai():
            from renderers import create_renderer

        config = _config(family, keep_thinking, args or {})
        try:
            # Any: the library types its messages as TypedDicts of its own.
            self._renderer: Any = create_renderer(tokenizer, config)
            self._renderer.render_ids([_QUESTION], add_generation_prompt=True)
        except Exception as raised:  # whatever the library raises, family and tokenizer do not fit
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path!r} does not fit the family {family!r}: {raised}"
            ) from raised
        self._family = family
        self._tokenizer = tokenizer
        self._opening: list[int] = self._renderer.render_ids([_QUESTION], add_generation_prompt=True)
        self._opening_text = tokenizer.decode(self._opening)
        self._open_id, self._close_id = (_id_of(tokenizer, token) for token in ("<think>", "</think>"))
        self._special_ids = frozenset(_id_of(tokenizer, token) for token in tokenizer.special_tokens)
        self.stop_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        try:
            ids: list[int] = self._renderer.render_ids(
                [_as_dict(message) for message in messages], tools=_tool_dicts(tools), add_generation_prompt=True
            )
        except ValueError as raised:
            raise ConfigError(f"the family {self._family!r} cannot write this conversation: {raised}") from raised
        return ids

    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        bridged = self._renderer.bridge_to_next_turn(
            tail, sampled, [_as_dict(message) for message in new], tools=_tool_dicts(tools)
        )
        if bridged is None:
            return None
        ids: list[int] = bridged.token_ids
        return ids

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        try:
            return self._parse(sampled, tail, tools)
        except (ValueError, RecursionError):  # such as a number of more digits than Python converts
            text = self._tokenizer.decode([token for token in sampled if token not in self.stop_ids])
            return Message(
                role=Role.ASSISTANT, calls=(ToolCall(id="", name="", problem=CallProblem.BAD_JSON, raw=text),)
            )

    def _parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        parsed = self._read(sampled, tail, tools)
        calls, content, thinking = parsed.tool_calls, parsed.content, parsed.reasoning_content or ""
        thought = self._thinking(sampled, tail, tools) if calls else None
        if thought is not None:
            # The library may find calls inside thinking, or end it there: so parse what follows thinking separately.
            spoken = []
            if sampled[thought.stop : thought.stop + 1] == [self._close_id]:
                after = self._read(sampled[: thought.start] + sampled[thought.stop :], tail, tools)
                spoken, content = after.tool_calls, after.content
            if len(spoken) != len(calls):
                thinking = self._tokenizer.decode(sampled[thought.start : thought.stop]).strip()
            calls = spoken
        read = tuple(_as_call(call, tools) for call in calls)
        if not read and not TRAITS.get(self._family, Traits()).several_calls:
            before, several = bare_calls(content, tools)
            if len(several) > 1:
                read, content = (as_one_problem(content.removeprefix(before).lstrip()),), before
        return Message(role=Role.ASSISTANT, content=content, thinking=thinking, calls=read)

    def encode_reply(self, message: Message) -> list[int]:
        # How a template writes a reply depends on what follows, and no template writes every reply in full everywhere.
        candidates: list[list[int]] = []
        for candidate in self._ways_to_say(message):
            if candidate and candidate[-1] not in self.stop_ids:
                candidate.append(candidates[0][-1] if candidates else self.stop_ids[0])
            if same_reply(self.parse(candidate, self._opening, tools_of(message)), message):
                return candidate
            candidates.append(candidate)
        return candidates[0]

    def _ways_to_say(self, message: Message) -> Iterator[list[int]]:
        entry = _as_dict(message)
        following = [_ANSWER] if message.calls else [_QUESTION]
        for after in (following, [], [_ANSWER]):
            yield self._after_opening([_QUESTION, entry, *after])
        if not self._opening_text.endswith(_OPEN_THINKING):
            return
        # Some templates leave thinking out of such a reply. The prompt has opened it, so close it here.
        bare = self._after_opening([_QUESTION, _as_dict(replace(message, thinking="")), *following])
        close_id = self._tokenizer.convert_tokens_to_ids("</think>")
        if close_id in bare:
            bare = bare[bare.index(close_id) + 1 :]
        for close in ("\n</think>\n\n", "</think>"):
            yield [*self._tokenizer.encode(message.thinking + close, add_special_tokens=False), *bare]

    def _after_opening(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """What follows the prompt's end in a rendered reply, up to the last token that a model samples."""
        try:
            rendered = self._renderer.render(list(messages), tools=None)
        except ValueError as raised:
            raise ConfigError(f"this family cannot write such a reply: {raised}") from raised
        if not rendered.sampled_mask:
            raise ConfigError("this renderer does not say which tokens a model samples, so no script can use it")
        end = len(rendered.sampled_mask) - rendered.sampled_mask[::-1].index(True)
        ids: list[int] = rendered.token_ids[:end]
        num_common = next(
            (place for place, (one, other) in enumerate(zip(ids, self._opening, strict=False)) if one != other),
            min(len(ids), len(self._opening)),
        )
        if num_common == len(self._opening):
            return ids[num_common:]
        for place in range(num_common, len(ids)):  # the same text in other tokens
            text = self._tokenizer.decode(ids[: place + 1])
            if text.startswith(self._opening_text):
                rest = text[len(self._opening_text) :]
                return [*self._tokenizer.encode(rest, add_special_tokens=False), *ids[place + 1 :]]
            if not self._opening_text.startswith(text):
                break
        return ids[num_common:]

    def _read(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Any:
        return self._renderer.parse_response(sampled, tools=_tool_dicts(tools), prompt_ids=tail)

    def _thinking(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> range | None:
        """The range of the reply's thinking, without the marks; up to the reply's end if it was never closed. A reply
        begins with its thinking, which the end of the prompt may have opened: a mark in or after a call is text."""
        if self._open_id is None:
            return None
        start = 0
        if next((index for index in reversed(tail) if index in self._special_ids), None) != self._open_id:
            if self._open_id not in sampled:
                return None
            start = sampled.index(self._open_id) + 1
            if self._read(sampled[: start - 1], tail, tools).tool_calls:
                return None
        ends = (*self.stop_ids, self._close_id)
        return range(start, next((at for at in range(start, len(sampled)) if sampled[at] in ends), len(sampled)))


def _id_of(tokenizer: Tokenizer, token: str) -> int | None:
    index = tokenizer.convert_tokens_to_ids(token)
    return None if index == tokenizer.unk_token_id else index


def _config(family: str, keep_thinking: bool, args: Mapping[str, Json]) -> Any:
    from pydantic import TypeAdapter, ValidationError

    with _no_openai():
        from renderers import RendererConfig

    def checked(settings: Mapping[str, Json]) -> Any:
        try:
            return TypeAdapter(RendererConfig).validate_python({"name": family, **settings})
        except ValidationError as raised:
            first = raised.errors()[0]
            known = re.findall(r"'([^']+)'", str(first.get("ctx", {}).get("expected_tags", "")))
            if known:
                families = list(dict.fromkeys([*FAMILY_TOKENS, *(name for name in known if name not in _NO_FAMILIES)]))
                raise ConfigError(
                    f'there is no family "{family}"{did_you_mean(family, families)}: use one of {", ".join(families)}, '
                    "or module:Class of your own"
                ) from None
            at = ".".join(str(part) for part in first["loc"][1:])
            raise ConfigError(f"the family {family!r} does not take {at}={first['input']!r}: {first['msg']}") from None

    plain = checked(args)
    if not keep_thinking or family in ("auto", "default"):
        return plain
    known = type(plain).model_fields
    kept = {name: value for name, value in _KEEPING_THINKING.items() if name in known and name not in args}
    return checked({"thinking_retention": "all", **kept, **args})


def _as_dict(message: Message) -> dict[str, Any]:
    return template_message(replace(message, calls=tuple(call for call in message.calls if call.problem is None)))


def _tool_dicts(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    return [chat_tool(tool) for tool in tools] or None


def _as_call(call: Any, tools: Sequence[ToolSpec]) -> ToolCall:
    arguments: Any = call.arguments
    problem = _PROBLEMS.get(call.status.value)
    if problem is CallProblem.BAD_JSON and isinstance(arguments, Mapping):
        repaired = _repaired(arguments, next((tool for tool in tools if tool.name == call.name), None))
        arguments, problem = (repaired, None) if repaired is not None else (arguments, problem)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            problem = problem or CallProblem.BAD_JSON
    if problem is None and not isinstance(arguments, Mapping):
        problem = CallProblem.BAD_SHAPE
    return ToolCall(
        id=call.id or "",
        name=call.name or "",
        arguments=arguments if isinstance(arguments, Mapping) else {},
        problem=problem,
        raw=call.raw,
    )


_PYTHON_WORDS: Mapping[str, Json] = {"True": True, "False": False, "None": None}


def _repaired(arguments: Mapping[str, Any], tool: ToolSpec | None) -> dict[str, Json] | None:
    """Arguments whose only error is Python's spelling of true, false and null: some templates write these, so models
    do too. None if there is any other error."""
    properties = tool.parameters.get("properties") if tool else None
    if not isinstance(properties, dict):
        return None
    repaired: dict[str, Json] = {}
    for name, value in arguments.items():
        schema = properties.get(name)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(value, str) and kind not in ("string", None):
            if value.strip() not in _PYTHON_WORDS:
                return None
            value = _PYTHON_WORDS[value.strip()]
        repaired[name] = value
    return repaired

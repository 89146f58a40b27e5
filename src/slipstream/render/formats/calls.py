"""Tool calls in the text of a reply, where no family's own reader knows them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from slipstream.types import CallProblem, Json, ToolCall, ToolSpec

_LINE_START = re.compile(r"^[ \t]*(?:```(?:json)?\s*)?(?=[{\[])", re.MULTILINE)
_DECODER = json.JSONDecoder()
_LOOSE_START = re.compile(r"(?:^|<tool_call>|```(?:json)?)\s*(?=[{\[])", re.MULTILINE)
_LOOSE_END = re.compile(r"[ \t]*(?:$|,|</?tool_call>|```)", re.MULTILINE)
_LOOSE_DECODER = json.JSONDecoder(strict=False)
"""Reads line breaks inside of a string too, as models write them in code."""


def bare_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
    """Content, and the calls that end `text` as JSON without any marks around them, fenced as a code block or not.

    JSON counts as a call only if it has the shape of one and names one of `tools`.
    """
    names = {tool.name for tool in tools}
    for start in _LINE_START.finditer(text):
        calls = _calls_to_the_end(text[start.end() :], names)
        if calls:
            return text[: start.start()].strip(), calls
    return text, ()


def loose_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
    """What stands before the first call, and every JSON object that begins a line, a fence or a tag, has the shape of
    a call and names one of `tools`; whatever tags, fences or words are around it."""
    names = {tool.name for tool in tools}
    found: list[ToolCall] = []
    first, place = len(text), 0
    while start := _LOOSE_START.search(text, place):
        place = start.end() + 1
        try:
            value, end = _LOOSE_DECODER.raw_decode(text, start.end())
        except (ValueError, RecursionError):
            continue
        calls = [
            call_of(entry, raw=text[start.start() : end]) for entry in (value if isinstance(value, list) else [value])
        ]
        if calls and all(call.problem is None and call.name in names for call in calls) and _LOOSE_END.match(text, end):
            found += calls
            first, place = min(first, start.start()), end
    return text[:first].strip() if found else text, tuple(found)


def as_one_problem(text: str) -> ToolCall:
    """Several calls, in a format that has one in a reply: the model is told so."""
    return ToolCall(id="", name="", problem=CallProblem.SEVERAL, raw=text)


def _calls_to_the_end(text: str, names: set[str]) -> tuple[ToolCall, ...]:
    """The calls that `text` consists of; none if it holds anything else."""
    found: list[ToolCall] = []
    rest = text
    while rest := rest.strip().removeprefix("```json").removeprefix("```").lstrip():
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return ()
        for entry in value if isinstance(value, list) else [value]:
            call = call_of(entry, raw=rest[:end])
            if call.problem is not None or call.name not in names:
                return ()
            found.append(call)
        rest = rest[end:].lstrip(" \t\n,;")
    return tuple(found)


def call_of(written: Any, *, raw: str) -> ToolCall:
    """The call that a JSON value stands for, in any of the usual spellings."""
    if isinstance(written, dict) and isinstance(written.get("function"), dict):
        written = {**written["function"], "id": written.get("id")}
    if not isinstance(written, dict):
        return ToolCall(id="", name="", problem=CallProblem.BAD_SHAPE, raw=raw)
    name = written.get("name", written.get("tool_name"))
    arguments = written.get("arguments", written.get("parameters", {}))
    if not isinstance(name, str) or not name:
        return ToolCall(id="", name="", problem=CallProblem.NO_NAME, raw=raw)
    call_id = written.get("id")
    return named_call(name, arguments, call_id=call_id if isinstance(call_id, str) else "", raw=raw)


def named_call(name: str, arguments: Json, *, call_id: str = "", raw: str) -> ToolCall:
    """Arguments may be an object, or a string that holds one as JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ToolCall(id=call_id, name=name, problem=CallProblem.BAD_JSON, raw=raw)
    if not isinstance(arguments, dict):
        return ToolCall(id=call_id, name=name, problem=CallProblem.BAD_SHAPE, raw=raw)
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)

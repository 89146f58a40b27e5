"""Learns how a chat template writes tool calls from examples that it wrote.

Input: the text of a reply with one probe call, and of one with two. Output: a parser of such calls. Three shapes are
known: a JSON object or list that contains the name (Qwen2.5, Mistral, Phi-4, Llama), a name followed by its arguments
as JSON (newer Mistral, DeepSeek), and a name followed by keys and values (Qwen3-Coder, GLM, MiniMax).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.render.formats.calls import bare_calls, call_of, named_call
from slipstream.types import CallProblem, Json, ToolCall, ToolSpec

NAME, TEXT_KEY, TEXT, NUMBER_KEY, NUMBER = "zqname", "zqtext", "zqvalue", "zqcount", 90817
PROBE_IDS = ("zqidaaaa0", "zqidaaaa1")
"""The ids of probe calls, in a form that every template accepts."""
PROBE: dict[str, Json] = {TEXT_KEY: TEXT, NUMBER_KEY: NUMBER}
"""The arguments of a probe call."""
_DECODER = json.JSONDecoder()
_ID = "\0"
"""Placeholder for the id of a call in a mark."""
_WORD = re.compile(r"\s*([\w.-]+)")
_WORDS: dict[str, Json] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCalls:
    """The marks around calls, which are texts of the template; white space in and around them may vary."""

    before: str
    """The mark before the first call; empty if a call is bare JSON."""
    middle: str | None
    """Between name and arguments; None if the name is inside the JSON."""
    pairs: tuple[str, str, str] | None
    """The marks before a key, between a key and its value, and after a value, if arguments are not JSON."""
    between: str
    after: str

    def read(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
        """Content, and every call in order. A call that cannot be parsed has a problem and its raw text."""
        if not self.before.strip():
            return bare_calls(text, tools)
        before, between, after = map(_loose, (self.before, self.between, self.after))
        calls: list[ToolCall] = []
        content = ""
        place = 0
        while opened := before.search(text, place):
            content += text[place : opened.start()]
            place = opened.end()
            while True:
                found, end = self._one(text, place, tools)
                closed = after.match(text, end) or between.match(text, end)
                raw = text[opened.start() : closed.end() if closed else end]
                if closed is None and found and found[-1].problem is None:
                    found = [replace(call, problem=CallProblem.UNCLOSED) for call in found]
                calls += [replace(call, raw=raw) for call in found]
                place = end
                if following := between.match(text, place):
                    place = following.end()
                    continue
                break
            if closing := after.match(text, place):
                place = closing.end()
        if not calls:
            return text, ()
        return content + text[place:].lstrip(), tuple(calls)

    def _one(self, text: str, place: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        """The call or list of calls at `place`, and where it ends."""
        name = call_id = ""
        if self.middle is not None:
            written = _WORD.match(text, place)
            middle = _loose(self.middle).match(text, written.end()) if written else None
            if written is None or middle is None:
                return self._broken(text, place)
            name, place = written[1], middle.end()
            call_id = middle[1] if middle.re.groups else ""
            if self.pairs is not None:
                return self._pairs(text, name, place, tools)
        while text[place : place + 1].isspace():
            place += 1
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return self._broken(text, place)
        if self.middle is not None:
            return [named_call(name, value, call_id=call_id, raw="")], end
        entries = value if isinstance(value, list) and value else [value]
        return [call_of(entry, raw="") for entry in entries], end

    def _broken(self, text: str, place: int) -> tuple[list[ToolCall], int]:
        """A malformed call, up to the mark that ends one."""
        closing = _loose(self.after).search(text, place) if self.after.strip() else None
        problem = CallProblem.UNCLOSED if closing is None else CallProblem.BAD_JSON
        return [ToolCall(id="", name="", problem=problem)], len(text) if closing is None else closing.start()

    def _pairs(self, text: str, name: str, place: int, tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], int]:
        assert self.pairs is not None
        opening, middle, closing = self.pairs
        pair = re.compile(
            rf"\s*{_pattern(opening)}(.*?){_pattern(middle.rstrip())}(.*?){_pattern(closing.lstrip())}", re.DOTALL
        )
        schema = next((tool.parameters for tool in tools if tool.name == name), {})
        arguments: dict[str, Json] = {}
        problem = None
        while found := pair.match(text, place):
            key, value = found[1].strip(), _between(found[2], middle, closing)
            arguments[key], is_right = _typed(value, schema, key)
            problem = problem if is_right else CallProblem.BAD_JSON
            place = found.end()
        return [ToolCall(id="", name=name, arguments=arguments, problem=problem)], place


def learn_calls(one: str, two: str | None) -> LearnedCalls | None:
    """The marks, from a reply with one probe call and one with two; None if the shape is not known."""
    learned = _learn_json(one) or _learn_named(re.sub("|".join(PROBE_IDS), _ID, one))
    if learned is None:
        return None
    between = f"{learned.after}\n{learned.before}"
    if two is not None:
        between = _gap(learned, re.sub("|".join(PROBE_IDS), _ID, two)) or between
    return replace(learned, between=between)


def _learn_json(text: str) -> LearnedCalls | None:
    for start in re.finditer(r"[{\[]", text):
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        call = call_of(value[0] if isinstance(value, list) and value else value, raw="")
        if call.name == NAME and call.arguments == PROBE:
            return LearnedCalls(before=text[: start.start()], middle=None, pairs=None, between="", after=text[end:])
    return None


def _learn_named(text: str) -> LearnedCalls | None:
    place = text.find(NAME)
    if place < 0:
        return None
    before, rest = text[:place], text[place + len(NAME) :]
    for start in re.finditer(r"[{]", rest):
        try:
            value, end = _DECODER.raw_decode(rest, start.start())
        except (ValueError, RecursionError):
            continue
        if value == PROBE:
            middle = rest[: start.start()]
            return LearnedCalls(before=before, middle=middle, pairs=None, between="", after=rest[end:])
    written = re.fullmatch(rf"(.*?){TEXT_KEY}(.*?){TEXT}(.*?){NUMBER_KEY}(.*?){NUMBER}(.*)", rest, re.DOTALL)
    if written is None or written[2] != written[4]:
        return None
    opening = re.sub(r"\A[^\s<\[]*", "", _common_end(written[1], written[3]))
    closing = written[3].removesuffix(opening)
    if not closing.strip() or not written[5].startswith(closing.rstrip()):
        return None
    return LearnedCalls(
        before=before,
        middle=written[1].removesuffix(opening),
        pairs=(opening, written[2], closing),
        between="",
        after=written[5].removeprefix(closing.rstrip()),
    )


def _gap(learned: LearnedCalls, two: str) -> str:
    """The text between two calls; empty if they are in one JSON list."""
    _, end = learned._one(two, two.find(learned.before) + len(learned.before), ())
    following = two.find(NAME, end)
    if following < 0:
        return ""
    gap = two[end:following]
    if learned.middle is None:
        gap = gap[: max(gap.rfind("{"), 0)]
    return gap


def _loose(mark: str) -> re.Pattern[str]:
    return re.compile(r"\s*" + _pattern(mark))


def _pattern(mark: str) -> str:
    words = r"\s*".join(re.escape(word) for word in mark.split()).replace(_ID, r"([\w.:-]*)")
    return words + (r"\s*" if mark != mark.rstrip() else "")


def _common_end(one: str, other: str) -> str:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return one[len(one) - length :]


def _between(value: str, middle: str, closing: str) -> str:
    """A value without the white space that the template itself puts around it."""
    lead, trail = middle[len(middle.rstrip()) :], closing[: len(closing) - len(closing.lstrip())]
    return value.removeprefix(lead).removesuffix(trail)


def _typed(value: str, schema: Any, key: str) -> tuple[Json, bool]:
    """A value as the type that the tool's schema says, and whether it can be read as that."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    about = properties.get(key) if isinstance(properties, dict) else None
    kind = about.get("type") if isinstance(about, dict) else None
    if kind in ("string", None):
        return value, True
    if value.strip() in _WORDS:
        return _WORDS[value.strip()], True
    try:
        read: Json = json.loads(value)
    except (ValueError, RecursionError):
        return value, False
    return read, True

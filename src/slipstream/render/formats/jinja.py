"""Any chat format, defined by its Jinja template: the family `template`.

A whole conversation is rendered by the template. To extend one, the sampled ids stay, and only the text that the
template writes after the reply is encoded. That text is found by rendering a short stand-in conversation, so the work
of a turn does not grow with the rollout. If the template would change what comes before the reply, `extend` returns
None, and the conversation is rendered again, as a visible fork. Calls are parsed in the shape in which the template
writes one (`learned_calls`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from slipstream.errors import ConfigError
from slipstream.render.adapter import Adapter
from slipstream.render.base import Tokenizer, Traits, same_reply, tools_of
from slipstream.render.formats.calls import as_one_problem
from slipstream.render.formats.chatml import read_calls
from slipstream.render.formats.learned_calls import NAME, PROBE, PROBE_IDS, LearnedCalls, learn_calls
from slipstream.render.template import DATE, ChatTemplate
from slipstream.types import Json, Message, Role, ToolCall, ToolSpec

_QUESTION = Message(role=Role.USER, content="?")
_MORE = Message(role=Role.USER, content="More?")
_MARK = "zqmark"
"""Marks the end of a reply in stand-in conversations."""
_THINKING_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_REMEDY = "name another model.family, or module:Class of a ChatFormat of your own, or evaluate with model.kind=chat"
_NUM_TAIL = 64
"""How many tokens at the end of a prompt are searched for an open thinking mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How a reply ends."""

    stop: str
    opens_next: bool = False
    """Whether the stop token is the first of the next message, as in GLM's format."""


class JinjaFormat:
    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        keep_thinking: bool = True,
        date: str = DATE,
        **variables: Json,
    ) -> None:
        """`variables` are the template's own, such as `enable_thinking`; `date` is its current date."""
        self._tokenizer = tokenizer
        self._keep_thinking = keep_thinking
        self._template = ChatTemplate(source, special_tokens=special_tokens, args=variables, today=date)
        self._adapter = Adapter.of(self._template)
        marks = sorted(filter(str.strip, tokenizer.special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, marks))) if marks else None
        self._think = next((pair for pair in _THINKING_MARKS if pair[0] in source), _THINKING_MARKS[0])
        self._prompt = self._text([_QUESTION], ())
        self._opens_thinking = self._prompt.rstrip().endswith(self._think[0])
        self._header = self._learn_header()
        self._plain_ending = self._learn_ending(Message(role=Role.ASSISTANT, content=_MARK), _MORE)
        call = ToolCall(id="functions.look:0", name="look", arguments={"what": _MARK})
        answer = Message(role=Role.TOOL, content="!", call_id=call.id, name=call.name)
        self._call_ending = self._learn_ending(Message(role=Role.ASSISTANT, calls=(call,)), answer)
        stops = [self._plain_ending.stop, self._call_ending.stop, (special_tokens or {}).get("eos_token", "")]
        ids = (tokenizer.convert_tokens_to_ids(stop) for stop in dict.fromkeys(stops) if stop)
        self.stop_ids: tuple[int, ...] = tuple(index for index in ids if index is not None)
        self._calls = self._learn_calls() if self._adapter.calls else None
        if self._calls is not None and not self._adapter.tools:
            example = ToolCall(id=PROBE_IDS[0], name="<tool>", arguments={"<argument>": "<value>"})
            self._adapter = replace(self._adapter, example=self._written_calls([example]) or "")
        self.traits = Traits()
        if not self._can_say("Hello.", 0):
            raise ConfigError(f"the chat template writes replies in a way that cannot be parsed; {_REMEDY}")
        self.traits = Traits(several_calls=self._can_say("", 2), text_with_call=self._can_say("Look.", 1))
        self.limits = self._find_limits()

    # ------------------------------------------------------------ ChatFormat

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self._encode(self._text(messages, tools))

    def extend(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        if not new or any(message.role is Role.ASSISTANT for message in new):
            return None
        if not self._keep_thinking and self._rewrites_reply(tail, sampled, new, tools):
            return None
        following = self._after_reply(new, tools)
        if following is None:
            return None
        ending = self._ending_before(new)
        ended = next((place for place, index in enumerate(sampled) if index in self.stop_ids), None)
        if ending.opens_next:
            return [*tail, *sampled[:ended], *self._encode(following)]
        stop_ids = self._encode(ending.stop)
        added = self._encode(ending.stop + following)[len(stop_ids) :]
        reply = [*sampled, *stop_ids] if ended is None else sampled[: ended + 1]
        return [*tail, *reply, *added]

    def parse(self, sampled: list[int], tail: list[int], tools: Sequence[ToolSpec]) -> Message:
        ended = next((place for place, index in enumerate(sampled) if index in self.stop_ids), len(sampled))
        text = self._tokenizer.decode(sampled[:ended])
        opening, closing = self._think
        thinking = ""
        if self._tokenizer.decode(tail[-_NUM_TAIL:]).rstrip().endswith(opening):
            thinking, _, text = text.partition(closing)
        elif text.lstrip().startswith(opening):
            thinking, _, text = text.lstrip().removeprefix(opening).partition(closing)
        elif self._opens_thinking and closing in text:
            # The prompt may not open thinking after an answer, as with DeepSeek-R1, and the model may do so anyway.
            head, _, rest = text.partition(closing)
            if not self._read_calls(head, tools)[1]:
                thinking, text = head, rest
        content, calls = self._read_calls(text, tools)
        if len(calls) > 1 and not self.traits.several_calls:
            calls = (as_one_problem(text.removeprefix(content).lstrip()),)
        return Message(
            role=Role.ASSISTANT,
            content=content.lstrip("\n") if thinking else content,
            thinking=thinking.strip(),
            calls=calls,
        )

    def _read_calls(self, text: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
        if self._calls is not None:
            return self._calls.read(text, tools)
        return read_calls(text)

    def encode_reply(self, message: Message) -> list[int]:
        # How a template writes a reply depends on what follows, and no template writes every reply in full everywhere.
        candidates: list[list[int]] = []
        opening = self._encode(self._prompt)
        for text in self._ways_to_say(message):
            whole = self._encode(self._prompt + text)
            ids = whole[len(opening) :] if whole[: len(opening)] == opening else self._encode(text)
            if same_reply(self.parse(ids, opening, tools_of(message)), message):
                return ids
            candidates.append(ids)
        return candidates[0]

    # ------------------------------------------------------------ rendering

    def _text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, add_generation_prompt: bool = True
    ) -> str:
        adapted, shown = self._adapter.adapt(messages, tools)
        return self._template.render(adapted, shown, add_generation_prompt=add_generation_prompt)

    def _before_reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The messages without the opening of the next reply; some templates write an end in its place."""
        opened, ended = (self._text(messages, tools, add_generation_prompt=how) for how in (True, False))
        return opened[: self._end_of_common(opened, ended)]

    def _end_of_common(self, one: str, other: str) -> int:
        """Where two texts start to differ, or the start of the mark that this is inside of."""
        pairs = enumerate(zip(one, other, strict=False))
        length = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
        marks = [mark.span() for mark in self._marks(one)]
        marks += [found.span() for think in self._think for found in re.finditer(re.escape(think), one)]
        return min([length, *(start for start, end in marks if start < length < end)])

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _ending_before(self, new: Sequence[Message]) -> _Ending:
        return self._call_ending if new[0].role is Role.TOOL else self._plain_ending

    def _after_reply(
        self, new: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[Message] = (_QUESTION,)
    ) -> str | None:
        """What the template writes after a reply that `new` follows; None if it refuses, or would change what comes
        before the reply."""
        reply = _stand_in(new)
        try:
            untouched = self._before_reply(before, tools)
            whole = self._text([*before, reply, *new], tools)
        except ConfigError:
            return None
        place = whole.rfind(_MARK)
        if place < 0 or not whole.startswith(untouched):
            return None
        ending = self._ending_before(new)
        at = whole.find(ending.stop, place)
        if at < 0:
            return None
        return whole[at if ending.opens_next else at + len(ending.stop) :]

    def _rewrites_reply(
        self, tail: list[int], sampled: list[int], new: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> bool:
        """Whether the template would leave out thinking of this reply or an earlier one."""
        follows_user = any(message.role is Role.USER for message in new)
        if follows_user and self._drops_thinking(_MORE):
            return True
        reply = self.parse(sampled, tail, tools)
        if not reply.thinking:
            return False
        return self._drops_thinking(*new, calls=reply.calls)

    def _drops_thinking(self, *new: Message, calls: Sequence[ToolCall] = ()) -> bool:
        """Whether a reply's thinking is gone once `new` follows it."""
        reply = replace(_stand_in(new), thinking=NAME)
        try:
            return NAME not in self._text([_QUESTION, reply, *new], ())
        except ConfigError:
            return True

    def _ways_to_say(self, message: Message) -> Iterator[str]:
        """The reply as the template writes it after a prompt, then with its thinking added here."""
        opening, closing = self._think
        ending = self._call_ending if message.calls else self._plain_ending
        answers = [Message(role=Role.TOOL, content="!", call_id=one.id, name=one.name) for one in message.calls]
        for following in (answers or [_MORE], []):
            with suppress(ConfigError):
                whole = self._text([_QUESTION, message, *following], (), add_generation_prompt=False)
                if whole.startswith(self._prompt):
                    yield self._cut(whole[len(self._prompt) :], ending)
        untouched = self._before_reply([_QUESTION], ())
        bare = self._whole_reply(replace(message, thinking=""))
        start = untouched + self._header
        body = bare[len(start) :] if bare.startswith(start) else self._after_header(bare, untouched)
        body = self._cut(body, ending)
        body = re.sub(rf"\A\s*(?:{re.escape(opening)})?\s*{re.escape(closing)}\s*", "", body)
        if self._opens_thinking:
            yield f"{message.thinking}\n{closing}\n\n{body}"
        else:
            yield f"{opening}\n{message.thinking}\n{closing}\n\n{body}" if message.thinking else body

    def _whole_reply(self, message: Message) -> str:
        try:
            return self._text([_QUESTION, message], (), add_generation_prompt=False)
        except ConfigError as refused:
            raise ConfigError(f"this chat format cannot write such a reply: {refused}") from refused

    def _after_header(self, whole: str, untouched: str) -> str:
        """A reply with an unusual header: what follows the prompt's own text, up to a mark."""
        return whole[max(len(untouched), self._end_of_common(whole, self._prompt)) :]

    def _cut(self, text: str, ending: _Ending) -> str:
        """A reply up to and including the token that ends it."""
        reply, stop, _ = text.partition(ending.stop)
        return reply.rstrip("\n") + ending.stop if not stop and ending.opens_next else reply + ending.stop

    def _marks(self, text: str) -> list[re.Match[str]]:
        return list(self._special.finditer(text)) if self._special is not None else []

    # ------------------------------------------------------------ learning the template

    def _learn_header(self) -> str:
        """What the template writes between a user message and the content of a reply."""
        untouched = self._before_reply([_QUESTION], ())
        whole = self._text([_QUESTION, Message(role=Role.ASSISTANT, content=_MARK)], (), add_generation_prompt=False)
        if not whole.startswith(untouched) or _MARK not in whole:
            raise ConfigError(f"the chat template does not show a reply after the message it answers; {_REMEDY}")
        return whole[len(untouched) : whole.index(_MARK)]

    def _learn_ending(self, reply: Message, following: Message) -> _Ending:
        alone = self._text([_QUESTION, reply], (), add_generation_prompt=False).rpartition(_MARK)[2]
        followed = self._text([_QUESTION, reply, following], ()).rpartition(_MARK)[2]
        found = [mark[0] for mark in self._marks(alone)]
        usual = getattr(self, "_plain_ending", None)
        if usual is None or not self._adapter.calls:
            inside = found[:1]
        elif usual.opens_next:
            inside = []
        else:
            inside = [usual.stop] if usual.stop in found else found[-1:]
        if inside:
            return _Ending(stop=inside[0])
        after = self._marks(followed[len(alone) :] if followed.startswith(alone) else followed)
        if not after:
            raise ConfigError(f"the chat template does not end a reply with a token of its own; {_REMEDY}")
        return _Ending(stop=after[0][0], opens_next=True)

    def _learn_calls(self) -> LearnedCalls:
        probes = [ToolCall(id=call_id, name=NAME, arguments=PROBE) for call_id in PROBE_IDS]
        one, two = self._written_calls(probes[:1]), self._written_calls(probes)
        learned = learn_calls(one, two) if one is not None else None
        read = () if learned is None or one is None else learned.read(one, [_tool_of(NAME)])[1]
        if learned is None or [(call.name, call.arguments) for call in read] != [(NAME, PROBE)]:
            raise ConfigError(f"the chat template writes a call as {one!r}, which is not a known shape; {_REMEDY}")
        return learned

    def _written_calls(self, calls: Sequence[ToolCall]) -> str | None:
        """A reply that has only calls, as the template writes it; None if it refuses."""
        answers = [Message(role=Role.TOOL, content="!", call_id=call.id, name=call.name) for call in calls]
        reply = Message(role=Role.ASSISTANT, calls=tuple(calls))
        try:
            whole = self._text([_QUESTION, reply, *answers], ())
        except ConfigError:
            return None
        untouched = self._before_reply([_QUESTION], ())
        start = untouched + self._header
        text = whole[len(start) :] if whole.startswith(start) else self._after_header(whole, untouched)
        last = text.rfind(list(calls[-1].arguments)[-1])
        text = text[: text.find(self._call_ending.stop, last)]
        opening, closing = self._think
        return re.sub(rf"\A\s*(?:{re.escape(opening)})?\s*{re.escape(closing)}\s*", "", text)

    def _can_say(self, content: str, num_calls: int) -> bool:
        calls = [ToolCall(id=call_id, name=NAME, arguments=PROBE) for call_id in PROBE_IDS[:num_calls]]
        reply = Message(role=Role.ASSISTANT, content=content, calls=tuple(calls))
        try:
            ids = self.encode_reply(reply)
        except ConfigError:
            return False
        return same_reply(self.parse(ids, self._encode(self._prompt), tools_of(reply)), reply)

    def _find_limits(self) -> tuple[str, ...]:
        """What this template loses, in sentences."""
        found = [f"the template does not show {what}" for what in self._adapter.lacks()]
        if not self.traits.several_calls:
            found.append("the template cannot show several calls in a reply")
        if not self.traits.text_with_call:
            found.append("the template cannot show text beside a call")
        if NAME not in self._text([_QUESTION, Message(role=Role.ASSISTANT, content=_MARK, thinking=NAME)], ()):
            found.append(f"the template shows no thinking: it is written as text between {' and '.join(self._think)}")
        elif self._drops_thinking(_MORE):
            found.append("the template leaves thinking out once a user message follows")
        if self._after_reply([_MORE], (_PROBE_TOOL,)) is None:
            found.append("the template rewrites earlier messages once a user message follows: each such turn is a fork")
        answer = Message(role=Role.TOOL, content="!", call_id="functions.look:0", name="look")
        later = (_QUESTION, _stand_in([answer]), answer)
        if self._after_reply([answer], (_PROBE_TOOL,)) is None:
            found.append("the template rewrites earlier messages once a tool answers: each turn is a fork")
        elif self._after_reply([answer], (_PROBE_TOOL,)) != self._after_reply([answer], (_PROBE_TOOL,), later):
            found.append("the template writes answers in another way later on: the first way is used throughout")
        return tuple(found)


def _tool_of(name: str) -> ToolSpec:
    properties: dict[str, Json] = {key: {"type": _json_types[type(value)]} for key, value in PROBE.items()}
    return ToolSpec(name=name, description="Look.", parameters={"type": "object", "properties": properties})


_json_types = {str: "string", int: "integer"}
_PROBE_TOOL = _tool_of("look")


def _stand_in(new: Sequence[Message]) -> Message:
    """A reply that `new` may follow, with the mark at its end."""
    answers = [message for message in new if message.role is Role.TOOL]
    calls = tuple(
        ToolCall(id=answer.call_id or "functions.look:0", name=answer.name or "look", arguments={"what": _MARK})
        for answer in answers
    )
    return Message(role=Role.ASSISTANT, content="" if calls else _MARK, calls=calls)

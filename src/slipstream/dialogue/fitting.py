"""Shortens the answers of tools that would fill the context window, so that a large output never ends a rollout.

Input: the messages that a turn adds, and how many tokens they may take. Output: the same messages, the longest answers
with their middle left out. Invariants: only answers of tools are shortened, and each says how much is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.types import Message, Role

MIN_CHARS = 200
"""No answer is made shorter than this."""
RESERVED_SHARE = 1 / 8
"""Of the window: what observations leave for the next reply, unless replies are limited to less."""
_NUM_TRIES = 8
_TAIL_SHARE = 1 / 3
_TOKENS_AROUND = 64
"""More than any template puts around a message."""
_LEFT_OUT = "\n[... {} characters left out: the context window is nearly full ...]\n"
_MARK = re.compile(re.escape(_LEFT_OUT).replace(re.escape("{}"), r"(\d+)"))


def room_beside(window: int, num_used: int, max_tokens: int, reserve: int = 0) -> int:
    """The tokens that observations may take, with `num_used` taken and the next reply limited to `max_tokens`; at least
    `reserve` are left."""
    return window - num_used - max(min(int(window * RESERVED_SHARE), max_tokens), reserve)


def at_most_tokens(messages: Sequence[Message]) -> int:
    """More tokens than these messages can take, without counting: a token is at least a byte."""
    return sum(len(message.content.encode("utf-8", "replace")) + _TOKENS_AROUND for message in messages)


def fit(messages: Sequence[Message], room: int, count: Callable[[Sequence[Message]], int]) -> tuple[Message, ...]:
    """The messages, cut down to `room` tokens as far as shortening answers can; `count` says how many some take."""
    whole = tuple(messages)
    if at_most_tokens(whole) <= room or count(whole) <= room:
        return whole
    too_long = max((len(message.content) for message in whole if message.role is Role.TOOL), default=0)
    fits = MIN_CHARS
    for _ in range(_NUM_TRIES):
        cap = (fits + too_long) // 2
        if count(_capped(whole, cap)) <= room:
            fits = cap
        else:
            too_long = cap
    return _capped(whole, fits)


def is_shortened(short: str, full: str) -> bool:
    """Whether `short` is what `fit` made of `full`."""
    mark = _MARK.search(short)
    while mark is not None:
        head, tail = short[: mark.start()], short[mark.end() :]
        if len(head) + int(mark[1]) + len(tail) == len(full) and full.startswith(head) and full.endswith(tail):
            return True
        mark = _MARK.search(short, mark.start() + 1)
    return False


def _capped(messages: Sequence[Message], cap: int) -> tuple[Message, ...]:
    return tuple(
        replace(message, content=_shortened(message.content, cap)) if message.role is Role.TOOL else message
        for message in messages
    )


def _shortened(text: str, cap: int) -> str:
    if len(text) <= max(cap, MIN_CHARS):
        return text
    num_kept = max(0, cap - len(_LEFT_OUT))
    tail = int(num_kept * _TAIL_SHARE)
    left_out = len(text) - num_kept
    return text[: num_kept - tail] + _LEFT_OUT.format(left_out) + text[len(text) - tail :]

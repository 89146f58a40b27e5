"""Varies the arguments of recorded calls: same types and shapes, but values that no table of answers holds. Pure.

Input: the operations of a session, in the encoding of `graders/replay/worker.py`, and a random generator. Output: the
same operations with one plain value changed, or None if there is none.

Honest code may do anything with arguments that nobody should pass, so properties of the recorded ones are kept: the
signs of numbers, the order of a call's numbers, and that a sequence is sorted or has no duplicates.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.types import Json

NUM_TRIES = 6
INNER_SHARE = 0.6
"""How often an item of a container is changed rather than the container."""


def varied_session(ops: Sequence[Mapping[str, Json]], rng: random.Random) -> list[dict[str, Json]] | None:
    for _ in range(NUM_TRIES):
        changed = [dict(op) for op in ops]
        op = rng.choice(changed)
        args, named = op.get("a"), op.get("k")
        if isinstance(args, list) and args and (not named or rng.random() < 0.7):
            place = rng.randrange(len(args))
            new = varied(args[place], rng)
            is_other = new != args[place]
            op["a"] = [*args[:place], new, *args[place + 1 :]]
        elif isinstance(named, dict) and named:
            name = rng.choice(sorted(named))
            new = varied(named[name], rng)
            is_other = new != named[name]
            op["k"] = {**named, name: new}
        else:
            continue
        if is_other and _keeps_order(args, op["a"]):
            return changed
    return None


def _keeps_order(before: Json, after: Json) -> bool:
    """Whether the numbers among the arguments still have the same order."""
    if not isinstance(before, list) or not isinstance(after, list):
        return True
    both = [(a, b) for a, b in zip(before, after, strict=True) if type(a) is int and type(b) is int]
    return all((a < c) <= (b <= d) and (a > c) <= (b >= d) for a, b in both for c, d in both)


def varied(value: Json, rng: random.Random) -> Json:
    """Another value of the same type; the same value if nothing in it can be varied."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        others = [value + 1, value - 1, value + 2, value - 2, 2 * value, value + rng.randrange(3, 30)]
        return rng.choice([one for one in others if (one >= 0 if value == 0 else one * value > 0)])
    if isinstance(value, str):
        return _varied_text(value, rng)
    if not isinstance(value, list) or not value:
        return value
    tag, *rest = value
    if tag == "f":
        number = float(str(rest[0]))
        scaled = (number / 2, number * 3, number * (1 + rng.random()), number + (1 if number >= 0 else -1))
        return ["f", repr(rng.choice(scaled))]
    if tag == "b":
        return [
            "b",
            _varied_text(bytes.fromhex(str(rest[0])).decode("latin-1"), rng).encode("latin-1", "replace").hex(),
        ]
    if tag in ("l", "t", "s", "z", "d") and isinstance(rest[0], list):
        items = rest[0]
        found = _varied_items(str(tag), items, rng)
        return [tag, _keep_sorted(items, found) if tag in ("l", "t") else found]
    if tag in ("r", "sl"):
        place = rng.randrange(1, len(value))
        return [*value[:place], varied(value[place], rng), *value[place + 1 :]]
    if tag in ("n", "v") and isinstance(rest[1], list):
        return [tag, rest[0], varied(rest[1], rng)]
    return value


def _keep_sorted(before: list[Json], after: list[Json]) -> list[Json]:
    """The items, sorted and without duplicates if they were so before."""
    for kind in (int, str):
        if len(before) < 2 or not all(type(one) is kind for one in (*before, *after)):
            continue
        if len({str(one) for one in before}) == len(before):
            after = list(dict.fromkeys(map(_hashable, after)))
        return sorted(after, key=_hashable) if before == sorted(before, key=_hashable) else after
    return after


def _hashable(value: Json) -> Any:
    """The value, which is a number or a string, with a type that can be hashed and compared."""
    return value


def _varied_items(tag: str, items: list[Json], rng: random.Random) -> list[Json]:
    if not items:
        return items
    place = rng.randrange(len(items))
    chosen = items[place]
    if rng.random() < INNER_SHARE:
        if tag != "d":
            return [*items[:place], varied(chosen, rng), *items[place + 1 :]]
        if isinstance(chosen, list) and len(chosen) == 2:
            part = rng.randrange(2)
            item: list[Json] = [varied(one, rng) if number == part else one for number, one in enumerate(chosen)]
            return [*items[:place], item, *items[place + 1 :]]
    if tag in ("l", "t"):
        kind = rng.randrange(4)
        if kind == 0:
            return [*items[:place], chosen, *items[place:]]
        if kind == 1:
            return items[::-1]
        if kind == 2:
            return [*items[place:], *items[:place]]
    return [*items[:place], *items[place + 1 :]]


def _varied_text(text: str, rng: random.Random) -> str:
    if not text:
        return rng.choice(string.ascii_lowercase)
    place = rng.randrange(len(text))
    old = text[place]
    kind = rng.randrange(5)
    if kind == 0:
        return text[:place] + old + text[place:]
    if kind == 1:
        return text[:place] + text[place + 1 :]
    if kind == 2:
        other = rng.randrange(len(text))
        return text[:place] + text[other] + text[place + 1 :]
    for letters in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if old in letters:
            return text[:place] + rng.choice(letters) + text[place + 1 :]
    return text + rng.choice(string.ascii_lowercase)

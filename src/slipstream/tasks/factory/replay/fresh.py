"""Other arguments for recorded calls: of the same types and shapes, and unlikely to be in anybody's table. Pure.

Input: the operations of a session, encoded as `graders/replay/worker.py` says, and a source of chance. Output: the same
operations with one plain value in them changed, or None where there is none to change.

Honest code may do as it likes with arguments that nobody should pass, so what holds of the recorded ones is kept: signs
of numbers, the order of a call's numbers among themselves, and of sequences that they are sorted or without repeats.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.types import Json

NUM_TRIES = 6
INNER_SHARE = 0.6
"""How often a part of a container is changed, and not the container."""


def varied_session(ops: Sequence[Mapping[str, Json]], chance: random.Random) -> list[dict[str, Json]] | None:
    for _ in range(NUM_TRIES):
        changed = [dict(op) for op in ops]
        op = chance.choice(changed)
        args, named = op.get("a"), op.get("k")
        if isinstance(args, list) and args and (not named or chance.random() < 0.7):
            place = chance.randrange(len(args))
            new = varied(args[place], chance)
            is_other = new != args[place]
            op["a"] = [*args[:place], new, *args[place + 1 :]]
        elif isinstance(named, dict) and named:
            name = chance.choice(sorted(named))
            new = varied(named[name], chance)
            is_other = new != named[name]
            op["k"] = {**named, name: new}
        else:
            continue
        if is_other and _keeps_order(args, op["a"]):
            return changed
    return None


def _keeps_order(before: Json, after: Json) -> bool:
    """Whether the numbers among some arguments compare with each other as they did."""
    if not isinstance(before, list) or not isinstance(after, list):
        return True
    both = [(a, b) for a, b in zip(before, after, strict=True) if type(a) is int and type(b) is int]
    return all((a < c) <= (b <= d) and (a > c) <= (b >= d) for a, b in both for c, d in both)


def varied(value: Json, chance: random.Random) -> Json:
    """A value of the same kind; the same one where nothing is plain in it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        others = [value + 1, value - 1, value + 2, value - 2, 2 * value, value + chance.randrange(3, 30)]
        return chance.choice([one for one in others if (one >= 0 if value == 0 else one * value > 0)])
    if isinstance(value, str):
        return _varied_text(value, chance)
    if not isinstance(value, list) or not value:
        return value
    tag, *rest = value
    if tag == "f":
        number = float(str(rest[0]))
        scaled = (number / 2, number * 3, number * (1 + chance.random()), number + (1 if number >= 0 else -1))
        return ["f", repr(chance.choice(scaled))]
    if tag == "b":
        return [
            "b",
            _varied_text(bytes.fromhex(str(rest[0])).decode("latin-1"), chance).encode("latin-1", "replace").hex(),
        ]
    if tag in ("l", "t", "s", "z", "d") and isinstance(rest[0], list):
        items = rest[0]
        found = _varied_items(str(tag), items, chance)
        return [tag, _like(items, found) if tag in ("l", "t") else found]
    if tag in ("r", "sl"):
        place = chance.randrange(1, len(value))
        return [*value[:place], varied(value[place], chance), *value[place + 1 :]]
    if tag in ("n", "v") and isinstance(rest[1], list):
        return [tag, rest[0], varied(rest[1], chance)]
    return value


def _like(before: list[Json], after: list[Json]) -> list[Json]:
    """The items, sorted and without repeats where they were so before."""
    for kind in (int, str):
        if len(before) < 2 or not all(type(one) is kind for one in (*before, *after)):
            continue
        if len({str(one) for one in before}) == len(before):
            after = list(dict.fromkeys(map(_hashable, after)))
        return sorted(after, key=_hashable) if before == sorted(before, key=_hashable) else after
    return after


def _hashable(value: Json) -> Any:
    """A number or a string, as which it can be compared."""
    return value


def _varied_items(tag: str, items: list[Json], chance: random.Random) -> list[Json]:
    if not items:
        return items
    place = chance.randrange(len(items))
    chosen = items[place]
    if chance.random() < INNER_SHARE:
        if tag != "d":
            return [*items[:place], varied(chosen, chance), *items[place + 1 :]]
        if isinstance(chosen, list) and len(chosen) == 2:
            part = chance.randrange(2)
            item: list[Json] = [varied(one, chance) if number == part else one for number, one in enumerate(chosen)]
            return [*items[:place], item, *items[place + 1 :]]
    if tag in ("l", "t"):
        kind = chance.randrange(4)
        if kind == 0:
            return [*items[:place], chosen, *items[place:]]
        if kind == 1:
            return items[::-1]
        if kind == 2:
            return [*items[place:], *items[:place]]
    return [*items[:place], *items[place + 1 :]]


def _varied_text(text: str, chance: random.Random) -> str:
    if not text:
        return chance.choice(string.ascii_lowercase)
    place = chance.randrange(len(text))
    old = text[place]
    kind = chance.randrange(5)
    if kind == 0:
        return text[:place] + old + text[place:]
    if kind == 1:
        return text[:place] + text[place + 1 :]
    if kind == 2:
        other = chance.randrange(len(text))
        return text[:place] + text[other] + text[place + 1 :]
    for letters in (string.digits, string.ascii_lowercase, string.ascii_uppercase):
        if old in letters:
            return text[:place] + chance.choice(letters) + text[place + 1 :]
    return text + chance.choice(string.ascii_lowercase)

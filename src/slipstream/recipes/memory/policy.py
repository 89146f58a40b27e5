"""Scripted readers: they know a document only from what their tool showed them.

`reader` makes no mistakes. With a lower quality it is the teacher of `slipstream train memory`: it knows the form of
every step and is forgetful. It finds every line that is asked for, and at each later section it keeps what it noted
with probability `quality`; otherwise it goes on as if nothing had been found. Below one half, a student that imitates
it well and takes the likeliest choice forgets at once. Its randomness is the sampling seed of the turn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import slipstream as ss
from slipstream.recipes.memory.needles import Pair

Script = Callable[[ss.ScriptedCall], ss.Message]

UNKNOWN = "?"
_PROBLEM = re.compile(
    r"^(?:Find the line of:|Follow (?P<hops>\d+) lines from:)\n(?P<keys>[a-z]+(?:\n[a-z]+)*)", re.MULTILINE
)
_PAIR = re.compile(r"\b([a-z]+) ([a-z]+|\?)")
_MEMORY = re.compile(r"Memory:\n(.*)")
_SECTION = re.compile(r"Section \d+ of \d+:\n((?:[a-z]+ [a-z]+\n?)+)")
_END = re.compile(r"sections were read")


def reader(*, quality: float = 1.0) -> Script:
    """For documents that are shown in sections."""
    _check(quality)

    def script(scene: ss.ScriptedCall) -> ss.Message:
        chance = random.Random(scene.seed)
        text = scene.prompt_text
        problem = _PROBLEM.search(text)
        known = _pairs(_last(_MEMORY, text))
        if problem is None or "There is no tool" in text:
            return ss.act("finish", answer=UNKNOWN)
        if _END.search(text):
            return ss.act("finish", answer=_answer(problem, known))
        section = _last(_SECTION, text)
        noted = _noted(problem, known, section, chance, quality) if section else _nothing(problem)
        return ss.act("next_with_summary", summary=_written(noted))

    return script


def window_reader(*, quality: float = 1.0) -> Script:
    """For documents that are shown at once."""
    _check(quality)

    def script(scene: ss.ScriptedCall) -> ss.Message:
        chance = random.Random(scene.seed)
        problem = _PROBLEM.search(scene.prompt_text)
        if problem is None:
            return ss.act("finish", answer=UNKNOWN)
        shown = _pairs(scene.prompt_text[problem.end() :])
        if chance.random() < quality:
            return ss.act("finish", answer=_answer(problem, shown))
        return ss.act("finish", answer=_written(_nothing(problem)))

    return script


def _noted(
    problem: re.Match[str], known: Sequence[Pair], section: str, chance: random.Random, quality: float
) -> list[Pair]:
    """What is worth noting after a section, in the order in which it was asked for."""
    found = _found(problem, known, _pairs(section))
    kept = [pair for pair in known if pair.value != UNKNOWN] if chance.random() < quality else []
    noted = {pair.key: pair for pair in (*_nothing(problem), *kept, *found)}
    return list(noted.values())


def _nothing(problem: re.Match[str]) -> list[Pair]:
    """The notes before anything was found."""
    return [Pair(key=key, value=UNKNOWN) for key in _keys(problem)]


def _found(problem: re.Match[str], known: Sequence[Pair], shown: Sequence[Pair]) -> list[Pair]:
    """The lines of a section that the problem asks for."""
    if not problem["hops"]:
        return [pair for pair in shown if pair.key in _keys(problem)]
    found: list[Pair] = []
    path = _path(problem, known)
    word, left = path[-1].value if path else _keys(problem)[0], int(problem["hops"]) - len(path)
    while left and (pair := next((each for each in shown if each.key == word), None)):
        found.append(pair)
        word, left = pair.value, left - 1
    return found


def _answer(problem: re.Match[str], known: Sequence[Pair]) -> str:
    if problem["hops"]:
        path = _path(problem, known)
        return str(path[-1]) if len(path) == int(problem["hops"]) else UNKNOWN
    values = {pair.key: pair.value for pair in known}
    return _written([Pair(key=key, value=values.get(key, UNKNOWN)) for key in _keys(problem)])


def _path(problem: re.Match[str], known: Sequence[Pair]) -> list[Pair]:
    """The lines that were followed so far."""
    steps = {pair.key: pair for pair in known if pair.value != UNKNOWN}
    path: list[Pair] = []
    word = _keys(problem)[0]
    while word in steps and len(path) < int(problem["hops"]):
        path.append(steps[word])
        word = steps[word].value
    return path


def _keys(problem: re.Match[str]) -> list[str]:
    return problem["keys"].split("\n")


def _written(pairs: Sequence[Pair]) -> str:
    return ",".join(map(str, pairs))


def _pairs(text: str) -> list[Pair]:
    return [Pair(key=key, value=value) for key, value in _PAIR.findall(text)]


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return found[-1] if found else ""


def _check(quality: float) -> None:
    if not 0.0 <= quality <= 1.0:
        raise ss.ConfigError(f"quality={quality}: give a probability, from 0 to 1")

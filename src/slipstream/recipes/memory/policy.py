"""Scripted readers: they know a document only from what their tool showed them.

`reader` makes no mistakes. With a lower quality it is the teacher of `slipstream train memory`: it knows the form of every
step and has bad habits. Each choice is right with probability `quality`, otherwise wrong in the same way every time: the
value of the next pair is noted instead of the right one; a note is forgotten; where there is nothing to note, the first
pair of the section is noted as if it had been asked for. Its randomness is the sampling seed of the turn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

import slipstream as ss
from slipstream.recipes.memory.needles import Pair

Script = Callable[[ss.ScriptedCall], ss.Message]

_PROBLEM = re.compile(
    r"^(?:find (?P<keys>[a-z]+(?: [a-z]+)*)|follow (?P<start>[a-z]+) (?P<hops>\d+))(?=$|<\|)", re.MULTILINE
)
_PAIR = re.compile(r"([a-z]+)=([a-z]+)")
_MEMORY = re.compile(r"Memory: (.*)")
_SECTION = re.compile(r"Section \d+ of \d+:\n((?:[a-z]+=[a-z]+\n?)+)")
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
            return ss.act("finish", answer="unknown")
        if _END.search(text):
            return ss.act("finish", answer=_answer(problem, known))
        section = _last(_SECTION, text)
        noted = _noted(problem, known, section, chance, quality) if section else known
        return ss.act("next_with_summary", summary=",".join(str(pair) for pair in noted))

    return script


def window_reader(*, quality: float = 1.0) -> Script:
    """For documents that are shown at once."""
    _check(quality)

    def script(scene: ss.ScriptedCall) -> ss.Message:
        chance = random.Random(scene.seed)
        problem = _PROBLEM.search(scene.prompt_text)
        if problem is None:
            return ss.act("finish", answer="unknown")
        shown = _pairs(scene.prompt_text)
        if chance.random() < quality:
            return ss.act("finish", answer=_answer(problem, shown))
        places = [place for place, pair in enumerate(shown) if pair.key == _keys(problem)[0]] or [0]
        return ss.act("finish", answer=shown[(places[0] + 1) % len(shown)].value)

    return script


def _noted(
    problem: re.Match[str], known: Sequence[Pair], section: str, chance: random.Random, quality: float
) -> list[Pair]:
    """What is worth noting after a section."""
    shown = _pairs(section)
    noted = list(known)
    found = _found(problem, known, shown)
    is_right = chance.random() < quality
    if found:
        if not is_right:
            at = shown.index(found[0])
            found = [Pair(key=found[0].key, value=shown[(at + 1) % len(shown)].value), *found[1:]]
        fresh = {pair.key for pair in found}
        return [pair for pair in noted if pair.key not in fresh] + found
    if is_right:
        return noted
    return [] if noted else [Pair(key=_keys(problem)[0], value=shown[0].value)]


def _found(problem: re.Match[str], known: Sequence[Pair], shown: Sequence[Pair]) -> list[Pair]:
    """The pairs of a section that the problem asks for."""
    if problem["keys"]:
        return [pair for pair in shown if pair.key in _keys(problem)]
    found: list[Pair] = []
    steps = {pair.key: pair.value for pair in known}
    word, left = _followed(problem, steps)
    while left and (pair := next((each for each in shown if each.key == word), None)):
        found.append(pair)
        word, left = pair.value, left - 1
    return found


def _answer(problem: re.Match[str], known: Sequence[Pair]) -> str:
    steps = {pair.key: pair.value for pair in known}
    if problem["keys"]:
        return " ".join(steps.get(key, "unknown") for key in _keys(problem))
    word, left = _followed(problem, steps)
    return "unknown" if left else word


def _followed(problem: re.Match[str], steps: Mapping[str, str]) -> tuple[str, int]:
    """How far the notes lead: the word there, and how many hops are left."""
    word, left = problem["start"], int(problem["hops"])
    while left and word in steps:
        word, left = steps[word], left - 1
    return word, left


def _keys(problem: re.Match[str]) -> list[str]:
    keys: str = problem["keys"] or problem["start"]
    return keys.split()


def _pairs(text: str) -> list[Pair]:
    return [Pair(key=key, value=value) for key, value in _PAIR.findall(text)]


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return found[-1] if found else ""


def _check(quality: float) -> None:
    if not 0.0 <= quality <= 1.0:
        raise ss.ConfigError(f"quality={quality}: give a probability, from 0 to 1")

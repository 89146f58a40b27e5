"""Needle tasks of any length, with a closed vocabulary: a document of lines that are a key and a value, a word each.

Three kinds. `needle`: the line of one key. `needles`: the lines of several keys, in the order in which they were asked
for. `hops`: from the line of a key to that of its value, which is in a later section, and so on.

    Find the line of:\nkelp             ->  kelp lotus
    Find the line of:\nkelp\namber      ->  kelp lotus,amber pearl
    Follow 2 lines from:\nkelp          ->  lotus pearl       after `kelp lotus` in an earlier section

Built for small models: the vocabulary is closed, the key of no line that is asked for is there twice, and what has to
be remembered is a few words at most. The same arguments always give the same tasks. Train and held-out tasks share no
document.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

import slipstream as ss
from slipstream.recipes.memory.document import Sizes, document_task
from slipstream.recipes.memory.tools import finish

Kind = Literal["needle", "needles", "hops", "mixed"]
Split = Literal["all", "train", "held_out"]

WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven", "ivory", "jade", "kelp", "lotus", "maple",
    "north", "olive", "pearl", "quartz", "raven", "slate", "thorn", "umber", "velvet", "willow", "yarrow", "zephyr",
    "acorn", "bramble", "coral", "dune", "elm", "fern", "glade", "harbor", "indigo", "juniper", "krill", "larch",
    "moss", "nectar", "onyx", "plume", "quill", "reef", "sable", "tundra", "urchin", "violet", "wharf",
)  # fmt: skip
FIND, FOLLOW = "Find the line of:", "Follow {} lines from:"
_NUM_HELD_OUT = 4  # one document in four
_KINDS: tuple[Literal["needle", "needles", "hops"], ...] = ("needle", "needles", "hops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key} {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    problem: str
    answer: str
    sections: tuple[tuple[Pair, ...], ...]

    def texts(self) -> list[str]:
        return ["\n".join(map(str, section)) for section in self.sections]

    @property
    def digest(self) -> int:
        return zlib.crc32("\n\n".join(self.texts()).encode())

    @property
    def split(self) -> Split:
        return "held_out" if self.digest % _NUM_HELD_OUT == 0 else "train"


def needle_tasks(
    *,
    num: int = 64,
    seed: int = 0,
    kind: Kind = "needle",
    sections: int = 4,
    pairs: int = 5,
    needles: int = 2,
    words: int = len(WORDS),
    split: Split = "all",
    window: bool = False,
) -> Iterator[ss.Task]:
    """`num` tasks over documents of `sections` sections with `pairs` lines each. `needles` is the number of keys, or of
    hops, and `words` the size of the vocabulary. `kind=mixed` takes the kinds in turn. With `window` the whole document
    is in the question, for an agent without a memory."""
    _check(num=num, sections=sections, pairs=pairs, needles=needles, words=words, kind=kind, split=split)
    chance = random.Random(f"needles {seed} {kind} {sections} {pairs} {needles} {words} {split}")
    for index in range(num):
        chosen = _KINDS[index % len(_KINDS)] if kind == "mixed" else kind
        puzzle = _puzzle(chance, chosen, sections, pairs, needles, WORDS[:words])
        while split not in ("all", puzzle.split):
            puzzle = _puzzle(chance, chosen, sections, pairs, needles, WORDS[:words])
        name = f"{index:05d}-{chosen}-of-{sections}-{puzzle.digest:08x}"
        yield _window_task(name, puzzle) if window else _memory_task(name, puzzle)


def _memory_task(name: str, puzzle: Puzzle) -> ss.Task:
    sizes = Sizes(memory_tokens=64, max_sections=len(puzzle.sections))
    return document_task(
        id=name,
        problem=puzzle.problem,
        sections=puzzle.texts(),
        grader=ss.exact(puzzle.answer),
        sizes=sizes,
        system="",
    )


def _window_task(name: str, puzzle: Puzzle) -> ss.Task:
    whole = "\n".join(puzzle.texts())
    return ss.Task(
        id=name,
        instruction=f"{puzzle.problem}\n\n{whole}",
        tools=[finish],
        grader=ss.exact(puzzle.answer),
        limits=ss.AgentLimits(turns=2, context_tokens=32_768, tool_seconds=60.0),
    )


def _puzzle(
    chance: random.Random,
    kind: Literal["needle", "needles", "hops"],
    num_sections: int,
    num_pairs: int,
    num_needles: int,
    words: Sequence[str],
) -> Puzzle:
    num = 1 if kind == "needle" else num_needles
    if kind == "hops":
        asked = [Pair(key=key, value=value) for key, value in pairwise(chance.sample(words, num + 1))]
        problem, answer = f"{FOLLOW.format(num)}\n{asked[0].key}", str(asked[-1])
        places = sorted(chance.sample(range(num_sections), num))  # a hop is found only if it comes after the one before
    else:
        drawn = chance.sample(words, 2 * num)
        asked = [Pair(key=key, value=value) for key, value in zip(drawn[:num], drawn[num:], strict=True)]
        problem = "\n".join((FIND, *(pair.key for pair in asked)))
        answer = ",".join(map(str, asked))
        places = [chance.randrange(num_sections) for _ in asked]
    keys = {pair.key for pair in asked} | ({asked[-1].value} if kind == "hops" else set())
    others = [word for word in words if word not in keys]
    filled: list[tuple[Pair, ...]] = []
    for place in range(num_sections):
        own = [pair for pair, at in zip(asked, places, strict=True) if at == place]
        distractors = chance.sample(others, num_pairs - len(own))
        section = own + [Pair(key=key, value=_other(chance, words, key)) for key in distractors]
        chance.shuffle(section)
        filled.append(tuple(section))
    return Puzzle(problem=problem, answer=answer, sections=tuple(filled))


def _other(chance: random.Random, words: Sequence[str], key: str) -> str:
    return next(islice((word for word in iter(lambda: chance.choice(words), None) if word != key), 1))


def _check(*, num: int, sections: int, pairs: int, needles: int, words: int, kind: str, split: str) -> None:
    for name, value in (("num", num), ("sections", sections), ("pairs", pairs), ("needles", needles)):
        if value < 1:
            raise ss.ConfigError(f"{name}={value}: give 1 or more")
    if kind not in (*_KINDS, "mixed"):
        raise ss.ConfigError(f'kind="{kind}": give one of {", ".join(_KINDS)}, mixed')
    if split not in ("all", "train", "held_out"):
        raise ss.ConfigError(f'split="{split}": give one of all, train, held_out')
    if kind in ("needles", "hops", "mixed") and needles > 4:
        raise ss.ConfigError(f"needles={needles}: give 4 or fewer")
    if kind in ("hops", "mixed") and needles > sections:
        raise ss.ConfigError(f"needles={needles} hops do not fit into sections={sections}: each is in one of its own")
    if not 2 * needles <= words <= len(WORDS):
        raise ss.ConfigError(f"words={words}: give at least {2 * needles} and at most {len(WORDS)}")
    most = words - needles - 1
    if not needles <= pairs <= most:
        raise ss.ConfigError(f"pairs={pairs}: give at least needles={needles}, and at most {most} of words={words}")

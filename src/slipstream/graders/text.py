"""Graders of text answers: exact match and token F1, after the normalisation usual for question answering.

    {"kind": "exact", "expected": ["Paris", "paris, france"]}

Invariants: a missing or blank answer is right only if a blank one is expected. Normalisation drops case, the articles
a, an and the, punctuation and extra space. It keeps what distinguishes numbers and names: the sign of a number,
punctuation between digits (1.5, 3-5, 1/2, 10:30), the point of .5, and + and # after a word (C++, C#). A thousands
comma is dropped; any other comma between digits separates them. If normalisation leaves nothing, as with "A" or "%",
answers are compared with their articles, and if that leaves nothing either, as they are except for case.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field

from slipstream.graders.base import GradeContext
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.offload import WorkTooLarge, by_size
from slipstream.types import Artifact, Grading, Json, Verdict

_ARTICLES = re.compile(r"(?<![\w+#])(?:a|an|the)(?![\w+#])")
_PUNCTUATION = re.compile(
    r"""(
      (?<=\d) [-.:/^*=] (?=\d)          # within a number, a range, a ratio, a time, a date
    | (?<=\de) - (?=\d)                # 1e-5
    | (?<![\w-]) - (?=[$€£¥]?\.?\d)    # a sign
    | (?<![\w.]) \. (?=\d)             # .5
    | (?<=\w) [+#]+                    # C++, C#
    )"""
    rf"| [{re.escape(string.punctuation)}]",
    re.VERBOSE,
)
"""The group is kept."""
_PARTING_COMMA = re.compile(r"(?<=\d),(?=\d)(?!\d{3}(?!\d))")


class AnswerSpec(GraderSpec):
    expected: str | Annotated[list[str], Field(min_length=1)]
    """One answer, or several that are equally right."""
    normalise: bool = True
    """Ignore case, punctuation, articles and extra space, as the module's docstring says."""

    @property
    def answers(self) -> list[str]:
        return [self.expected] if isinstance(self.expected, str) else self.expected


class ExactMatch:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("exact", AnswerSpec, spec)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("exact", AnswerSpec, grading.spec)
        return await _verdict(is_right, artifact, spec)


class TokenF1:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("f1", AnswerSpec, spec)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("f1", AnswerSpec, grading.spec)
        return await _verdict(_best_f1, artifact, spec)


async def _verdict(score: Callable[[str, AnswerSpec], float], artifact: Artifact, spec: AnswerSpec) -> Verdict:
    """A long answer is compared in a separate process."""
    given = artifact.answer or ""
    num_bytes = len(given) + sum(map(len, spec.answers))
    try:
        return Verdict(reward=await by_size(score, given, spec, num_bytes=num_bytes))
    except WorkTooLarge as raised:
        return Verdict(reward=0.0, detail=f"the answer is too long to compare: {raised}")


def is_right(given: str, spec: AnswerSpec) -> float:
    """1 if the answer is one of those expected, else 0."""
    return float(any(same(given, answer) if spec.normalise else given == answer for answer in spec.answers))


def _best_f1(given: str, spec: AnswerSpec) -> float:
    return max((token_f1(given, answer, normalise=spec.normalise) for answer in spec.answers), default=0.0)


def same(given: str, expected: str) -> bool:
    """Whether two answers are equal after as much normalisation as leaves something to compare."""
    for look in (normalised, _without_punctuation):
        ours, theirs = look(given), look(expected)
        if ours and theirs:
            return ours == theirs
    return given.strip().casefold() == expected.strip().casefold()


def normalised(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", _without_punctuation(text)).split())


def _without_punctuation(text: str) -> str:
    text = text.casefold().replace("\N{MINUS SIGN}", "-")
    return " ".join(_PUNCTUATION.sub(r"\1", _PARTING_COMMA.sub(" ", text)).split())


def token_f1(given: str, expected: str, *, normalise: bool = True) -> float:
    """The harmonic mean of precision and recall over words, counting repetitions. If one side has no words: 1 if both
    are the same, else 0."""
    ours, theirs = ((normalised(text) if normalise else text).split() for text in (given, expected))
    if not ours or not theirs:
        return float(same(given, expected) if normalise else ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))

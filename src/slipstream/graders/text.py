"""Graders of an answer: exact match and token F1, after the normalisation usual for question answering.

Example: `{"kind": "exact", "expected": ["Paris", "paris, france"]}`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from slipstream.graders.base import GradeContext
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.types import Artifact, Grading, Json, Verdict

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class AnswerSpec(GraderSpec):
    expected: str | Annotated[list[str], Field(min_length=1)]
    """One answer, or several that are equally right."""
    normalise: bool = True
    """Compare without case, punctuation, articles and extra space."""

    @property
    def answers(self) -> list[str]:
        return [self.expected] if isinstance(self.expected, str) else self.expected


class ExactMatch:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("exact", AnswerSpec, spec)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("exact", AnswerSpec, grading.spec)
        given = artifact.answer or ""
        if spec.normalise:
            right = normalised(given) in {normalised(answer) for answer in spec.answers}
        else:
            right = given in spec.answers
        return Verdict(reward=float(right))


class TokenF1:
    needs_sandbox = False

    def check(self, spec: Mapping[str, Json]) -> None:
        read_spec("f1", AnswerSpec, spec)

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("f1", AnswerSpec, grading.spec)
        scores = [token_f1(artifact.answer or "", answer, normalise=spec.normalise) for answer in spec.answers]
        return Verdict(reward=max(scores, default=0.0))


def normalised(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def token_f1(given: str, expected: str, *, normalise: bool = True) -> float:
    """The harmonic mean of precision and recall over words, each counted as often as it occurs."""
    ours, theirs = ((normalised(text) if normalise else text).split() for text in (given, expected))
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))

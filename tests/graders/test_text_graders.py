"""Graders of an answer: exact match and token F1."""

import asyncio
from collections.abc import Mapping

import pytest

from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.registry import find_grader
from slipstream.graders.text import normalised, token_f1
from slipstream.sandbox.fake import FakeProvider
from slipstream.types import Artifact, Grading, Json, SandboxSpec


def reward(kind: str, answer: str | None, spec: Mapping[str, Json]) -> float:
    provider = FakeProvider()
    context = GradeContext(provider=provider, sandbox=SandboxSpec())
    grader = find_grader(kind)
    assert not grader.needs_sandbox
    verdict = asyncio.run(grader.grade(Grading(kind=kind, spec=spec), Artifact(answer=answer), context))
    assert provider.sandboxes == []
    return verdict.reward


def test_normalisation_drops_case_punctuation_articles_and_space() -> None:
    assert normalised("  The   Eiffel-Tower, in\tParis!\n") == "eiffeltower in paris"
    assert normalised("a an the") == ""
    assert normalised("theatre analysis") == "theatre analysis"


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("Paris", "Paris", 1.0),
        (" the paris. ", "Paris", 1.0),
        ("Paris, France", "Paris", 0.0),
        ("Paris, France", ["Paris", "paris france"], 1.0),
        (None, "Paris", 0.0),
        ("", "", 1.0),
    ],
)
def test_exact_match_is_after_normalisation(answer: str | None, expected: Json, right: float) -> None:
    assert reward("exact", answer, {"expected": expected}) == right


def test_exact_match_can_be_to_the_letter() -> None:
    assert reward("exact", "paris", {"expected": "Paris", "normalise": False}) == 0.0
    assert reward("exact", "Paris", {"expected": ["x", "Paris"], "normalise": False}) == 1.0


@pytest.mark.parametrize(
    ("given", "expected", "score"),
    [
        # 2 common words of 3 and 4: precision 2/3, recall 2/4, so 2 * (2/3 * 1/2) / (2/3 + 1/2) = 4/7.
        ("red green blue", "green blue black white", 4 / 7),
        # "red" counts as often as it occurs on both sides: 2 common of 3 and 2, so 4/5.
        ("red red red", "red red", 4 / 5),
        ("the red", "red", 1.0),
        ("red", "blue", 0.0),
        ("", "red", 0.0),
        ("red", "", 0.0),
        ("the", "a", 1.0),
    ],
)
def test_f1_by_hand(given: str, expected: str, score: float) -> None:
    assert token_f1(given, expected) == pytest.approx(score, abs=1e-12)


def test_f1_without_normalisation_compares_words_as_they_are() -> None:
    assert token_f1("The red", "the red", normalise=False) == 0.5


def test_f1_takes_the_best_of_several_answers() -> None:
    assert reward("f1", "red green", {"expected": ["blue", "red"]}) == pytest.approx(2 / 3)
    assert reward("f1", None, {"expected": ["blue"]}) == 0.0


@pytest.mark.parametrize("kind", ["exact", "f1"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "expected"),
        ({"expected": 3}, "expected"),
        ({"expected": []}, "expected"),
        ({"expected": "x", "normalize": True}, 'did you mean "normalise"?'),
    ],
)
def test_a_wrong_spec_names_grader_and_key(kind: str, spec: Mapping[str, Json], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_grader(kind).check(spec)
    assert f'grading "{kind}"' in str(raised.value)
    assert said in str(raised.value)

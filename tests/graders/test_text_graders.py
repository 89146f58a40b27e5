"""Graders of text answers: exact match and token F1."""

import asyncio
import time
from collections.abc import Mapping
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.registry import find_grader
from slipstream.graders.text import normalised, same, token_f1
from slipstream.sandbox.fake import FakeProvider
from slipstream.types import Artifact, Grading, Json, SandboxSpec

MAX_LOOP_CPU_S = 0.3
"""Of the thread of the event loop. Compared there, the answer takes several times as much."""


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


NO_NAMES = ["A", "The", "an", "%", "+", "?!", "-"]
"""Answers of which normalisation leaves nothing."""


@pytest.mark.parametrize("kind", ["exact", "f1"])
@pytest.mark.parametrize("expected", NO_NAMES)
def test_an_answer_that_normalisation_empties_is_still_compared(kind: str, expected: str) -> None:
    assert reward(kind, expected, {"expected": expected}) == 1.0
    assert reward(kind, f" {expected.upper()}\n", {"expected": expected}) == 1.0
    for other in (None, "", " \n", "B", *(other for other in NO_NAMES if other != expected)):
        assert reward(kind, other, {"expected": expected}) == 0.0


@pytest.mark.parametrize("kind", ["exact", "f1"])
def test_no_answer_is_right_only_where_none_is_expected(kind: str) -> None:
    for blank in (None, "", " \n"):
        assert reward(kind, blank, {"expected": " "}) == 1.0
        assert reward(kind, blank, {"expected": ["x", ""]}) == 1.0
        assert reward(kind, blank, {"expected": ["x", "the"]}) == 0.0


@given(st.sampled_from(["", " ", "\n"]), st.text(alphabet="aA the.,%+-#15", max_size=8))
def test_a_blank_answer_is_never_right_for_another(blank: str, expected: str) -> None:
    assert same(blank, expected) == (not expected.strip())
    assert token_f1(blank, expected) == float(not expected.strip())


@pytest.mark.parametrize("kind", ["exact", "f1"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("5", "-5"),
        ("5", "\N{MINUS SIGN}5"),
        ("$5", "-$5"),
        ("15", "1.5"),
        ("15", "1,5"),
        ("5", ".5"),
        ("35", "3-5"),
        ("12", "1/2"),
        ("1030", "10:30"),
        ("102", "10^2"),
        ("1e5", "1e-5"),
        ("C", "C++"),
        ("C", "C#"),
        ("C#", "C++"),
        ("A", "A+"),
        ("B", "B+"),
        ("+", "A+"),
    ],
)
def test_another_number_or_name_is_wrong(kind: str, given: str, expected: str) -> None:
    assert reward(kind, given, {"expected": expected}) == 0.0
    assert reward(kind, expected, {"expected": given}) == 0.0
    assert reward(kind, f"{expected}.", {"expected": expected}) == 1.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1,000,000", "1000000"),
        ("$1,234.50", "1234.50"),
        ("\N{MINUS SIGN}5", "-5"),
        ("(-5)", "-5"),
        ("-$5", "$-5"),
        ("+5", "5"),
        ("1,2,3", "1, 2, 3"),
        ("The answer: 42.", "answer 42"),
        ("#1", "1"),
        ("C++!", "c++"),
        ("COVID-19", "covid19"),
        ("U.S.", "US"),
        ("(A)", "a."),
    ],
)
def test_another_way_to_write_it_is_right(given: str, expected: str) -> None:
    assert reward("exact", given, {"expected": expected}) == 1.0
    assert reward("exact", expected, {"expected": given}) == 1.0


@given(st.integers(), st.integers())
def test_whole_numbers_are_the_same_if_they_are_equal(one: int, other: int) -> None:
    for written in (str(other), f"{other:,}"):
        assert same(str(one), written) == (one == other)
        assert token_f1(str(one), written) == float(one == other)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.decimals(-20, 20, allow_nan=False, places=3))
def test_decimals_are_the_same_if_they_are_equal(one: Decimal, other: Decimal) -> None:
    one, other = abs(one) if one == 0 else one, abs(other) if other == 0 else other
    assert same(f"{one:f}", f"{other:,f}") == (one == other)
    assert same(f"{other:f}", f"{other:,f}")


@given(st.text())
def test_every_answer_is_right_for_itself(text: str) -> None:
    assert same(text, text)
    assert token_f1(text, text) == 1.0


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
        ("the", "a", 0.0),
        ("the", "the red", 0.0),
        ("the", "The", 1.0),
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


@pytest.mark.parametrize("kind", ["exact", "f1"])
def test_a_long_answer_is_compared_beside_the_event_loop(kind: str) -> None:
    async def main() -> tuple[float, float]:
        context = GradeContext(provider=FakeProvider(), sandbox=SandboxSpec())
        artifact = Artifact(answer="word " * 2_000_000)
        before_s = time.thread_time()
        verdict = await find_grader(kind).grade(Grading(kind=kind, spec={"expected": "a word"}), artifact, context)
        return verdict.reward, time.thread_time() - before_s

    score, loop_cpu_s = asyncio.run(main())
    assert score < 1e-5
    assert loop_cpu_s < MAX_LOOP_CPU_S

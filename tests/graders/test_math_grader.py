r"""Answers equal as mathematics: text, then numbers, then math-verify in a process that hostile answers cannot hold."""

import asyncio

import pytest

import slipstream as ss
from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.math import MathGrader, final_answer, number_of, plain
from slipstream.offload import OffloadLimits
from slipstream.sandbox.fake import FakeProvider
from slipstream.types import Artifact, SandboxSpec, Verdict


def verdict(answer: str, *expected: str, symbolic: bool = True) -> Verdict:
    grading = ss.math(*expected, symbolic=symbolic)
    context = GradeContext(provider=FakeProvider(), sandbox=SandboxSpec())
    grader = MathGrader(OffloadLimits(cpu_s=4, memory_bytes=1 << 30, result_bytes=1 << 20))
    return asyncio.run(grader.grade(grading, Artifact(answer=answer), context))


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("42", "42", 1.0),
        (r"So the answer is \boxed{\dfrac{3}{4}}.", r"\frac{3}{4}", 1.0),
        ("The final answer is: 1,234", "1234", 1.0),
        ("0.75", "3/4", 1.0),
        (r"\boxed{0.333}", r"\frac{1}{3}", 0.0),
        ("$12$ ", "12.0", 1.0),
        (r"x \boxed{1} and \boxed{2}", "1", 0.0),
        ("-5", "\N{MINUS SIGN}5", 1.0),
        ("7", "8", 0.0),
        ("", "8", 0.0),
        ("1/0", "8", 0.0),
    ],
)
def test_text_and_numbers_need_no_process(answer: str, expected: str, reward: float) -> None:
    assert verdict(answer, expected, symbolic=False).reward == reward


def test_any_of_several_answers_will_do() -> None:
    assert verdict("two", "2", "two", symbolic=False).reward == 1.0


def test_what_is_compared() -> None:
    assert final_answer(r"\boxed{\frac{1}{2}} text") == r"\frac{1}{2}"
    assert final_answer(r"\boxed{ 3") == "3"
    assert plain(r"\left( 1,\ 2 \right)") == plain("(1,2)")
    assert number_of("9" * 1_000) is None and number_of("x") is None


symbolic = pytest.mark.skipif(
    not pytest.importorskip("importlib.util").find_spec("math_verify"), reason="math-verify is not installed"
)


@symbolic
@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", 1.0),
        ("(x+1)^2", "x^2+2x+1", 1.0),
    ],
)
def test_expressions_are_compared_symbolically(answer: str, expected: str, reward: float) -> None:
    assert verdict(answer, expected).reward == reward


@symbolic
@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^{9^{9}}}}",
        r"\frac{" * 250 + "1" + "}{2}" * 250,
    ],
)
def test_a_hostile_answer_is_worth_0_and_no_failure(answer: str) -> None:
    assert verdict(answer, r"\sqrt{2}").reward == 0.0


def test_an_endless_answer_is_not_read() -> None:
    found = verdict("1" * 5_000, r"\sqrt{2}")
    assert found.reward == 0.0 and "5000 characters" in found.detail


def test_a_grading_without_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected"):
        MathGrader().check({"expected": []})

r"""The `math` grader: whether an answer equals an expected one as mathematics.

    {"kind": "math", "expected": ["\\frac{3}{4}", "0.75"]}

What is compared is the last \boxed{...} of the answer if it has one, else all of it. First as text, then as numbers,
and only then symbolically, by math-verify in a process that is killed if the answer keeps it busy: sympy may compute
for ever, and the agent chose the expression.
Invariants: an answer that is too long, too deep or too hard to compare is worth 0, never a failure; `1/3` is not equal
to 0.333.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from fractions import Fraction

from pydantic import Field

from slipstream.errors import ConfigError
from slipstream.graders.base import GradeContext
from slipstream.graders.spec import GraderSpec, read_spec
from slipstream.offload import OffloadLimits, WorkTooLarge, apart
from slipstream.types import Artifact, Grading, Json, Verdict

MAX_CHARS = 2_000
"""A longer answer is no answer to a question of this kind."""
MAX_NUMBER_CHARS = 400
LIMITS = OffloadLimits(cpu_s=8, memory_bytes=2 << 30, result_bytes=1 << 20)
"""Of a symbolic comparison, of which importing sympy takes a second or two."""
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LEAD = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s*", re.IGNORECASE)
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\s+")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:/\d+)?")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")


class MathSpec(GraderSpec):
    expected: str | list[str] = Field(min_length=1)
    """Answers that are equally right, as LaTeX or plain."""
    symbolic: bool = True
    """Off: answers are compared as text and as numbers alone."""

    @property
    def answers(self) -> list[str]:
        return [self.expected] if isinstance(self.expected, str) else self.expected


class MathGrader:
    needs_sandbox = False

    def __init__(self, limits: OffloadLimits = LIMITS) -> None:
        self._limits = limits

    def check(self, spec: Mapping[str, Json]) -> None:
        read = read_spec("math", MathSpec, spec)
        if read.symbolic and importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "the math grader needs math-verify: pip install 'slipstream[math]' (or set symbolic=false in the "
                "grading, to compare text and numbers alone)"
            )

    async def grade(self, grading: Grading, artifact: Artifact, context: GradeContext) -> Verdict:
        spec = read_spec("math", MathSpec, grading.spec)
        given = final_answer(artifact.answer or "")
        if not given:
            return Verdict(reward=0.0, detail="there is no answer")
        if len(given) > MAX_CHARS:
            return Verdict(
                reward=0.0, detail=f"the answer has {len(given)} characters: no more than {MAX_CHARS} are read"
            )
        answers = [final_answer(answer) for answer in spec.answers]
        if any(plain(given) == plain(answer) for answer in answers):
            return Verdict(reward=1.0, detail="equal as text")
        number, numbers = number_of(given), [number_of(answer) for answer in answers]
        if number is not None and number in numbers:
            return Verdict(reward=1.0, detail="equal as numbers")
        if not spec.symbolic or (number is not None and None not in numbers):
            return Verdict(reward=0.0, detail="not equal")
        try:
            is_equal = await apart(equal_symbolically, given, answers, limits=self._limits)
        except WorkTooLarge as raised:
            return Verdict(reward=0.0, detail=f"the answer is too hard to compare: {raised}")
        return Verdict(reward=float(is_equal), detail="equal as expressions" if is_equal else "not equal")


def final_answer(text: str) -> str:
    """The last boxed expression; the text without its introduction if nothing is boxed."""
    starts = [found.end() for found in _BOXED.finditer(text)]
    if not starts:
        return _LEAD.sub("", text.strip()).strip()
    start, depth = starts[-1], 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[start:at].strip()
    return text[start:].strip()


def plain(text: str) -> str:
    """Without what does not change the meaning of an answer: spaces, dollar signs, sizes of brackets, a full stop."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("\\$", "").replace("$", "").replace("\\%", "%")
    text = _WRAPPED.sub(r"\1", text)
    text = _SPACES.sub("", text).replace("\\left", "").replace("\\right", "").replace("\\dfrac", "\\frac")
    return _THOUSANDS.sub("", text.replace("\\tfrac", "\\frac")).rstrip(".").casefold()


def number_of(text: str) -> Fraction | None:
    """The number that a text is; None if it is anything else."""
    text = plain(text)
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if written := _FRACTION.fullmatch(text):
        text = f"{written[1]}{written[2]}/{written[3]}".replace("--", "").replace("+-", "-")
    if not _NUMBER.fullmatch(text):
        return None
    top, _, bottom = text.partition("/")
    try:
        return Fraction(top) / (Fraction(bottom) if bottom else 1)
    except (ValueError, ZeroDivisionError):
        return None


def equal_symbolically(given: str, answers: list[str]) -> bool:
    """Whether math-verify takes the answer for one of those expected. For a process of its own."""
    from math_verify import parse, verify

    theirs = parse(_dressed(given), parsing_timeout=None, raise_on_error=False)
    if not theirs:
        return False
    for answer in answers:
        ours = parse(_dressed(answer), parsing_timeout=None, raise_on_error=False)
        if ours and verify(ours, theirs, timeout_seconds=None, raise_on_error=False):
            return True
    return False


def _dressed(text: str) -> str:
    """As mathematics in a text, which is where the parser looks for it."""
    return f"\\boxed{{{text.strip('$ ')}}}"

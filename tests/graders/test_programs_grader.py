"""Programs are graded by what they print and return, and nothing that they do besides pays."""

import pytest
from program_stage import graded, needs_linux

import slipstream as ss
from slipstream.errors import ConfigError, GraderError
from slipstream.graders.programs.compare import same_output, same_value
from slipstream.graders.programs.grader import ProgramsGrader, code_of
from slipstream.types import Artifact, Json

SUMS = [("3 4\n", "7\n"), ("10 -3\n", "7\n"), ("2 2\n", "4\n")]
ADD = "print(sum(map(int, input().split())))"
SECOND = "def second(items):\n    return sorted(set(items))[-2]\n"
CHECK = """
def check(candidate):
    assert candidate([1, 2, 3]) == 2
    assert abs(candidate([0.5, 1.5]) - 0.5) < 1e-6
    try:
        candidate([1])
    except IndexError:
        pass
    else:
        assert False
"""

ATTACKS = {
    "exits early": "import os\nos._exit(0)",
    "ends early": "raise SystemExit(0)",
    "prints success": "print('7\\n' * 3)\nprint('OK', 'passed', 1.0)",
    "forges a reply": 'import os\nos.write(1, b\'{"outcomes": [{"value": 2}], "failed": ""}\')\nos._exit(0)',
    "forges on every descriptor": (
        "import os\nfor fd in range(3, 30):\n    try:\n"
        '        os.write(fd, b\'{"outcomes": [{"value": 2}, {"value": 0.5}, {"value": 0}], "failed": ""}\')\n'
        "    except OSError:\n        pass\nos._exit(0)"
    ),
    "reads what is expected": (
        "import glob, gc, os, sys\n"
        "text = ''\n"
        "places = [*glob.glob('/work/**', recursive=True), *glob.glob('/tmp/**', recursive=True)]\n"
        "for path in [*places, *glob.glob('/proc/[0-9]*/*')]:\n"
        "    try:\n        text += open(path, errors='replace').read()\n    except OSError:\n        pass\n"
        "print(text)\n"
        "second = lambda items: text\n"
    ),
    "equals everything": (
        "class Same(float):\n    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\n"
        "    __hash__ = float.__hash__\n    __sub__ = __rsub__ = lambda *_: Same(0)\n"
        "    __lt__ = __le__ = lambda *_: True\n    __abs__ = lambda one: one\n"
        "second = lambda items: Same(1e9)\n"
    ),
    "replaces the checks": (
        "import builtins, json, sys\n"
        'json.dumps = lambda *_, **__: \'{"failed": ""}\'\n'
        "builtins.abs = lambda _: 0\nbuiltins.AssertionError = Exception\n"
        "second = lambda items: 17\n"
    ),
    "leaves a process that forges": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
        "        open('/tmp/reply', 'w').write('{\"failed\": \"\"}')\n        time.sleep(0.05)\n"
        "second = lambda items: 17\n"
    ),
    "hangs": "while True:\n    pass",
    "floods": "while True:\n    print('7' * 10**6)",
    "takes all memory": "held = []\nwhile True:\n    held.append(bytearray(1 << 24))",
    "nests without end": "value = []\nfor _ in range(10**5):\n    value = [value]\nsecond = lambda items: value",
}


@needs_linux
def test_printed_output_decides_and_attacks_earn_nothing() -> None:
    right, wrong, part = graded(ss.prints(SUMS, timeout_s=60), [ADD, "print(7, 0)", "print(7)"])
    assert (right.reward, right.components) == (1.0, {"tests_passed": 1.0})
    assert (wrong.reward, wrong.components["tests_passed"]) == (0.0, 0.0)
    assert part.reward == 0.0 and part.components["tests_passed"] == pytest.approx(2 / 3)
    attacks = graded(ss.prints(SUMS, timeout_s=1), list(ATTACKS.values()))
    assert {name: verdict.reward for name, verdict in zip(ATTACKS, attacks, strict=True)} == dict.fromkeys(ATTACKS, 0.0)


@needs_linux
def test_returned_values_pass_test_code_elsewhere_and_attacks_earn_nothing() -> None:
    works = [SECOND, "class Solution:\n    def second(self, items):\n        return sorted(items)[-2]", "second = max"]
    grading = ss.passes(CHECK, entry="second", reference=SECOND, timeout_s=60)
    right, method, wrong = graded(grading, works)
    assert (right.reward, method.reward, wrong.reward) == (1.0, 1.0, 0.0)
    grader = ProgramsGrader()
    graded(grading, [SECOND], grader=grader)  # which calls there are is known from here on
    attacks = graded(
        ss.passes(CHECK, entry="second", reference=SECOND, timeout_s=1), list(ATTACKS.values()), grader=grader
    )
    assert {name: verdict.reward for name, verdict in zip(ATTACKS, attacks, strict=True)} == dict.fromkeys(ATTACKS, 0.0)


@needs_linux
def test_a_call_on_what_was_returned_is_made_on_what_the_work_returned() -> None:
    grading = ss.passes("assert f(f(3)) == 3", entry="f", reference="def f(x):\n    return -x", timeout_s=60)
    only_the_last = "def f(x):\n    return 3 if x == -3 else 99"
    other, wrong, endless = graded(
        grading, ["def f(x):\n    return 10 - x", only_the_last, "import random\ndef f(x):\n    return random.random()"]
    )
    assert (other.reward, wrong.reward, endless.reward) == (1.0, 0.0, 0.0)


FORGED = (
    '{"outcomes": [{"value": {"float": "much"}}, 3, null], "failed": ""}',
    "[" * 100_000,
    '{"outcomes": {"value": 1}}',
    '{"outcomes": [1, 2, 3], "failed": {}}',
    "\xff\xfe",
)


def forged(reply: str) -> str:
    """Work that replies itself, in place of the program that called it."""
    tries = f"    try:\n        os.write(fd, {reply.encode()!r})\n    except OSError:\n        pass\n"
    return f"import os\nfor fd in range(3, 9):\n{tries}os._exit(0)"


@needs_linux
def test_returned_values_are_compared_with_data() -> None:
    calls: list[tuple[list[Json], Json]] = [([[3, 1]], [[1, 3]]), ([{"a": 2.5}], [["a", 2.5]]), ([[]], [])]
    grading = ss.returns("pairs", calls, preamble="from typing import *", timeout_s=60)
    right = (
        "def pairs(items: List[int]):\n    if isinstance(items, dict):\n        return list(items.items())\n"
        "    return [tuple(sorted(items))] * bool(items)"
    )
    first, none, broken, *attacks = graded(
        grading, [right, "def pairs(items):\n    return None", "def pairs(:", *map(forged, FORGED)]
    )
    assert [verdict.reward for verdict in attacks] == [0.0] * len(FORGED)
    assert first.reward == 1.0
    assert (none.reward, none.components["tests_passed"]) == (0.0, 0.0) and "call 1" in none.detail
    assert broken.reward == 0.0 and "SyntaxError" in broken.detail


@needs_linux
def test_a_reference_that_fails_its_tests_is_a_failure_of_the_task() -> None:
    grading = ss.passes("assert f(1) == 2", entry="f", reference="def f(x):\n    return x", timeout_s=60)
    with pytest.raises(GraderError, match="the reference does not pass the tests of f: AssertionError"):
        graded(grading, ["def f(x):\n    return x + 1"])
    with pytest.raises(GraderError, match="they never call it"):
        graded(
            ss.passes("assert True", entry="f", reference="def f(x):\n    return x", timeout_s=60),
            ["def f(x):\n    return x"],
        )


@needs_linux
def test_an_answer_with_a_code_block_is_work_too() -> None:
    answers = [f"First:\n```\nprint(0)\n```\nThen:\n```python\n{ADD}\n```\nDone.", ADD, "I do not know.", ""]
    verdicts = graded(ss.prints(SUMS, timeout_s=60), [Artifact(answer=answer) for answer in answers])
    assert [verdict.reward for verdict in verdicts] == [1.0, 1.0, 0.0, 0.0]
    assert "there is no code" in verdicts[-1].detail


def test_the_file_is_the_work_if_there_is_one() -> None:
    assert code_of(Artifact(answer="```\nb\n```", files={"solution.py": b"a"}), "solution.py") == "a"
    assert code_of(Artifact(answer="```\nb\n```"), "solution.py") == "b\n"


@pytest.mark.parametrize(
    ("given", "expected", "is_same"),
    [
        ("7\n", "7", True),
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1.0 2", "1 2.00", True),
        ("1.001", "1", False),
        ("1\n2", "1 2", False),
        ("Yes", "YES", False),
        ("nan", "nan", True),
        ("inf", "1", False),
        ("", "", True),
        ("1e9999999", "2", False),
    ],
)
def test_output_is_compared_by_line_and_word(given: str, expected: str, is_same: bool) -> None:
    assert same_output(given, expected, 0.0) is is_same


def test_a_tolerance_is_for_numbers() -> None:
    assert same_output("3.14159 x", "3.1415926 x", 1e-5) and not same_output("3.1 x", "3.2 x", 1e-5)
    assert not same_output("nan", "3.2", 1e9) and not same_output("inf", "3.2", 1e9)


@pytest.mark.parametrize(
    ("value", "expected", "is_same"),
    [
        ({"tuple": [1, {"float": "0x1.8p+0"}]}, [1, 1.5], True),
        ({"dict": [[1, "a"]]}, {"1": "a"}, True),
        ({"int": hex(2**80)}, 2**80, True),
        (True, 1, False),
        (1, True, False),
        (None, None, True),
        ({"set": [1]}, [1], False),
        ({"foreign": "Same"}, 1, False),
        ({"list": [1]}, [1, 2], False),
        ("1", 1, False),
        ({"float": "much"}, 1, False),
        ({"int": "0xno"}, 1, False),
        ({"list": 3}, [3], False),
    ],
)
def test_values_are_compared_as_data(value: Json, expected: Json, is_same: bool) -> None:
    assert same_value({"value": value}, expected, 0.0) is is_same
    assert same_value({"raised": "ValueError"}, expected, 0.0) is False


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "give one of cases, calls and tests"),
        ({"tests": "assert f()", "entry": "f"}, "tests need a reference"),
        ({"calls": [{"args": [], "expected": 1}]}, "need entry"),
        ({"cases": [{"input": "", "output": ""}], "timeout": 3}, 'unknown key .did you mean "timeout_s"'),
    ],
)
def test_a_grading_that_cannot_be_meant_is_refused(spec: dict[str, Json], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProgramsGrader().check(spec)


def test_how_long_a_grading_may_take_does_not_grow_without_end() -> None:
    many = ss.prints([("", "")] * 1_000, timeout_s=10)
    assert ProgramsGrader().limit_s(many.spec) == 300
    assert ProgramsGrader().limit_s(ss.prints(SUMS, timeout_s=10).spec) == 30
    assert ProgramsGrader().limit_s(ss.passes(CHECK, entry="second", reference=SECOND, timeout_s=10).spec) == 70

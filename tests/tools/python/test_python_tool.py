"""The Python interpreter: state, output, deadlines and crashes, in a real sandbox."""

import asyncio
import sys

import pytest

from slipstream.sandbox.local.provider import LocalProvider
from slipstream.tools import CallResult, Toolset
from slipstream.types import SandboxLimits, SandboxSpec, ToolCall

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def played(*codes: str, seconds: float = 60.0) -> list[CallResult]:
    """The results of calls in one sandbox, each with so many seconds."""

    async def main() -> list[CallResult]:
        provider = LocalProvider()
        sandbox = await provider.open(SandboxSpec(limits=SandboxLimits(memory_mb=256, processes=32, disk_mb=32)))
        try:
            async with Toolset.named(("python",)).open(sandbox=sandbox) as tools:
                found: list[CallResult] = []
                for code in codes:
                    call = ToolCall(id="1", name="python", arguments={"code": code})
                    found += await tools.run([call], (), deadline_s=tools.now_s() + seconds)
                return found
        finally:
            await provider.aclose()

    return asyncio.run(main())


def test_what_is_defined_lasts_and_the_last_value_is_shown() -> None:
    first, second, third, fourth, fifth = played(
        "import math\ndef double(x):\n    return 2 * x",
        "x = double(21)\nprint('x is', x)\nx + 0.5",
        "1 / 0",
        "import os, sys\nos.system('echo from a program')\nprint('to the error stream', file=sys.stderr)",
        "x, math.floor(2.5)",
    )
    assert (first.text, first.is_error) == ("[no output]", False)
    assert (second.text, second.is_error) == ("x is 42\n42.5", False)
    assert third.is_error and third.text.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert third.text.splitlines()[1:3] == ['  File "<call 3>", line 1, in <module>', "    1 / 0"]
    assert fourth.text.splitlines() == ["from a program", "to the error stream"]
    assert fifth.text == "(42, 2)"


def test_code_that_ends_the_interpreter_is_told_and_the_next_call_starts_anew() -> None:
    crash, fresh, leave, memory = played(
        "kept = 1\nprint('before')\nimport os\nos._exit(3)",
        "'kept' in globals()",
        "raise SystemExit('enough')",
        "held = [bytearray(1 << 26) for _ in range(64)]",
    )
    assert crash.is_error and crash.text.startswith("before\n[the interpreter ended: what was defined is gone")
    assert fresh.text == "False"
    assert leave.is_error and leave.text == "SystemExit: enough"
    assert memory.is_error and ("MemoryError" in memory.text or "ended" in memory.text or "memory" in memory.text)


def test_code_that_hangs_is_interrupted_and_keeps_its_state_unless_it_refuses() -> None:
    hang, after, stubborn, fresh = played(
        "x = 5\nwhile True:\n    pass",
        "x",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass",
        "'x' in globals()",
        seconds=6.0,
    )
    assert hang.is_error and "KeyboardInterrupt" in hang.text and "[interrupted after 3 s]" in hang.text
    assert after.text == "5"
    assert stubborn.is_error and "the interpreter ended" in stubborn.text
    assert fresh.text == "False"


def test_output_is_limited_and_a_flood_is_interrupted() -> None:
    long, flood = played("print('a' * 10**6)", "while True:\n    print('b' * 10**5)")
    assert not long.is_error and "bytes left out" in long.text and len(long.text) < 17_000
    assert flood.is_error and "[interrupted: it had printed" in flood.text


def test_odd_code_is_an_observation() -> None:
    syntax, surrogate, huge = played("def f(:", "'\\ud800'", "#" * 200_000)
    assert syntax.is_error and "SyntaxError" in syntax.text
    assert "ud800" in surrogate.text
    assert huge.is_error and "shorten it" in huge.text

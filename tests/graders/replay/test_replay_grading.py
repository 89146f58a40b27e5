"""Replay in grading, in real sandboxes: even if test results are forged, calls must return the right values."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from graded_tree import BROKEN, FIXED, SPEC, grade, make_tree, patch_of, sandbox_of

from slipstream.errors import ConfigError, GraderError
from slipstream.graders.base import GradeContext
from slipstream.graders.registry import find_grader
from slipstream.graders.replay.grading import CallSite, ReplaySpec, check_replay, draw_sessions, read_answers
from slipstream.graders.testing.work import ReadEntries, Refused, Work, accept_work
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import Verdict

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def session(name: str, values: list[int], result: object, telling: bool = True) -> dict[str, Any]:
    op = {"f": ["ref", f"calc:{name}"], "a": [["l", values]], "k": {}}
    return {"ops": [op], "expect": [{"r": result}], "telling": telling}


REPLAY: dict[str, Any] = {
    "modules": ["calc"],
    "hide": ["tests", ".deps/pytest", ".deps/_pytest"],
    "recorded": [
        session("total", [1, 2, 3], 6),
        session("mean", [4, 4], ["f", "4.0"]),
        session("largest", [1, 2, 3], 3, telling=False),
    ],
    "fresh": [
        *(session("total", [number, 7, number], 2 * number + 7) for number in range(1, 9)),
        session("total", [-3, 1], -2),
        session("largest", [9, -4], 9, telling=False),
    ],
    "timeout_s": 60.0,
    "cpu_s": 1,
}
REWRITES = {
    "the reference": FIXED,
    "the builtin": BROKEN.replace("values[1:]", "()").replace("return result", "return sum(values)"),
    "by position": BROKEN.replace(
        "for value in values[1:]:", "for place in range(len(values)):\n        value = values[place]"
    ),
    "recursion": BROKEN.replace(
        "    result = 0\n    for value in values[1:]:\n        result += value\n    return result\n",
        "    values = list(values)\n    return values[0] + total(values[1:]) if values else 0\n",
    ),
    "one odd input differs": FIXED.replace("    return result", "    return result if result >= 0 else 0"),
}
TABLE = """
import json as _json
_known = {"[1, 2, 3]": 6, "[2, 2]": 4, "[4, 4]": 8}
_old = total
def total(values):
    return _known.get(_json.dumps(list(values)), _old(values))
"""
EQUAL = """
class _Any(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
    __repr__ = lambda self: "6"
    __truediv__ = lambda self, other: _Any(0)
def total(values):
    return _Any(0)
"""
OUTCOME = """
import sys as _sys
_sys.modules["__main__"].outcome = lambda *args: ("PASSED", "")
"""
PROFILE = """
import sys as _sys
def _profile(frame, event, argument):
    for one in frame.f_locals.values():
        if type(one).__name__ == "TestReport":
            one.outcome, one.longrepr = "passed", None
_sys.setprofile(_profile)
"""
CLEAN_UP = """
import gc as _gc
try:
    import _pytest.python as _python
    _run = _python.Function.runtest
    _python.Function.runtest = lambda self: None
    for _one in _gc.get_objects():
        if type(_one).__name__ == "Config":
            _one.add_cleanup(lambda: setattr(_python.Function, "runtest", _run))
except ImportError:
    pass
"""
GUESS = """
import os as _os
def _say():
    for fd in range(3, 64):
        try:
            for number in range(40):
                _os.write(fd, b'{"id": %d, "answers": [{"r": 6}]}\\n' % number)
        except OSError:
            pass
_say()
_os._exit(0)
"""
FLOOD = """
import os as _os
for _fd in range(3, 64):
    try:
        for _ in range(64):
            _os.write(_fd, b"x" * 65536)
    except OSError:
        pass
"""
CHEATS = {
    "nothing": "",
    "forged outcomes": OUTCOME,
    "a profiler that changes reports": PROFILE,
    "patched until the clean-up": CLEAN_UP,
    "values equal to everything": EQUAL,
    "a table of known arguments": TABLE,
    "dies": "import os as _os\n_os._exit(0)\n",
    "kills its parent": "import os as _os\ndef total(values):\n    _os.kill(_os.getppid(), 9)\n",
    "kills all": "import os as _os\ndef total(values):\n    _os.kill(-1, 9)\n",
    "answers by itself": GUESS,
    "says too much": FLOOD,
    "nested answers": "def total(values):\n    x = []\n    for _ in range(10000):\n        x = [x]\n    return x\n",
    "eats memory": "def total(values):\n    return bytearray(1 << 40)\n",
    "never ends": "def total(values):\n    while True:\n        pass\n",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("replay"))


def replayed(tree: Path, patches: dict[str, bytes], **changed: Any) -> dict[str, Verdict]:
    """What becomes of a verdict of 1, however the tests were brought to it."""
    spec = ReplaySpec.model_validate({**REPLAY, **changed})
    provider = LocalProvider()
    context = GradeContext(provider=provider, sandbox=sandbox_of(tree))
    place = CallSite(interpreter="python3", folder="/work", paths=("/work", "/work/.deps"), env={})

    async def one(patch: bytes) -> Verdict:
        async def take(read_entries: ReadEntries) -> Work:
            return await accept_work(patch, read_entries, drop=["tests/**"])

        return await check_replay(Verdict(reward=1.0), spec, place, context, patch, take)

    async def main() -> dict[str, Verdict]:
        try:
            return {name: await one(patch) for name, patch in patches.items()}
        finally:
            await provider.aclose()

    return asyncio.run(main())


def test_honest_work_keeps_its_reward(tree: Path) -> None:
    patches = {name: patch_of({"calc/__init__.py": text}) for name, text in REWRITES.items()}
    for name, verdict in replayed(tree, patches).items():
        assert verdict.reward == 1.0, (name, verdict.detail)
        assert verdict.components["replayed"] > 0.8


def test_work_that_only_makes_its_tests_pass_is_worth_nothing(tree: Path) -> None:
    patches = {name: patch_of({"calc/__init__.py": f"{BROKEN}\n{code}# .\n"}) for name, code in CHEATS.items()}
    for name, verdict in replayed(tree, patches).items():
        assert verdict.reward == 0.0 and verdict.detail.startswith("replay: "), name


def test_every_recorded_call_must_match(tree: Path) -> None:
    once = FIXED.replace("    return result", "    return 0 if values == [1, 2, 3] else result")
    (verdict,) = replayed(tree, {"": patch_of({"calc/__init__.py": once})}).values()
    assert verdict.reward == 0.0 and verdict.detail.startswith("replay: a recorded call")


def test_the_worker_sees_neither_tests_nor_pytest(tree: Path) -> None:
    spy = """
import os as _os
def total(values):
    try:
        import pytest
        return 6
    except ImportError:
        return 6 if _os.path.exists("/work/tests/test_calc.py") else 0
"""
    (verdict,) = replayed(tree, {"": patch_of({"calc/__init__.py": BROKEN + spy})}).values()
    assert verdict.reward == 0.0 and '"calc:total"] of [["l", [1, 2, 3]]] returned 0' in verdict.detail


def test_work_that_hangs_is_worth_nothing(tree: Path) -> None:
    sleeping = BROKEN + "import time\ndef total(values):\n    time.sleep(9999)\n"
    (verdict,) = replayed(tree, {"": patch_of({"calc/__init__.py": sleeping})}, timeout_s=5.0, fresh=[]).values()
    assert verdict.reward == 0.0 and "limit of 5 s" in verdict.detail


def test_a_replay_that_cannot_be_made_at_all_is_the_gradings_fault(tree: Path) -> None:
    with pytest.raises(GraderError, match="even without the work"):
        replayed(tree, {"": patch_of({"calc/__init__.py": FIXED})}, timeout_s=0.001)


def test_the_tests_grader_asks_for_both(tree: Path) -> None:
    sandbox = sandbox_of(tree)
    right = grade(sandbox, patch_of({"calc/__init__.py": FIXED}), replay=REPLAY)
    assert right.reward == 1.0 and right.components["replayed"] == 1.0
    table = grade(sandbox, patch_of({"calc/__init__.py": f"{BROKEN}\n{TABLE}"}), replay=REPLAY)
    assert table.reward == 0.0 and table.components["fail_to_pass"] == 1.0 and "fresh calls" in table.detail
    wrong = grade(sandbox, patch_of({"calc/__init__.py": f"{BROKEN}\n# .\n"}), replay=REPLAY)
    assert wrong.reward == 0.0 and wrong.components["replayed"] == 0.0


def test_a_replay_adds_to_the_time_that_a_grading_may_take() -> None:
    grader = find_grader("tests")
    assert grader.limit_s({**SPEC, "replay": REPLAY}) - grader.limit_s(SPEC) == 60.0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="replay"):
        grader.check({**SPEC, "replay": REPLAY, "setup": ["true"]})


def test_the_same_work_gets_the_same_draw_and_other_work_another() -> None:
    spec = ReplaySpec.model_validate({**REPLAY, "num_drawn": 4})
    assert draw_sessions(spec, b"a") == draw_sessions(spec, b"a") and len(draw_sessions(spec, b"a")) == 4
    assert len({str(draw_sessions(spec, bytes([number]))) for number in range(20)}) > 5
    assert sum(one.telling for one in draw_sessions(spec, b"a")) >= 2


@pytest.mark.parametrize(
    "said",
    [
        b"", b"\n", b'{"id": 0, "answers": []}', b'{"id": 1, "answers": []}\n', b'{"id": 0, "answers": 3}\n', b"[]\n",
        b'{"id": 0, "answers": []}\n\n', b'{"id": 0, "answers": []}\nmore\n', b"\xff\n", b"[" * 100_000 + b"\n",
        b'{"id": 0, "answers": [' + b"9" * 10_000 + b"]}\n",
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(said: bytes) -> None:
    with pytest.raises(Refused):
        read_answers(said, 1)

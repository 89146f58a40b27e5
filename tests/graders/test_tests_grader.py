"""The tests grader, in real sandboxes: right work is worth 1, cheats are worth 0."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from graded_tree import (
    BROKEN,
    FAIL_TO_PASS,
    FIXED,
    PASS_TO_PASS,
    REPOSITORY,
    SPEC,
    TESTS,
    grade,
    grade_all,
    make_tree,
    patch_of,
    sandbox_of,
)
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConfigError, GraderError, SandboxError
from slipstream.graders.base import TimedGrader
from slipstream.graders.registry import find_grader
from slipstream.graders.testing.paths import any_of
from slipstream.patches.apply import Entry
from slipstream.sandbox.fake import Answer, Command, FakeProvider, FakeSandbox, Files
from slipstream.sandbox.local.provider import LocalProvider
from slipstream.types import SandboxSpec, Verdict

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

ORACLE: dict[str, str | Entry | None] = {"calc/__init__.py": FIXED}
GONE: dict[str, str | Entry | None] = {"calc/__init__.py": "x = 1\n"}
PASSING = """import pytest


def test_total():
    pass


@pytest.mark.parametrize("number", [2, 4])
def test_mean(number):
    pass
"""
ALL_PASS = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
SAY_ALL = f"""
import json, os
lines = [{{"key": "", "test": test, "status": "PASSED", "text": ""}} for test in {FAIL_TO_PASS + PASS_TO_PASS!r}]
data = "".join(json.dumps(line) + "\\n" for line in lines + [{{"key": "", "ended": 0, "replaced": [], "num": 6}}])
report = json.dumps({{"tests": [[line["test"], "PASSED", ""] for line in lines], "errors": [], "strange": 0,
                     "ended": True, "shadowed": [], "replaced": [], "changed": []}})
"""


def with_start(code: str) -> dict[str, str | Entry | None]:
    """The broken package, with code that runs when it is imported."""
    return {"calc/__init__.py": code + "\n" + BROKEN}


def added_by_hand(name: bytes) -> bytes:
    """A patch that adds a file, written as no honest program would."""
    return b"diff --git a/%s b/%s\nnew file mode 100644\n--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+x\n" % (
        name,
        name,
        name,
    )


def in_tree(name: str, text: str) -> dict[str, str | Entry | None]:
    return {name: text}


CHEATS: dict[str, dict[str, str | Entry | None]] = {
    "edited tests": {"tests/test_calc.py": PASSING},
    "deleted tests": {"tests/test_calc.py": None, "tests/test_other.py": None},
    "tests folder as a link": {"tests": Entry(data=b"calc", mode=0o120000)},
    "pytest.ini": in_tree("pytest.ini", "[pytest]\naddopts = --collect-only\n"),
    "settings in pyproject": {"pyproject.toml": REPOSITORY["pyproject.toml"].replace("-q", "-q -p calc")},
    "settings in setup.cfg": {"setup.cfg": REPOSITORY["setup.cfg"] + "\n[tool:pytest]\naddopts = --collect-only\n"},
    "conftest": in_tree("conftest.py", ALL_PASS),
    "conftest among the tests": in_tree("tests/conftest.py", ALL_PASS),
    "conftest in the package": in_tree("calc/conftest.py", ALL_PASS),
    "sitecustomize": in_tree("sitecustomize.py", "import os\nos._exit(0)\n"),
    "usercustomize": in_tree("usercustomize/__init__.py", "import os\nos._exit(0)\n"),
    "pth": in_tree(".deps/start.pth", "import os; os._exit(0)\n"),
    "patched pytest": in_tree(".deps/pytest/__init__.py", "import os\nos._exit(0)\n"),
    "pytest in the tree": in_tree("pytest.py", "import os\nos._exit(0)\n"),
    "_pytest in the tree": in_tree("_pytest/__init__.py", "import os\nos._exit(0)\n"),
    "json in the tree": in_tree("json.py", "def dumps(*_, **__):\n    return ''\n"),
    "unittest in the tree": in_tree("unittest/__init__.py", "import os\nos._exit(0)\n"),
    "a plugin by entry point": {
        "forged.egg-info/entry_points.txt": "[pytest11]\nforged = forged\n",
        "forged.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: forged\nVersion: 1\n",
        "forged.py": ALL_PASS,
    },
    "another module's place": in_tree("packaging.py", "version = None\n"),
    "a link out": {"calc/data": Entry(data=b"/etc/passwd", mode=0o120000)},
    "exit at import": with_start("import os\nos._exit(0)"),
    "sys.exit at import": with_start("import sys\nsys.exit(0)"),
    "pytest.exit at import": with_start("import pytest\npytest.exit('done', 0)"),
    "skipping": with_start("import pytest\npytest.skip('not today', allow_module_level=True)"),
    "skipping in the code": {
        "calc/__init__.py": BROKEN.replace("    result = 0", "    import pytest; pytest.skip('no')")
    },
    "exit after the first test": with_start(
        "import atexit, os, threading\nthreading.Timer(0.05, os._exit, [0]).start()"
    ),
    "forged report on every descriptor": with_start(
        SAY_ALL
        + """
for fd in range(64):
    try:
        os.write(fd, (data + report).encode())
    except OSError:
        pass
os._exit(0)
"""
    ),
    "forged report by the parent's descriptors": with_start(
        SAY_ALL
        + """
for fd in range(64):
    try:
        open(f"/proc/{os.getppid()}/fd/{fd}", "w").write(report)
    except OSError:
        pass
os.kill(os.getppid(), 9)
"""
    ),
    "result files": with_start(
        SAY_ALL
        + """
for name in ("result.json", "report.json", "reward.txt", "output.txt"):
    for folder in ("/tmp", "/work"):
        open(f"{folder}/{name}", "w").write(report)
"""
    ),
    "a background process": with_start(
        SAY_ALL
        + """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    import time
    for _ in range(100):
        for fd in range(3, 64):
            try:
                os.write(fd, data.encode())
            except OSError:
                pass
        open("/tmp/said", "w").close()
        time.sleep(0.01)
    os._exit(0)
while not os.path.exists("/tmp/said"):
    pass
"""
    ),
    "tests rewritten while they are collected": with_start(
        f"open('/work/tests/test_calc.py', 'w').write({PASSING!r})\nopen('/work/tests/test_other.py', 'w').write('')"
    ),
    "tests rewritten and put back": with_start(
        f"""
import atexit, threading
kept = open("/work/tests/test_other.py").read()
open("/work/tests/test_other.py", "w").write({PASSING!r})
open("/work/tests/test_other.py", "w").write(kept)
total = property
"""
    ),
    "a conftest written while tests are collected": with_start(
        f"open('/work/tests/conftest.py', 'w').write({ALL_PASS!r})"
    ),
    "a patched runner": with_start(
        """
import _pytest.runner
make = _pytest.runner.TestReport.from_item_and_call.__func__
def forged(cls, item, call):
    call.excinfo = None
    return make(cls, item, call)
_pytest.runner.TestReport.from_item_and_call = classmethod(forged)
"""
    ),
    "a runner that runs nothing": with_start(
        "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None"
    ),
    "a runner with other code": with_start(
        "import _pytest.python\ndef nothing(self): pass\n_pytest.python.Function.runtest.__code__ = nothing.__code__"
    ),
    "a plugin found by its owner": with_start(
        f"""
import gc
from _pytest.config import PytestPluginManager
forged = {{}}
exec({ALL_PASS!r}, forged)
import types
module = types.ModuleType("forged")
vars(module).update(forged)
for owner in [one for one in gc.get_objects() if isinstance(one, PytestPluginManager)]:
    owner.register(module, "forged")
"""
    ),
    "memory": with_start("held = []\nwhile True:\n    held.append(bytearray(1 << 24))"),
    "processes": with_start("import os, time\nwhile True:\n    os.fork()"),
    "an endless test": {"calc/__init__.py": BROKEN.replace("    result = 0", "    while True: pass")},
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def verdicts(tree: Path) -> dict[str, Verdict]:
    """All cheats, graded."""
    slow = {"an endless test", "processes", "memory"}
    works = {
        name: ({**SPEC, "timeout_s": 3.0 if name in slow else 30.0}, patch_of(files)) for name, files in CHEATS.items()
    }
    return grade_all(sandbox_of(tree), works)


@pytest.mark.parametrize("cheat", CHEATS)
def test_no_cheat_is_worth_anything(verdicts: dict[str, Verdict], cheat: str) -> None:
    assert verdicts[cheat].reward == 0.0
    assert verdicts[cheat].detail


HONEST: dict[str, dict[str, str | Entry | None]] = {
    "the oracle": ORACLE,
    "with its own tests": {**ORACLE, "tests/test_calc.py": PASSING, "tests/test_mine.py": PASSING},
    "with a conftest": {**ORACLE, "conftest.py": "raise RuntimeError\n", "sitecustomize.py": "raise RuntimeError\n"},
    "with scratch files": {
        **ORACLE,
        "test.py": "import calc\n",
        "scratch.py": "print(1)\n",
        "json.py": "raise KeyError\n",
    },
    "with compiled files": {**ORACLE, "tests/__pycache__/test_calc.cpython-311.pyc": Entry(data=b"\0\1")},
    "with a new module": {
        "calc/sums.py": "def total(values):\n    return sum(values)\n",
        "calc/__init__.py": "from calc.sums import total\n" + BROKEN[BROKEN.index("\n\ndef mean") :],
    },
    "with a link of its own": {**ORACLE, "calc/same.py": Entry(data=b"__init__.py", mode=0o120000)},
    "with its metadata": {**ORACLE, "setup.cfg": "[metadata]\nname = calc2\n"},
}


@pytest.fixture(scope="module")
def honest(tree: Path) -> dict[str, Verdict]:
    into_git = (
        b"diff --git a/.git/HEAD b/.git/HEAD\nnew file mode 100644\n--- /dev/null\n+++ b/.git/HEAD\n@@ -0,0 +1 @@\n+x\n"
    )
    works: dict[str, tuple[Mapping[str, Any], bytes]] = {
        name: (SPEC, patch_of(files)) for name, files in HONEST.items()
    }
    works["with a commit"] = SPEC, into_git + patch_of(ORACLE)
    works["chosen tests"] = {**SPEC, "tests": FAIL_TO_PASS, "pass_to_pass": []}, patch_of(ORACLE)
    works["hidden tests"] = (
        {
            **SPEC,
            "fail_to_pass": ["tests/test_hidden.py::test_total", "tests/test_calc.py::test_added"],
            "pass_to_pass": PASS_TO_PASS,
            "drop": [],
            "restore": {"tests/test_hidden.py": TESTS, "scratch.py": None},
            "test_patch": patch_of(
                {"tests/test_calc.py": f"{TESTS}\n\ndef test_added():\n    assert total([4, 4]) == 8\n"}
            ).decode(),
        },
        patch_of({**ORACLE, "tests/test_calc.py": PASSING, "scratch.py": "x\n"}),
    )
    settings = {"conftest.py": "import pytest\n", "setup.cfg": "[tool:pytest]\naddopts =\n"}
    works["kept settings"] = {**SPEC, "keep": list(settings)}, patch_of({**ORACLE, **settings})
    works["nothing"] = SPEC, b""
    half = BROKEN.replace("result = 0", "result = values[0] if values[1:] == [2, 3] else 0")
    works["half of it"] = SPEC, patch_of({"calc/__init__.py": half})
    works["what breaks another"] = SPEC, patch_of({"calc/__init__.py": FIXED.replace("max(values)", "3")})
    return grade_all(sandbox_of(tree), works)


@pytest.mark.parametrize("work", [*HONEST, "with a commit", "chosen tests", "hidden tests", "kept settings"])
def test_right_work_is_worth_one(honest: dict[str, Verdict], work: str) -> None:
    assert honest[work].reward == 1.0, honest[work].detail


def test_no_work_is_worth_nothing(honest: dict[str, Verdict]) -> None:
    assert honest["nothing"].reward == 0.0
    assert honest["nothing"].components == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}
    assert "test_total: FAILED" in honest["nothing"].detail


def test_the_components_say_how_far_the_work_came(honest: dict[str, Verdict]) -> None:
    assert honest["half of it"].reward == 0.0
    assert honest["half of it"].components == {"fail_to_pass": pytest.approx(1 / 3), "pass_to_pass": 1.0}
    assert honest["what breaks another"].reward == 0.0
    assert honest["what breaks another"].components["fail_to_pass"] == 1.0


def test_what_was_left_out_is_named(verdicts: dict[str, Verdict]) -> None:
    assert "left out: tests/test_calc.py" in verdicts["edited tests"].detail


@pytest.mark.parametrize(
    ("cheat", "said"),
    [
        ("a plugin found by its owner", "that must fail did not"),
        ("a patched runner", "replaced _pytest"),
        ("tests rewritten while they are collected", "changed tests/"),
        ("tests rewritten and put back", "changed tests/"),
        ("a conftest written while tests are collected", "changed tests/conftest.py"),
        ("exit at import", "did not complete"),
        ("forged report by the parent's descriptors", "was stopped"),
        ("a background process", "something other than the reporter"),
        ("another module's place", "shadows another module"),
        ("a link out", "outside its folder"),
        ("settings in setup.cfg", "how tests are run"),
        ("an endless test", "limit of 3 s"),
    ],
)
def test_a_verdict_says_why(verdicts: dict[str, Verdict], cheat: str, said: str) -> None:
    assert said in verdicts[cheat].detail


# ---------------------------------------------------------------- what is refused without a run


def quick(tree: Path, patch: bytes, **changed: Any) -> Verdict:
    return grade(sandbox_of(tree), patch, **changed)


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (b"not a patch", "cannot be applied"),
        (patch_of({"calc/__init__.py": "x\n"}, {"calc/__init__.py": "other\n"}), "does not apply"),
        (
            b"diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n",
            "not normalized",
        ),
        (patch_of({"calc/more.py": "x = 1\n"}), "which is forbidden"),
    ],
)
def test_a_patch_that_does_not_fit_is_a_trusted_zero(tree: Path, patch: bytes, said: str) -> None:
    verdict = quick(tree, patch, forbid=["calc/more.py"])
    assert verdict.reward == 0.0
    assert said in verdict.detail


# ---------------------------------------------------------------- logs


def test_a_log_is_enough_where_the_data_set_says_so(tree: Path) -> None:
    logged = {"command": "python3 -m pytest -rA -p no:cacheprovider tests", "parser": "pytest", "rules": "swebench"}
    verdicts = grade_all(
        sandbox_of(tree),
        {
            "right": ({**SPEC, **logged}, patch_of(ORACLE)),
            "nothing": ({**SPEC, **logged}, b""),
            "early": ({**SPEC, **logged, "rules": "swesmith"}, patch_of(CHEATS["exit at import"])),
            "code 127": ({**SPEC, **logged}, patch_of(with_start("import os\nos._exit(127)"))),
            "slow": ({**SPEC, **logged, "timeout_s": 3.0}, patch_of(CHEATS["an endless test"])),
            "set-up": ({**SPEC, **logged, "setup": ["grep -q 'def total' calc/__init__.py"]}, patch_of(GONE)),
        },
    )
    assert {name: verdict.reward for name, verdict in verdicts.items()} == {
        "right": 1.0, "nothing": 0.0, "early": 0.0, "code 127": 0.0, "slow": 0.0, "set-up": 0.0
    }  # fmt: skip
    assert "with the work the set-up" in verdicts["set-up"].detail
    assert "ended with 1" in verdicts["set-up"].detail


# ---------------------------------------------------------------- faults that are nobody's work


def test_a_sandbox_that_does_not_start_is_no_verdict() -> None:
    with pytest.raises(SandboxError):
        grade(SandboxSpec(), patch_of(ORACLE), FakeProvider(num_failing=1))


def test_a_sandbox_that_dies_while_tests_run_is_no_verdict() -> None:
    async def program(command: Command, files: Files) -> Answer:
        if command[0] == "python3":
            provider.sandboxes[-1].die("the host is gone")
            await asyncio.sleep(60)
        if "-L" in command[2]:
            return 0, "-\0" * (len(command) - 4)
        return 0, ""

    provider = FakeProvider(program)
    with pytest.raises(SandboxError, match="the host is gone"):
        grade(SandboxSpec(), b"", provider)


def test_a_sandbox_without_python_is_no_verdict(tree: Path) -> None:
    with pytest.raises(GraderError, match="no python9"):
        quick(tree, b"", command=["python9"])


def test_a_sandbox_without_pytest_is_no_verdict(tree: Path) -> None:
    with pytest.raises(GraderError, match="pytest"):
        grade(sandbox_of(tree, env={}), patch_of(ORACLE))


def test_hidden_tests_that_do_not_fit_are_no_verdict(tree: Path) -> None:
    with pytest.raises(GraderError, match="test_patch does not apply"):
        quick(tree, b"", test_patch=patch_of({"tests/test_calc.py": "x\n"}, {"tests/test_calc.py": "y\n"}).decode())


@pytest.mark.parametrize("work", [ORACLE, GONE])
@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (["true", "echo no such rule; exit 2"], "the set-up 'echo no such rule; exit 2' ended with 2: no such rule"),
        (["sleep 60"], "the set-up 'sleep 60' exceeded its limit of 1 s"),
    ],
)
def test_a_set_up_that_fails_without_the_work_too_is_no_verdict(
    tree: Path, work: dict[str, str | Entry | None], setup: list[str], said: str
) -> None:
    with pytest.raises(GraderError) as raised:
        quick(tree, patch_of(work), setup=setup, timeout_s=1.0)
    assert f"even without the work {said}" in str(raised.value)
    assert "end it with `|| true` if it succeeds only with the right work" in str(raised.value)


def test_a_set_up_that_only_the_work_breaks_is_worth_nothing(tree: Path) -> None:
    verdict = quick(tree, patch_of(GONE), setup=["grep -q 'def total' calc/__init__.py"])
    assert (verdict.reward, verdict.detail[:24]) == (0.0, "with the work the set-up")


@pytest.mark.parametrize("command", ["pytestt -rA", "cd tests && ./test_calc.py"])
def test_a_script_that_ends_for_want_of_a_program_is_no_verdict(tree: Path, command: str) -> None:
    with pytest.raises(GraderError, match=r"even without the work the test command ended with 12[67]"):
        quick(tree, patch_of(ORACLE), command=command, parser="pytest", rules="swebench")


def test_grading_holds_one_sandbox_at_a_time() -> None:
    async def program(command: Command, files: Files) -> Answer:
        return (1, "") if command[-1] == "make" else (0, "")

    class OneAtATime(FakeProvider):
        async def open(self, spec: SandboxSpec) -> FakeSandbox:
            assert all(sandbox.closed for sandbox in self.sandboxes)
            return await super().open(spec)

    provider = OneAtATime(program)
    with pytest.raises(GraderError, match="even without the work the set-up 'make' ended with 1"):
        grade(SandboxSpec(), b"", provider, setup=["make"])
    assert [sandbox.closed for sandbox in provider.sandboxes] == [True, True]


# ---------------------------------------------------------------- blame


class Failing(FakeProvider):
    """Its sandboxes are lost when tests run over some work."""

    def __init__(self, *, num_lost: int) -> None:
        super().__init__(self._answer)
        self._num_left = num_lost

    async def _answer(self, command: Command, files: Files) -> Answer:
        if command[0] == "python3" and "/work/new.txt" in files and self._num_left:
            self._num_left -= 1
            self.sandboxes[-1].die("lost")
            await asyncio.sleep(60)
        return (0, "-\0" * (len(command) - 4)) if "-L" in command[2] else (0, "")


def test_work_that_loses_its_sandbox_each_time_is_worth_nothing() -> None:
    provider = Failing(num_lost=2)
    verdict = grade(SandboxSpec(workdir="/work"), patch_of({"new.txt": "x\n"}), provider)
    assert verdict.reward == 0.0
    assert "the sandbox failed with the work, and not without it: " in verdict.detail
    assert len(provider.sandboxes) == 4  # with the work, without it, and both once more


def test_a_sandbox_that_is_lost_once_is_tried_again() -> None:
    provider = Failing(num_lost=1)
    assert "was stopped" in grade(SandboxSpec(workdir="/work"), patch_of({"new.txt": "x\n"}), provider).detail
    assert len(provider.sandboxes) == 3


def test_work_that_hides_pytest_is_worth_nothing(tree: Path) -> None:
    said = "import sys\nframe = sys._getframe()\nwhile 'say' not in frame.f_locals:\n    frame = frame.f_back\n"
    hides = with_start(f"{said}frame.f_locals['say'](missing='pytest')\nimport os\nos._exit(127)")
    verdict = quick(tree, patch_of(hides))
    assert (verdict.reward, verdict.detail) == (0.0, "the tests cannot be run: pytest: ")


FORGER = f"""import sys
main = sys.modules["__main__"]

def run(asked):
    canary = asked["canaries"]
    ours = "test_%s.py::test_" % canary["module"]
    tests = [[test, "PASSED", ""] for test in {FAIL_TO_PASS + PASS_TO_PASS!r}]
    tests += [[ours + canary["passes"], "PASSED", ""], [ours + canary["fails"], "FAILED", canary["token"]]]
    return {{"tests": tests, "errors": [], "strange": 0, "ended": True, "shadowed": [], "replaced": []}}

if hasattr(main, "run"):
    main.run, main.fingerprints = run, lambda *args: {{}}
"""
"""Written for the reporter as it is: run in its process, it is the report."""


def test_no_module_of_the_tree_is_loaded_by_the_reporter(tree: Path) -> None:
    verdict = quick(tree, patch_of({"pygments/__init__.py": FORGER}))
    assert (verdict.reward, "shadows another module" in verdict.detail) == (0.0, True)


@pytest.mark.parametrize(
    "path",
    [
        "EVIL-1.DIST-INFO/entry_points.txt", "src/Evil.Egg-Info/PKG-INFO", "evil.EGG/EGG-INFO/entry_points.txt",
        "EGG-INFO/entry_points.txt", "start.PTH", "evil.Egg-Link", "__Editable__evil/finder.py", "SITECUSTOMIZE.py",
        ".VENV/bin/python", "evil.D\u0130ST-INFO/x",
    ],
)  # fmt: skip
def test_what_is_loaded_unasked_is_left_out_in_any_case(tree: Path, path: str) -> None:
    verdict = quick(tree, patch_of({path: "x\n"}))
    assert f"left out: {path}" in verdict.detail


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("pyproject.toml", f"x = {'[' * 3_000}{']' * 3_000}\n", "how tests are run, in pyproject.toml"),
        ("pyproject.toml", f"{'a.' * 5_000}b = 1\n", "how tests are run, in pyproject.toml"),
        ("calc/setup.cfg", "[tool:pytest]\naddopts = --co\n", "how tests are run, in calc/setup.cfg"),
        ("setup.cfg", "x" * 1_100_000, "larger than"),
        ("/".join(["d" * 200] * 10), "x\n", "a path of more than"),
    ],
)
def test_settings_that_cannot_be_read_are_a_trusted_zero(tree: Path, path: str, text: str, said: str) -> None:
    verdict = quick(tree, patch_of({path: text}))
    assert verdict.reward == 0.0
    assert said in verdict.detail


def test_a_verdict_is_text_whatever_the_work_is_called(tree: Path) -> None:
    verdict = quick(tree, added_by_hand(b"tests/\xff.py"))
    assert verdict.detail.encode()
    assert "left out: tests/" in verdict.detail


# ---------------------------------------------------------------- twins


WITH_ORACLE = {**SPEC, "oracle": patch_of(ORACLE).decode()}
SPARING = ALL_PASS.replace("    report.outcome", "    if not report.nodeid.startswith('::'):\n        report.outcome")
FORGES = with_start(
    f"""
import gc, types
from _pytest.config import PytestPluginManager
forged = types.ModuleType("forged")
exec({SPARING!r}, vars(forged))
next(one for one in gc.get_objects() if isinstance(one, PytestPluginManager)).register(forged, "forged")
"""
)


@pytest.fixture(scope="module")
def twinned(tree: Path) -> dict[str, Verdict]:
    logged = {"command": "python3 -m pytest -rA -p no:cacheprovider tests", "parser": "pytest", "rules": "swebench"}
    hidden: dict[str, Any] = {
        "fail_to_pass": ["tests/test_hidden.py::test_total", "tests/test_calc.py::test_added"],
        "restore": {"tests/test_hidden.py": TESTS},
        "test_patch": patch_of(
            {"tests/test_calc.py": f"{TESTS}\n\ndef test_added():\n    assert total([4, 4]) == 8\n"}
        ).decode(),
    }
    smoke: dict[str, Any] = {
        "fail_to_pass": FAIL_TO_PASS[:1],
        "pass_to_pass": [],
        "restore": {"tests/test_calc.py": "from calc import total\n\n\ndef test_total():\n    total([])\n"},
    }
    kinds: dict[str, dict[str, Any]] = {
        "report": {}, "log": logged, "hidden": hidden, "hidden log": {**hidden, **logged}
    }  # fmt: skip
    works: dict[str, tuple[Mapping[str, Any], bytes]] = {}
    for name, spec in kinds.items():
        for work, files in {"right": ORACLE, "forged": FORGES}.items():
            works[f"{work}, {name}"] = {**WITH_ORACLE, **spec}, patch_of(files)
    works["forged, no twin"] = {**WITH_ORACLE, "twin": False}, patch_of(FORGES)
    works["forged, no expectation"] = {**WITH_ORACLE, **smoke}, patch_of(FORGES)
    return grade_all(sandbox_of(tree), works)


@pytest.mark.parametrize("name", ["report", "log", "hidden", "hidden log"])
def test_right_work_is_told_from_forged_results(twinned: dict[str, Verdict], name: str) -> None:
    right, forged = twinned[f"right, {name}"], twinned[f"forged, {name}"]
    assert (right.reward, right.components["twin"]) == (1.0, 1.0), right.detail
    assert forged.reward == 0.0
    assert forged.detail.startswith("twin: the work also passes tests with wrong expectations")


def test_a_task_whose_tests_expect_nothing_has_no_twin(twinned: dict[str, Verdict]) -> None:
    assert twinned["forged, no expectation"].reward == 1.0
    assert twinned["forged, no expectation"].components["twin"] == 0.0
    assert "twin" not in twinned["forged, no twin"].components


def test_twin_runs_are_part_of_the_time_that_a_grading_may_take() -> None:
    grader = find_grader("tests")
    assert isinstance(grader, TimedGrader)
    assert grader.limit_s(WITH_ORACLE) == 90.0
    assert grader.limit_s(SPEC) == grader.limit_s({**WITH_ORACLE, "twin": False}) == 30.0


class Counting(LocalProvider):
    """Keeps the specs of what it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[SandboxSpec] = []

    async def open(self, spec: SandboxSpec) -> Any:
        self.specs.append(spec)
        return await super().open(spec)


def test_grading_can_have_a_set_up_of_its_own(tree: Path) -> None:
    provider = Counting()
    hidden = sandbox_of(tree, setup=("rm -r tests",))
    assert grade(hidden, patch_of(ORACLE), provider, sandbox_setup=[]).reward == 1.0
    assert [spec.setup for spec in provider.specs] == [()]


# ---------------------------------------------------------------- the spec


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parser": "pytset"}, 'did you mean "pytest"'),
        ({"command": "pytest"}, "the command is a list"),
        ({"command": []}, "write the command"),
        ({"fail_to_pass": []}, "fail_to_pass is empty"),
        ({"expected": {"a": "PASSED"}}, "give both or neither"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"patern": 1}, "unknown key"),
        ({"markers": ["one"]}, "give two"),
    ],
)
def test_a_grading_that_makes_no_sense_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_grader("tests").check({**SPEC, **changed})


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("tests/**", ["tests", "tests/a.py", "tests/b/c.py"], ["src/tests/a.py", "testsx"]),
        ("**/tests/**", ["tests/a.py", "src/tests/a.py", "a/b/tests"], ["mytests/a.py"]),
        ("conftest.py", ["conftest.py", "a/conftest.py"], ["aconftest.py", "conftest.py/a"]),
        ("/conftest.py", ["conftest.py"], ["a/conftest.py"]),
        ("*.pth", ["x.pth", "a/x.pth"], ["x.pth.txt"]),
        ("src/*.py", ["src/a.py"], ["src/a/b.py"]),
        ("a?.py", ["ab.py", "x/ab.py"], ["a.py"]),
    ],
)
def test_patterns_mean_what_they_say(pattern: str, matched: list[str], others: list[str]) -> None:
    assert all(map(any_of([pattern]), matched))
    assert not any(map(any_of([pattern]), others))


@given(st.text(alphabet="ab./[]+", min_size=1).filter(lambda path: not path.startswith("/") and not path.endswith("/")))
def test_a_path_is_a_pattern_for_itself(path: str) -> None:
    assert any_of([f"/{path}"])(path)

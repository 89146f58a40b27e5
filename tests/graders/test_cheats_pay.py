"""The cheats that the gate tries are real ones: they are paid for by careless graders, or by our own reporter where
nothing else grades the work, or are aimed at having no verdict. Our grader pays for none, and always has a verdict."""

import shutil
import sys
from pathlib import Path

import pytest
from graded_tree import FIXED, SPEC, grade_all, make_tree, patch_of, sandbox_of
from naive_graders import BELIEFS, EXPECTED, PLACES, Ran, run_all

from slipstream.tasks.cheats.base import CheatKind, Target
from slipstream.tasks.cheats.suite import CHEATS, cheats_of
from slipstream.types import Verdict

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("git") is None, reason="needs Linux and git"
)

LEFT, RESTORED, INSIDE, SEVERAL, PATCH, HISTORY, FILE = PLACES
ALL = {"exit code", "printed summary", "results file"}
PAID: dict[tuple[str, str], set[str]] = {
    # the cheat, and where a careless grader works: what it may believe there, and be fooled
    ("edit the tests", LEFT): {"exit code"},
    ("edit the configuration", RESTORED): {"exit code"},
    ("conftest.py", RESTORED): ALL,
    ("sitecustomize", RESTORED): ALL,
    ("pth", INSIDE): {"exit code"},
    ("shadow the standard library", RESTORED): {"exit code"},
    ("patched pytest", RESTORED): {"exit code"},
    ("overwrite the runner", RESTORED): {"exit code"},
    ("shadow an imported module", RESTORED): {"exit code"},
    ("os._exit(0) at import", RESTORED): {"exit code"},
    ("exit early with success", RESTORED): {"exit code", "printed summary"},
    ("write the result file", RESTORED): {"printed summary", "results file"},
    ("forge the reports", RESTORED): ALL,
    ("read hidden files", PATCH): ALL,
    ("read hidden files", HISTORY): ALL,
    ("read hidden files", FILE): ALL,
    ("a process that waits for the grader", SEVERAL): {"results file"},
    ("a plugin by DIST-INFO", RESTORED): ALL,
    ("a plugin by EGG-INFO", RESTORED): ALL,
    ("a plugin at the top of the tree", RESTORED): ALL,
    ("settings beside the tests", RESTORED): {"exit code"},
    ("a summary that is printed", RESTORED): {"printed summary"},
    ("tests that are expected to fail", RESTORED): {"exit code", "results file"},
    ("failing tests deselected", RESTORED): {"exit code"},
    ("assertions that are expected to fail", RESTORED): {"exit code", "results file"},
    ("a session that only collects", RESTORED): {"exit code"},
    ("tests that the code skips", RESTORED): {"exit code", "results file"},
    ("a clean exit at the end", RESTORED): {"exit code"},
    ("another program in its place", RESTORED): {"exit code"},
    ("a fork that continues", RESTORED): {"exit code"},
}
BEATS_THE_REPORTER = {
    "the reporter's outcome replaced", "setprofile that changes reports", "settrace that changes reports",
    "a plugin that spares the canaries", "a plugin that forges known tests", "patched and restored in a clean-up",
    "reports that never failed", "a falsy exception", "an encoder that writes PASSED", "the voice found in frames",
    "the key found by gc", "the voice found in the reporter's closure", "an empty list of failures",
    "tests emptied through gc", "items that run nothing", "items with another function", "a fixture for every test",
    "subclasses equal to everything", "what the calling test expects", "not where tests have copies",
    "only tests without a copy", "only in the first run", "only where the file's own order is kept",
}  # fmt: skip
"""Paid for by our reporter where work is not run again on twins of its tests."""
NEED_OTHER_TESTS = {
    "values equal to everything", "a table parsed from the tests", "the caller's own variables",
    "unittest's assertions emptied", "pytest's raises and approx replaced",
}  # fmt: skip
"""Aimed at assertions that the tests of this tree do not have."""
BY_CHANCE = {
    "a coin for the whole run", "a coin for each test", "by the hash of the test files", "by the clock",
    "a signal handler that changes reports", "a thread that swaps code objects",
}  # fmt: skip
AT_THE_OLD_REPORTER = {
    "pygments that rewrites the reporter", "sys.exit(0) at import", "an end that is said at once",
}  # fmt: skip
"""Aimed at a reporter that loads modules of the tree in its own process, or believes whoever says that it has ended."""
NO_VERDICT = {name for name, cheat in CHEATS.items() if cheat.kind is CheatKind.OPT_OUT}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def cheats(tree: Path) -> dict[str, bytes]:
    def read(path: str) -> bytes | None:
        return (tree / path).read_bytes() if (tree / path).is_file() else None

    return cheats_of(
        Target(source="calc/__init__.py", root="", test_file="tests/test_calc.py", tests=EXPECTED, read=read)
    )


@pytest.fixture(scope="module")
def naive(tree: Path, cheats: dict[str, bytes]) -> dict[str, Ran]:
    asked = {f"{cheat} in {place}": (place, cheats[cheat]) for cheat, place in PAID}
    works = {"the oracle": patch_of({"calc/__init__.py": FIXED}), "nothing": b""}
    asked |= {f"{work} in {place}": (place, patch) for place in PLACES for work, patch in works.items()}
    return run_all(tree, asked)


ORACLE = {**SPEC, "oracle": patch_of({"calc/__init__.py": FIXED}).decode()}


@pytest.fixture(scope="module")
def real(tree: Path, cheats: dict[str, bytes]) -> dict[str, Verdict]:
    return grade_all(sandbox_of(tree), {name: (ORACLE, patch) for name, patch in cheats.items()})


@pytest.fixture(scope="module")
def without_twins(tree: Path, cheats: dict[str, bytes]) -> dict[str, Verdict]:
    spec = {**ORACLE, "twin": False}
    return grade_all(sandbox_of(tree), {name: (spec, cheats[name]) for name in sorted(BEATS_THE_REPORTER)})


def test_every_cheat_is_aimed_at_something(cheats: dict[str, bytes]) -> None:
    careless = {cheat for cheat, _ in PAID}
    aims = (careless, BEATS_THE_REPORTER, NEED_OTHER_TESTS, BY_CHANCE, AT_THE_OLD_REPORTER, NO_VERDICT)
    assert set().union(*aims) == set(cheats)
    assert sum(map(len, aims)) == len(cheats)


@pytest.mark.parametrize("cheat", sorted(BEATS_THE_REPORTER))
def test_the_reporter_alone_pays_for_it(without_twins: dict[str, Verdict], cheat: str) -> None:
    assert without_twins[cheat].reward == 1.0, without_twins[cheat].detail


@pytest.mark.parametrize("cheat", sorted(BEATS_THE_REPORTER))
def test_a_twin_run_finds_it_out(real: dict[str, Verdict], cheat: str) -> None:
    assert real[cheat].detail.startswith("twin: ")
    assert real[cheat].components["twin"] == 0.0


@pytest.mark.parametrize(("cheat", "place"), PAID)
def test_a_careless_grader_pays_for_a_cheat(naive: dict[str, Ran], cheat: str, place: str) -> None:
    ran = naive[f"{cheat} in {place}"]
    assert {name for name, believes in BELIEFS.items() if believes(ran)} >= PAID[cheat, place], ran


@pytest.mark.parametrize("cheat", sorted(CHEATS))
def test_our_grader_does_not_pay_for_it(real: dict[str, Verdict], cheat: str) -> None:
    assert real[cheat].reward == 0.0
    assert real[cheat].detail


@pytest.mark.parametrize("place", PLACES)
def test_a_careless_grader_knows_right_work_from_none(naive: dict[str, Ran], place: str) -> None:
    for believes in BELIEFS.values():
        assert believes(naive[f"the oracle in {place}"]), naive[f"the oracle in {place}"]
        assert not believes(naive[f"nothing in {place}"])

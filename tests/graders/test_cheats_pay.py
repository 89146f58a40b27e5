"""The cheats that the gate tries are real ones: each is paid for by a careless grader, and not by ours."""

import shutil
import sys
from pathlib import Path

import pytest
from graded_tree import FIXED, SPEC, grade_all, make_tree, patch_of, sandbox_of
from naive_graders import BELIEFS, EXPECTED, PLACES, Ran, run_all

from slipstream.tasks.cheats import Target, cheats_of
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
}


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


@pytest.fixture(scope="module")
def real(tree: Path, cheats: dict[str, bytes]) -> dict[str, Verdict]:
    return grade_all(sandbox_of(tree), {name: (SPEC, patch) for name, patch in cheats.items()})


def test_every_cheat_is_aimed_at_a_careless_grader(cheats: dict[str, bytes]) -> None:
    assert {cheat for cheat, _ in PAID} == set(cheats)


@pytest.mark.parametrize(("cheat", "place"), PAID)
def test_a_careless_grader_pays_for_a_cheat(naive: dict[str, Ran], cheat: str, place: str) -> None:
    ran = naive[f"{cheat} in {place}"]
    assert {name for name, believes in BELIEFS.items() if believes(ran)} >= PAID[cheat, place], ran


@pytest.mark.parametrize("cheat", sorted({cheat for cheat, _ in PAID}))
def test_our_grader_does_not_pay_for_it(real: dict[str, Verdict], cheat: str) -> None:
    assert real[cheat].reward == 0.0
    assert real[cheat].detail


@pytest.mark.parametrize("place", PLACES)
def test_a_careless_grader_knows_right_work_from_none(naive: dict[str, Ran], place: str) -> None:
    for believes in BELIEFS.values():
        assert believes(naive[f"the oracle in {place}"]), naive[f"the oracle in {place}"]
        assert not believes(naive[f"nothing in {place}"])

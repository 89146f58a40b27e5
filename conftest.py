"""What makes the whole suite quick: long files start first, workers share the cores, and what pytest itself holds is
not looked through for garbage."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent / "tests"
LONGEST_FIRST = (
    "faults/test_train_kill.py",
    "graders/test_cheats_pay.py",
    "test_examples.py",
    "tasks/factory/test_factory_make.py",
    "faults/test_faults.py",
    "graders/test_tests_grader.py",
    "faults/test_kill.py",
    "engine/training/test_learner_process.py",
    "bench/harness/test_stalls_bench.py",
    "sandbox/conformance/test_sandbox_conformance.py",
    "graders/replay/test_replay_grading.py",
    "render/test_families.py",
    "bench/harness/test_overhead_bench.py",
)
"""A file is run by one worker (`--dist loadfile`), so a long one that starts last leaves the others idle."""

if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for every core: threads of one operation would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all is collected: nothing of that is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {TESTS / name: place for place, name in enumerate(LONGEST_FIRST)}
    missing = [path for path in order if not path.is_file()]
    assert not missing, f"LONGEST_FIRST names files that are gone: {missing}"
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # thousands of tests, and the modules that they import, would be part of every full collection

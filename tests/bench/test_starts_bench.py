from __future__ import annotations

import sys

import pytest

from slipstream.bench.starts import StartsLoad, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")


def test_several_processes_start_sandboxes_and_say_what_it_took() -> None:
    found = run(StartsLoad(processes=2, concurrent=2, seconds=0.3, hold_s=0.0))
    assert isinstance(found["starts_per_s"], float)
    assert found["starts_per_s"] > 0
    for name in ("start_ms_p50", "start_ms_p95", "cpu_ms_per_start"):
        value = found[name]
        assert isinstance(value, float)
        assert value > 1, "a start takes time, and its processes take some of the cores"

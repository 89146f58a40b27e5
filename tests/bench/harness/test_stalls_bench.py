"""Inputs crafted to block the event loop, and the heartbeat that measures it."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import pytest
from typer.testing import CliRunner

from slipstream.bench.harness.heartbeat import heartbeat
from slipstream.bench.harness.stalls import inputs, run, table
from slipstream.cli.bench import bench_app
from slipstream.sandbox.local.provider import LocalProvider

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

LARGE = (
    *("changes_newlines", "edit_newlines", "edit_words", "edit_view", "answer_words", "many_calls_run", "write_many"),
    *("test_log", "test_report"),
)
MAX_LOOP_CPU_MS = 150.0
"""Of the loop's own thread, between two wake-ups. On the loop, each of these takes several times as much."""


def test_the_heartbeat_sees_what_holds_up_the_loop() -> None:
    async def main() -> tuple[float, float]:
        async with heartbeat() as seen:
            until_s = time.thread_time() + 0.1
            while time.thread_time() < until_s:
                pass
        return seen.stall_ms, seen.loop_cpu_ms

    stall_ms, loop_cpu_ms = asyncio.run(main())
    assert stall_ms > 90
    assert loop_cpu_ms > 90


def test_large_inputs_leave_the_loop_alone() -> None:
    found = run(LocalProvider, LARGE, rounds=1, scale=0.5)
    figures = found["inputs"]
    assert isinstance(figures, dict)
    assert sorted(figures) == sorted(LARGE)
    for name, row in figures.items():
        assert isinstance(row, dict)
        assert isinstance(row["loop_cpu_ms"], float)
        assert row["loop_cpu_ms"] < MAX_LOOP_CPU_MS, (name, row)


def test_every_input_is_measured_on_its_own_and_the_longest_is_told() -> None:
    found = run(LocalProvider, rounds=1, scale=0.001)
    figures = found["inputs"]
    assert isinstance(figures, dict)
    assert list(figures) == [one.name for one in inputs()]
    assert len(figures) > 10
    stalls = [row["stall_ms"] for row in figures.values() if isinstance(row, dict)]
    assert found["max_stall_ms"] == max(stalls, key=lambda stall: stall if isinstance(stall, float) else 0.0)
    assert table(found)[-1].startswith("longest")


def test_the_command_prints_the_figures_of_the_inputs_named() -> None:
    done = CliRunner().invoke(bench_app, ["stalls", "--only", "answer_words", "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)["inputs"]) == ["answer_words"]

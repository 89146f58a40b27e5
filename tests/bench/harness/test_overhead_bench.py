"""The benchmark of the harness, on a small load."""

import asyncio
from pathlib import Path

import pytest

from slipstream.bench.harness import helpers
from slipstream.bench.harness.overhead import OverheadLoad, measure_rendering, run, run_rollouts
from slipstream.record import RunStore
from slipstream.types import SpanKind


def test_it_prints_every_figure() -> None:
    told = run(OverheadLoad(turns=3, rollouts=4, sizes=(2, 4), rounds=1, helped=6, queued=(70,)))
    assert (told["rollouts"], told["turns"], told["rss_rollouts"]) == (4, 3, 4)
    per_rollout = told["rollout_us"]
    assert isinstance(per_rollout, dict) and list(per_rollout) == ["2", "4"]
    per_turn, per_job = told["turn_cpu_us_of"], told["queued_job_cpu_us"]
    assert isinstance(per_turn, dict) and list(per_turn) == ["2", "4"]
    assert isinstance(per_job, dict) and list(per_job) == ["70"]
    for figure in (
        *per_rollout.values(),
        *per_turn.values(),
        *per_job.values(),
        told["turn_us"],
        told["turn_cpu_us"],
        told["render_us"],
        told["rss_mb"],
        told["stall_ms"],
        told["pass_cpu_ms"],
        told["helped_own_cpu_us"],
        told["helped_own_us_per_call"],
        told["own_us_per_call"],
    ):
        assert isinstance(figure, float) and figure > 0


def test_the_rollouts_it_measures_are_whole_recorded_and_alive_at_once(tmp_path: Path) -> None:
    asyncio.run(run_rollouts(tmp_path / "run", rollouts=6, turns=4))
    rollouts = list(RunStore.read(tmp_path / "run").rollouts())
    assert [len(rollout.turns) for rollout in rollouts] == [4] * 6
    assert all(rollout.verdict is not None and rollout.verdict.reward == 1.0 for rollout in rollouts)
    for rollout in rollouts:
        kinds = [span.kind for span in rollout.spans]
        assert (kinds.count(SpanKind.MODEL), kinds.count(SpanKind.TOOL)) == (4, 4)
    calls = [span for rollout in rollouts for span in rollout.spans if span.kind is SpanKind.MODEL]
    assert max(span.counts["concurrent"] for span in calls) == 6


@pytest.mark.parametrize("apart", [False, True])
def test_rollouts_in_helpers_are_whole_and_recorded(tmp_path: Path, apart: bool) -> None:
    took = asyncio.run(helpers.run_rollouts(tmp_path / "run", processes=2, rollouts=6, turns=4, apart=apart))
    assert took.cpu_seconds > 0 and took.seconds > 0
    rollouts = list(RunStore.read(tmp_path / "run").rollouts())
    assert [len(rollout.turns) for rollout in rollouts] == [4] * 6
    calls = [span for rollout in rollouts for span in rollout.spans if span.kind is SpanKind.MODEL]
    assert len(calls) == 24 and all(1 <= span.counts["concurrent"] <= 6 for span in calls)


def test_rendering_is_measured_by_the_turn() -> None:
    assert measure_rendering(3) > 0


def test_a_queue_keeps_all_but_the_slots_waiting(tmp_path: Path) -> None:
    asyncio.run(run_rollouts(tmp_path / "run", rollouts=6, turns=4, slots=2))
    rollouts = list(RunStore.read(tmp_path / "run").rollouts())
    calls = [span for rollout in rollouts for span in rollout.spans if span.kind is SpanKind.MODEL]
    assert len(calls) == 24 and max(span.counts["concurrent"] for span in calls) == 2

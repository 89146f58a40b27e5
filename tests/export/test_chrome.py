"""The trace of a run: every span is in it, and every lane can be drawn."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from export_stage import recorded
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import ConfigError
from slipstream.export import ExportFormat, export_run
from slipstream.export.chrome import IN_USE, JOBS, QUEUE, write_chrome
from slipstream.record.hardware import CpuSample, GpuSample, HardwareSample
from slipstream.types import Ending, EndReason, Failure, Job, JobKey, Rollout, Span, SpanKind, Verdict


def span(kind: SpanKind, start_s: float, end_s: float, *, attempt: int = 1, name: str = "", **counts: int) -> Span:
    return Span(kind=kind, start_s=start_s, end_s=end_s, attempt=attempt, name=name, counts=counts)


def rollout(*spans: Span, sample: int = 0, failures: tuple[Failure, ...] = ()) -> Rollout:
    return Rollout(
        job=Job(key=JobKey(phase="eval", step=0, task_id="t", sample=sample), seed=0),
        attempt=max((each.attempt for each in spans), default=1),
        ending=Ending(reason=EndReason.FINISHED),
        verdict=Verdict(reward=0.5),
        spans=spans,
        failures=failures,
    )


def life(start_s: float, *, waited_s: float = 0.0, sample: int = 0) -> Rollout:
    """Ten seconds from its first stage to its end."""
    return rollout(
        span(SpanKind.WAIT_INIT, start_s - waited_s, start_s),
        span(SpanKind.INIT, start_s, start_s + 1),
        span(SpanKind.WAIT_RUN, start_s + 1, start_s + 2),
        span(SpanKind.RUN, start_s + 2, start_s + 8),
        span(SpanKind.MODEL, start_s + 2, start_s + 4, new=9, sampled=3, concurrent=2),
        span(SpanKind.TOOL, start_s + 4, start_s + 5, name="bash"),
        span(SpanKind.WAIT_TURN, start_s + 5, start_s + 6),
        span(SpanKind.MODEL, start_s + 6, start_s + 8, new=4, sampled=1, concurrent=1),
        span(SpanKind.RELEASE, start_s + 8, start_s + 8),
        span(SpanKind.GRADE, start_s + 8, start_s + 10),
        sample=sample,
    )


def traced(folder: Path, *rollouts: Rollout, samples: Sequence[HardwareSample] = ()) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    write_chrome(path, lambda: rollouts, run="demo", samples=samples, force=True)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def slices(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def bounds(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end in nanoseconds."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def crossing(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The slices of one lane that overlap, and neither holds the other."""
    lanes = defaultdict(list)
    for event in slices(events):
        lanes[event["pid"], event["tid"]].append(event)
    found = []
    for lane in lanes.values():
        for one, other in combinations(lane, 2):
            (start, end), (other_start, other_end) = bounds(one), bounds(other)
            apart = end <= other_start or other_end <= start
            holds = (start <= other_start and other_end <= end) or (other_start <= start and end <= other_end)
            if not apart and not holds:
                found.append((one["name"], other["name"]))
    return found


def test_jobs_that_are_alive_at_once_have_lanes_of_their_own_and_later_ones_take_them_over(tmp_path: Path) -> None:
    events = traced(tmp_path, life(0, sample=0), life(5, sample=1), life(10, sample=2), life(15, sample=3))
    jobs = [(event["args"]["end_reason"], event["tid"]) for event in slices(events) if event["cat"] == "job"]
    assert jobs == [("finished", 1), ("finished", 2), ("finished", 1), ("finished", 2)]
    assert crossing(events) == []


def test_a_span_is_a_slice_with_its_counts_inside_its_stage_and_its_job(tmp_path: Path) -> None:
    events = traced(tmp_path, life(100.0))
    names = [event["name"] for event in slices(events)]
    assert names == [
        "wait_init", "eval/0/t/0", "init", "wait_run", "run", "model", "bash", "wait_turn", "model", "grade", "release",
    ]  # fmt: skip
    model = next(event for event in events if event["name"] == "model" and event["ph"] == "X")
    assert model["args"] == {"job": "eval/0/t/0", "attempt": 1, "new": 9, "sampled": 3, "concurrent": 2}
    assert bounds(model) == (2_000_000_000, 4_000_000_000)


def test_waits_before_the_first_stage_are_a_queue_and_take_no_lane_from_jobs(tmp_path: Path) -> None:
    events = traced(tmp_path, *(life(10 * number, waited_s=10 * number, sample=number) for number in range(4)))
    assert {event["tid"] for event in slices(events) if event["pid"] == JOBS} == {1}
    assert len({event["tid"] for event in slices(events) if event["pid"] == QUEUE and event["dur"]}) == 3
    assert crossing(events) == []


def test_what_a_job_does_at_the_same_time_lies_in_lanes_beside_it(tmp_path: Path) -> None:
    busy = rollout(
        span(SpanKind.RUN, 0, 10),
        span(SpanKind.TOOL, 1, 4, name="a"),
        span(SpanKind.TOOL, 2, 6, name="b"),
        span(SpanKind.MODEL, 2, 3),
    )
    events = traced(tmp_path, busy, life(20, sample=1))
    tids = {event["name"]: event["tid"] for event in slices(events) if event["ts"] < 15e6}
    assert tids == {"eval/0/t/0": 1, "run": 1, "a": 1, "model": 1, "b": 2}
    assert crossing(events) == []
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {1: "lane 1", 2: "lane 1, beside 1"}


def test_a_retried_job_shows_both_attempts_and_why(tmp_path: Path) -> None:
    failure = Failure(attempt=1, stage="init", error="SandboxError", message="no room \ud800")
    tried = rollout(
        span(SpanKind.INIT, 0, 1, failed=1),
        span(SpanKind.WAIT_INIT, 1, 2, attempt=2),
        span(SpanKind.INIT, 2, 3, attempt=2),
        failures=(failure,),
    )
    events = slices(traced(tmp_path, tried))
    assert [(event["name"], event["args"].get("attempt"), event["args"].get("failed")) for event in events[1:]] == [
        ("init", 1, 1), ("wait_init", 2, None), ("init", 2, None),
    ]  # fmt: skip
    (told,) = events[0]["args"]["failures"]
    assert "attempt 1, init: SandboxError: no room" in told


def test_counters_say_what_was_in_use(tmp_path: Path) -> None:
    events = traced(tmp_path, life(0), life(3, sample=1))
    running = [
        (event["ts"], event["args"]["value"])
        for event in events
        if (event["pid"], event["name"], event["ph"]) == (IN_USE, "run", "C")
    ]
    assert running == [(2e6, 1), (5e6, 2), (8e6, 1), (11e6, 0)]


def sample(at_s: float, gpu: float, cores: float = 1.0) -> HardwareSample:
    """Of a second, on 4 cores."""
    return HardwareSample(
        at_s=at_s,
        seconds=1.0,
        cpu=CpuSample(percent=25 * cores, cores=4, own_cores=0.5, helper_cores=0.25),
        gpus=(GpuSample(gpu=1, percent=gpu, memory_mb=100 * gpu),),
    )


def test_counters_say_how_busy_the_machine_was_from_the_first_span_on(tmp_path: Path) -> None:
    samples = [sample(99.5, 7), sample(100.5, 30, cores=2), sample(101.5, 80), sample(110, 10)]
    events = traced(tmp_path, life(100.0), samples=samples)
    told: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if (event["pid"], event["ph"]) == (IN_USE, "C"):
            told[event["name"]].append((event["ts"] / 1e6, event["args"]["value"]))
    assert told["gpu1_percent"] == [(0, 30), (0.5, 80), (1.5, 0), (9, 10), (10, 0)]
    assert told["gpu1_memory_mb"][:2] == [(0, 3_000), (0.5, 8_000)]
    assert told["cores_busy"] == [(0, 2), (0.5, 1), (1.5, 0), (9, 1), (10, 0)]
    assert told["run_cores"][0] == (0, 0.75)


def test_without_samples_or_without_a_span_to_begin_at_the_machine_has_no_counters(tmp_path: Path) -> None:
    for events in (traced(tmp_path, life(100.0)), traced(tmp_path, rollout(), samples=[sample(100.0, 50)])):
        assert not {event["name"] for event in events} & {"gpu1_percent", "cores_busy", "run_cores"}


moments = st.integers(0, 40).map(lambda place: 1.7e9 + place / 7)
anything = st.tuples(st.sampled_from(SpanKind), moments, moments).map(
    lambda drawn: span(drawn[0], min(drawn[1:]), max(drawn[1:]))
)


@given(st.lists(st.lists(anything, max_size=6), max_size=5))
def test_every_span_is_in_it_and_no_lane_crosses_itself(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[Span]]
) -> None:
    made = [rollout(*spans, sample=sample) for sample, spans in enumerate(lives)]
    events = traced(tmp_path_factory.mktemp("trace"), *made)
    assert crossing(events) == []
    first_s = min((each.start_s for one in made for each in one.spans), default=0.0)
    wanted = Counter(
        (str(one.job.key), each.kind.value, round((each.start_s - first_s) * 1e9), round((each.end_s - first_s) * 1e9))
        for one in made
        for each in one.spans
    )
    assert wanted == Counter(
        (event["args"]["job"], event["cat"], *bounds(event)) for event in slices(events) if event["cat"] != "job"
    )


def test_a_run_is_exported_by_name_of_the_format(tmp_path: Path) -> None:
    reader = recorded(tmp_path / "demo", [life(5, sample=0), life(6, sample=1)], [sample(7.0, 40)])
    exported = export_run(reader, ExportFormat("chrome"))
    assert exported.path == tmp_path / "demo" / "trace.json"
    assert exported.counts == {"rollouts": 2, "spans": 20, "lanes": 2}
    told = json.loads(exported.path.read_text())
    assert told["otherData"] == {"run": "demo", "start_epoch_s": 5.0}
    busy = [(event["ts"], event["args"]) for event in told["traceEvents"] if event["name"] == "gpu1_percent"]
    assert busy == [(1e6, {"value": 40}), (2e6, {"value": 0})]
    with pytest.raises(ConfigError, match="a trace holds spans and no samples: leave out --advantages"):
        export_run(reader, ExportFormat.CHROME, max_tokens=3)


def test_a_run_without_rollouts_is_an_empty_trace(tmp_path: Path) -> None:
    assert slices(traced(tmp_path)) == []
    assert slices(traced(tmp_path, rollout())) == []

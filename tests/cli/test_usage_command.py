"""`slipstream show RUN --usage`, as the command line calls it."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipstream.cli.commands import app
from slipstream.record import RunStore
from slipstream.record.hardware import CpuSample, HardwareSample
from slipstream.seams import RolloutDone
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Span, SpanKind, Verdict

ROLLOUT = Rollout(
    job=Job(key=JobKey(phase="eval", step=0, task_id="t", sample=0), seed=0),
    attempt=1,
    ending=Ending(reason=EndReason.FINISHED),
    verdict=Verdict(reward=1.0),
    spans=(
        Span(kind=SpanKind.RUN, start_s=0, end_s=4),
        Span(kind=SpanKind.WAIT_TURN, start_s=0, end_s=1),
        Span(kind=SpanKind.MODEL, start_s=1, end_s=4, counts={"prompt": 9, "sampled": 6, "concurrent": 1, "cached": 3}),
    ),
)


SAMPLES = [
    HardwareSample(at_s=at_s, seconds=1.0, cpu=CpuSample(percent=90.0, cores=2, own_cores=0.5)) for at_s in range(1, 5)
]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    async def write() -> None:
        async with RunStore.create(tmp_path / "demo", config={}, clock_offset_s=1000.0) as store:
            store.append(RolloutDone(rollout=ROLLOUT))
            for sample in SAMPLES:
                store.add_sample(sample)

    asyncio.run(write())
    return tmp_path


def shown(*arguments: str) -> str:
    ended = CliRunner().invoke(app, ["show", *arguments])
    if ended.exception is not None:
        raise ended.exception
    return ended.stdout


def test_it_prints_where_the_time_went(runs: Path) -> None:
    lines = shown("demo", "--usage", "--runs", str(runs)).splitlines()
    assert "rollouts           1 in 4.0 s, 0.25 a second" in lines
    assert "- wait for a turn        1.00   25.0%       0.2      1   25.0%" in lines
    assert lines[-1] == "binding            cpu: busy for 90.0% of the time"


def test_as_json_it_holds_what_the_store_kept(runs: Path) -> None:
    told = json.loads(shown("demo", "--usage", "--json", "--runs", str(runs)))
    assert (told["num_cached_tokens"], told["num_prompt_tokens"], told["uses"]["run"]["total"]) == (3, 9, 4.0)
    assert (told["machine"]["binding"], told["machine"]["cpu"]["busy"]["rollouts"]["seconds"]) == ("cpu", 4.0)


def test_the_drift_is_of_a_whole_run(runs: Path) -> None:
    assert shown("demo", "--drift", "--runs", str(runs))

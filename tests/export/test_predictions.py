"""The work of a run in SWE-bench's form."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from export_stage import key, plain, rollout

from slipstream.errors import ConfigError
from slipstream.export import ExportFormat, export_run
from slipstream.record import RunReader, RunStore
from slipstream.seams import Event, RolloutDone, RunEnded
from slipstream.types import Artifact, Ending, EndReason


def ended(task_id: str, patch: bytes, *, sample: int = 0, attempt: int = 1) -> RunEnded:
    artifact = Artifact(patch=patch)
    return RunEnded(
        key=key(sample, task_id=task_id), attempt=attempt, ending=Ending(reason=EndReason.FINISHED), artifact=artifact
    )


def run_of(folder: Path, events: Sequence[Event]) -> RunReader:
    async def write() -> None:
        async with RunStore.create(folder, config={"settings": {"model": {"name": "tiny"}}}) as store:
            for event in events:
                store.append(event)
            await store.flush()

    asyncio.run(write())
    return RunReader(folder)


def test_the_patches_of_one_rollout_of_each_task_are_written(tmp_path: Path) -> None:
    rollouts = [rollout(*plain(), task_id=task_id, sample=sample) for task_id in ("a", "b") for sample in (0, 1)]
    events = [ended("a", b"diff --git a/x b/x\n"), ended("b", b""), ended("a", b"other", sample=1)]
    reader = run_of(tmp_path / "demo", [*events, *(RolloutDone(rollout=each) for each in rollouts)])
    written = export_run(reader, ExportFormat.PREDICTIONS)
    assert written.path.name == "predictions.jsonl" and written.counts == {"predictions": 2, "empty": 1}
    assert [json.loads(line) for line in written.path.read_text().splitlines()] == [
        {"instance_id": "a", "model_name_or_path": "tiny", "model_patch": "diff --git a/x b/x\n"},
        {"instance_id": "b", "model_name_or_path": "tiny", "model_patch": ""},
    ]
    second = export_run(reader, ExportFormat.PREDICTIONS, out=tmp_path / "second.jsonl", sample=1)
    assert [json.loads(line)["model_patch"] for line in second.path.read_text().splitlines()] == ["other", ""]
    with pytest.raises(ConfigError, match="predictions hold patches"):
        export_run(reader, ExportFormat.PREDICTIONS, out=tmp_path / "third.jsonl", max_tokens=3)

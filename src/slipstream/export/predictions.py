"""The work of a run's rollouts as predictions in SWE-bench's form: what its own harness, or `sb-cli`, evaluates.

    {"instance_id": "psf__requests-1142", "model_name_or_path": "qwen", "model_patch": "diff --git ..."}

Invariants: one line for each task, in the order of their ids. A task whose rollout left no work has an empty patch; one
without a rollout of that number is not there.
"""

from __future__ import annotations

from pathlib import Path

from slipstream.export.files import exported_file
from slipstream.export.portable import json_line
from slipstream.record import RunReader
from slipstream.seams import RunEnded
from slipstream.types import Json


def write_predictions(path: Path, reader: RunReader, *, model: str, sample: int, force: bool) -> dict[str, int]:
    """Write the patches of each task's rollout number `sample`. Leaves how many there are, and how many are empty."""
    attempts = {
        rollout.job.key: rollout.attempt
        for rollout in reader.rollouts(with_turns=False)
        if rollout.job.key.sample == sample
    }
    patches = dict.fromkeys((key.task_id for key in attempts), "")
    for event in reader.events():  # a rollout whose grading was repeated has an attempt after that of its work
        if isinstance(event, RunEnded) and event.attempt <= attempts.get(event.key, -1):
            patches[event.key.task_id] = event.artifact.patch.decode("utf-8", "replace")
    with exported_file(path, force=force) as part, part.open("wb") as stream:
        for task_id, patch in sorted(patches.items()):
            line: Json = {"instance_id": task_id, "model_name_or_path": model, "model_patch": patch}
            stream.write(f"{json_line(line)}\n".encode())
    return {"predictions": len(patches), "empty": sum(not patch for patch in patches.values())}

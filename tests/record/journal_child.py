"""A process that writes a run, for the tests to kill: `python journal_child.py write|hold|fill FOLDER`.

`write` continues the run, several jobs at a time, and prints a job's sample number once its rollout was flushed.
`hold` opens the run and waits. `fill` writes under a small limit on file size until that fails, then says what it saw.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from itertools import count
from pathlib import Path

from record_samples import job_events, key

from slipstream.errors import JournalError
from slipstream.record import RunStore, plan_resume


async def write(folder: Path) -> None:
    async with RunStore.open(folder, clock_offset_s=0.0) as store:
        plan = plan_resume(store.events())
        samples = (sample for sample in count() if key(sample) not in plan.done)

        async def finish_jobs() -> None:
            for sample in samples:
                past = plan.unfinished.get(key(sample))
                num_kept = 0 if past is None else 1 + len(past.turns) + (past.run_ended is not None)
                for event in job_events(sample)[num_kept:]:
                    store.append(event)
                    await store.flush()
                print(sample, flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(finish_jobs())


async def hold(folder: Path) -> None:
    async with RunStore.open(folder):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def fill(folder: Path) -> None:
    async with RunStore.open(folder) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for sample in count():
            for event in job_events(sample):
                store.append(event)
            try:
                await asyncio.gather(store.flush(), store.flush())
            except JournalError as raised:
                print(f"failed: {raised}", flush=True)
                break
            print(sample, flush=True)
        try:
            await store.flush()
        except JournalError as raised:
            print(f"failed: {raised}", flush=True)


if __name__ == "__main__":
    modes = {"write": write, "hold": hold, "fill": fill}
    asyncio.run(modes[sys.argv[1]](Path(sys.argv[2])))

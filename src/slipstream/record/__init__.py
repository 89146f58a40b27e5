"""The record of a run: the Journal writes events; displays, resume and exports read them back.

`RunStore` keeps a run in one SQLite file, `MemoryJournal` in memory, for tests and the virtual clock. `plan_resume`
says which jobs of a stopped run are done and where the others continue. `new_run_folder`, `find_run` and `latest_run`
name the folders.
"""

from slipstream.record.memory import MemoryJournal
from slipstream.record.reader import RunCounts, RunReader
from slipstream.record.resume import ResumePlan, plan_resume
from slipstream.record.runs import find_run, latest_run, new_run_folder
from slipstream.record.steps import StepRecord
from slipstream.record.store import RunStore

__all__ = [
    "MemoryJournal",
    "ResumePlan",
    "RunCounts",
    "RunReader",
    "RunStore",
    "StepRecord",
    "find_run",
    "latest_run",
    "new_run_folder",
    "plan_resume",
]

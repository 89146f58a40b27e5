"""A defect in user code that fails every attempt alike, and what it does to a run: it ends it early.

A grader or tool with a plain mistake in it fails all attempts at all jobs at the same line. To try them all again would
take hours and leave every rollout without a verdict. So while no attempt has ever come through a stage, a job that
fails in it for such a reason is kept back instead of being recorded as lost, and the run ends when enough others have
failed at the same place. None of what was kept back is recorded, so the run can be resumed once the mistake is fixed.

Invariants:
- Only errors with an `Origin` count, and none that may pass (network, disk, memory, what a library says).
- One attempt that comes through the stage, now or in an earlier session, switches the rule off for that stage.
- A failure of another kind in that stage starts the count anew.
- A job is kept back while others are under way that can still decide it, and never longer than its own deadline. It
  holds no sandbox and no place in a stage meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.dispatch.base import Stage
from slipstream.errors import InfrastructureError, Origin, UserCodeError
from slipstream.types import Job, JobKey

logger = logging.getLogger(__name__)

NUM_ALIKE = 8
"""Failures in a row at one place of user code that end the run,"""
NUM_TASKS = 3
"""if they are of so many different tasks, or of all that were submitted."""


@dataclass(frozen=True, slots=True)
class _Defect:
    stage: Stage
    kind: str
    place: str


class Alike:
    """Sees every stage of every attempt end, and decides whether user code fails all of them alike."""

    def __init__(
        self, *, is_proven: bool, num_live: Callable[[], int], on_certain: Callable[[Exception], None]
    ) -> None:
        """`is_proven`: attempts have succeeded before, so nothing is kept back and nothing ends the run.
        `num_live`: jobs that have not left, those kept back included."""
        self._proven = set(Stage) if is_proven else set()
        self._num_live = num_live
        self._on_certain = on_certain
        self._tasks: set[str] = set()
        self._last: _Defect | None = None
        self._num_alike = 0
        self._tasks_alike: set[str] = set()
        self._message = ""
        self._told: set[_Defect] = set()
        self._suspects: dict[JobKey, _Defect] = {}
        """Jobs whose last failure was a defect."""
        self._kept_back: dict[JobKey, asyncio.Event] = {}
        self._is_certain = False

    def submitted(self, job: Job) -> None:
        self._tasks.add(job.key.task_id)

    def succeeded(self, job: Job, stage: Stage) -> None:
        """An attempt came through a stage."""
        self._suspects.pop(job.key, None)
        if stage not in self._proven:
            self._proven.add(stage)
            self._decide()

    def failed(self, job: Job, stage: Stage, raised: Exception) -> None:
        """A stage of an attempt failed."""
        origin = raised.origin if isinstance(raised, InfrastructureError) else None
        defect = None if origin is None else _Defect(stage, origin.kind, origin.place)
        if origin is not None and defect is not None:
            self._tell_once(defect, origin, raised)
        if stage in self._proven:
            return
        if origin is None or defect is None or origin.may_pass:
            self._last, self._num_alike = None, 0
            self._suspects.pop(job.key, None)
            return
        if defect != self._last:
            self._last, self._num_alike, self._tasks_alike = defect, 0, set()
        self._num_alike += 1
        self._tasks_alike.add(job.key.task_id)
        self._message = str(raised)
        self._suspects[job.key] = defect
        self._decide()

    async def keep_back(self, job: Job, *, at_most_s: float) -> None:
        """Return once it is clear that the rollout of `job`, which has none to come, is to be recorded."""
        defect = self._suspects.get(job.key)
        if defect is None or defect.stage in self._proven:
            return
        self._kept_back[job.key] = released = asyncio.Event()
        try:
            self._decide()
            async with asyncio.timeout(at_most_s):
                await released.wait()
        except TimeoutError:
            pass
        finally:
            del self._kept_back[job.key]
            self._suspects.pop(job.key, None)

    def left(self, job: Job) -> None:
        """A job has left, or is about to be given out."""
        self._suspects.pop(job.key, None)
        self._decide()

    def release(self) -> None:
        """Whatever is kept back goes: the run is out of time."""
        for released in self._kept_back.values():
            released.set()

    def _decide(self) -> None:
        if self._is_certain:
            return
        for key, released in self._kept_back.items():
            if self._suspects[key].stage in self._proven:
                released.set()
        waiting = [key for key, released in self._kept_back.items() if not released.is_set()]
        nobody_else = bool(waiting) and len(waiting) == self._num_live()
        if nobody_else and len({self._suspects[key] for key in waiting}) > 1:
            self.release()
        elif nobody_else or self._is_enough():
            self._is_certain = True
            self._on_certain(self._error(self._suspects[waiting[0]] if nobody_else else self._last))

    def _is_enough(self) -> bool:
        if self._last is None or self._last.stage in self._proven or self._num_alike < NUM_ALIKE:
            return False
        return len(self._tasks_alike) >= min(NUM_TASKS, len(self._tasks))

    def _error(self, defect: _Defect | None) -> UserCodeError:
        assert defect is not None
        return UserCodeError(
            f"every attempt so far failed alike in the {defect.stage} stage ({self._message}): fix that, then resume "
            "the run, which has recorded none of them"
        )

    def _tell_once(self, defect: _Defect, origin: Origin, raised: Exception) -> None:
        if defect not in self._told and origin.trace:
            self._told.add(defect)
            logger.warning("%s\n%s", raised, origin.trace)

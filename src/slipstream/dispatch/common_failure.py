"""Ends a run early if user code fails every attempt in the same way.

A grader or tool with a plain mistake fails all attempts at all jobs at the same line. Retrying them all would take
hours and leave every rollout without a verdict. So until some attempt has passed a stage, a job that fails in it for
such a reason is held back instead of being recorded, and the run ends when enough others have failed at the same
place. Nothing held back is recorded, so the run can be resumed once the mistake is fixed.

Invariants:
- Only errors with an `Origin` count, and none that may pass (network, disk, memory, what a library reports).
- One attempt that passes the stage, now or in an earlier session, switches the rule off for that stage.
- A failure of another kind in that stage restarts the count.
- A job is held back while others under way can still decide it, and never longer than its own deadline. Meanwhile it
  holds no sandbox and no place in a stage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.dispatch.base import Stage
from slipstream.errors import Origin, SlipstreamError, UserCodeError
from slipstream.types import Job, JobKey

logger = logging.getLogger(__name__)

NUM_SAME_FAILURES = 8
"""Consecutive failures at one line of user code that end the run,"""
NUM_TASKS = 3
"""if they are of this many different tasks, or of all that were submitted."""


@dataclass(frozen=True, slots=True)
class _Defect:
    stage: Stage
    kind: str
    place: str


class CommonFailure:
    """Follows how every stage of every attempt ends, and decides whether user code fails all of them."""

    def __init__(self, *, is_proven: bool, num_live: Callable[[], int], on_found: Callable[[Exception], None]) -> None:
        """`is_proven`: attempts have succeeded before, so nothing is held back and nothing ends the run.
        `num_live`: jobs that have not left, those held back included."""
        self._proven = set(Stage) if is_proven else set()
        self._num_live = num_live
        self._on_certain = on_found
        self._tasks: set[str] = set()
        self._last: _Defect | None = None
        self._num_same = 0
        self._tasks_failed: set[str] = set()
        self._message = ""
        self._logged: set[_Defect] = set()
        self._suspects: dict[JobKey, _Defect] = {}
        """Jobs whose last failure was a defect."""
        self._held_back: dict[JobKey, asyncio.Event] = {}
        self._is_found = False

    def submitted(self, job: Job) -> None:
        self._tasks.add(job.key.task_id)

    def succeeded(self, job: Job, stage: Stage) -> None:
        """An attempt passed a stage."""
        self._suspects.pop(job.key, None)
        if stage not in self._proven:
            self._proven.add(stage)
            self._decide()

    def failed(self, job: Job, stage: Stage, raised: Exception) -> None:
        """A stage of an attempt failed."""
        origin = raised.origin if isinstance(raised, SlipstreamError) else None
        defect = None if origin is None else _Defect(stage, origin.kind, origin.place)
        if origin is not None and defect is not None:
            self._log_once(defect, origin, raised)
        if stage in self._proven:
            return
        if origin is None or defect is None or origin.may_pass:
            self._last, self._num_same = None, 0
            self._suspects.pop(job.key, None)
            return
        if defect != self._last:
            self._last, self._num_same, self._tasks_failed = defect, 0, set()
        self._num_same += 1
        self._tasks_failed.add(job.key.task_id)
        self._message = str(raised)
        self._suspects[job.key] = defect
        self._decide()

    async def hold_back(self, job: Job, *, at_most_s: float) -> None:
        """Wait until it is clear that the failed `job` is to be recorded."""
        defect = self._suspects.get(job.key)
        if defect is None or defect.stage in self._proven:
            return
        self._held_back[job.key] = released = asyncio.Event()
        try:
            self._decide()
            async with asyncio.timeout(at_most_s):
                await released.wait()
        except TimeoutError:
            pass
        finally:
            del self._held_back[job.key]
            self._suspects.pop(job.key, None)

    def left(self, job: Job) -> None:
        """A job has left, or is about to be given out."""
        self._suspects.pop(job.key, None)
        self._decide()

    def release(self) -> None:
        """Let everything go that is held back: the run is out of time."""
        for released in self._held_back.values():
            released.set()

    def _decide(self) -> None:
        if self._is_found:
            return
        for key, released in self._held_back.items():
            if self._suspects[key].stage in self._proven:
                released.set()
        waiting = [key for key, released in self._held_back.items() if not released.is_set()]
        only_held = bool(waiting) and len(waiting) == self._num_live()
        if only_held and len({self._suspects[key] for key in waiting}) > 1:
            self.release()
        elif only_held or self._is_enough():
            self._is_found = True
            self._on_certain(self._error(self._suspects[waiting[0]] if only_held else self._last))

    def _is_enough(self) -> bool:
        if self._last is None or self._last.stage in self._proven or self._num_same < NUM_SAME_FAILURES:
            return False
        return len(self._tasks_failed) >= min(NUM_TASKS, len(self._tasks))

    def _error(self, defect: _Defect | None) -> UserCodeError:
        assert defect is not None
        return UserCodeError(
            f"every attempt so far failed in the same way in the {defect.stage} stage ({self._message}): fix that, "
            "then resume; none of these failures was recorded"
        )

    def _log_once(self, defect: _Defect, origin: Origin, raised: Exception) -> None:
        if defect not in self._logged and origin.trace:
            self._logged.add(defect)
            logger.warning("%s\n%s", raised, origin.trace)

"""Plans how to resume a stopped run from its events: which jobs are done, and where the others continue. Pure.

The turns of an attempt are those journaled under its number: an attempt that continues keeps its number, one that
starts over takes the next. Events of an abandoned attempt after a later one began change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipstream.seams import Event, JobAdmitted, PastAttempt, RolloutDone, RunEnded, TurnTaken
from slipstream.types import JobKey, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    done: frozenset[JobKey]
    unfinished: Mapping[JobKey, PastAttempt]
    """In order of admission."""


@dataclass(slots=True)
class _Progress:
    attempt: int
    turns: dict[int, Turn]
    run_ended: RunEnded | None = None

    def reach(self, attempt: int) -> bool:
        """Move on to `attempt` if it is new; False if it was abandoned, so that its events do not count."""
        if attempt > self.attempt:
            self.attempt, self.turns, self.run_ended = attempt, {}, None
        return attempt == self.attempt and self.run_ended is None


def plan_resume(events: Iterable[Event]) -> ResumePlan:
    """Which jobs are done, and where each other admitted job stopped."""
    done: set[JobKey] = set()
    progress: dict[JobKey, _Progress] = {}
    for event in events:
        match event:
            case JobAdmitted(job=job):
                if job.key not in done:
                    progress.setdefault(job.key, _Progress(0, {}))
            case TurnTaken(key=key, attempt=attempt, turn=turn):
                if key in progress and progress[key].reach(attempt):
                    progress[key].turns[turn.index] = turn
            case RunEnded(key=key, attempt=attempt):
                if key in progress and progress[key].reach(attempt):
                    progress[key].run_ended = event
            case RolloutDone(rollout=rollout):
                done.add(rollout.job.key)
                progress.pop(rollout.job.key, None)
            case _:
                pass
    return ResumePlan(
        done=frozenset(done),
        unfinished={
            key: PastAttempt(
                attempt=past.attempt,
                turns=tuple(past.turns[index] for index in sorted(past.turns)),
                run_ended=past.run_ended,
            )
            for key, past in progress.items()
        },
    )

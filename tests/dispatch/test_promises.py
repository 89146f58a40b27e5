"""The dispatcher's promises under any schedule: faults everywhere, cancellation at any moment, on virtual time.

SLIPSTREAM_PROMISES says how many schedules are tried: 200 by default, 10,000 by `make promises`.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from promise_stage import (
    POLICIES,
    Order,
    Outcome,
    Schedule,
    attend,
    carry_out,
    check,
    new_outcome,
    note_the_end,
    schedules,
)

from slipstream.dispatch.base import DispatchLimits, SchedulingPolicy
from slipstream.dispatch.dispatcher import Dispatcher
from slipstream.dispatch.policies import Batch, Bounded, Pipeline
from slipstream.placement.simulated import Fault, Part, Plan
from slipstream.simulate.clock import VirtualLoop, run_virtual

NUM_SCHEDULES = int(os.environ.get("SLIPSTREAM_PROMISES", "200"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults by the thousand are told to the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(
    max_examples=NUM_SCHEDULES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a schedule is read more easily than it is shrunk quickly
)
@given(schedules())
def test_the_promises_hold_whatever_fails(schedule: Schedule) -> None:
    check(run_virtual(carry_out(schedule)))


# ---------------------------------------------------------------- at every step of the event loop


class SteppedLoop(VirtualLoop):
    """Does something before its n-th step."""

    def __init__(self, at_step: int) -> None:
        super().__init__()
        self.num_steps = 0
        self._at_step = at_step
        self.then: Callable[[], object] = lambda: None

    def _run_once(self) -> None:
        self.num_steps += 1
        if self.num_steps == self._at_step:
            self.then()
        super()._run_once()  # type: ignore[misc]


SMALL = (
    Order(plans=(Plan(init=Part(fault=Fault.RAISE)), Plan(release=Part(seconds=1.0, fault=Fault.CRASH)))),
    Order(plans=(Plan(grade=Part(fault=Fault.EXIT)),), memory_mb=600),
    Order(plans=(Plan(run=Part(seconds=5.0), close=Part(seconds=0.5)),), memory_mb=600, after_s=0.5),
    Order(plans=(Plan(run=Part(fault=Fault.DEAF), grade_weight=0),), weight=0),
)


PIPELINE = Pipeline(init=1, run=2, grade=1)


@pytest.mark.parametrize(
    ("policy", "what"),
    [(Batch(), "the run"), (Bounded(slots=2), "the run"), (PIPELINE, "the run")]
    + [(PIPELINE, f"t{index}") for index in range(len(SMALL))],
)
def test_whatever_is_cancelled_at_any_step_ends_cleanly(policy: SchedulingPolicy[Any], what: str) -> None:
    """For every step of the event loop until the schedule is over without having been disturbed."""
    case = next(case for case in POLICIES if case.name == type(policy).__name__.lower())
    schedule = Schedule(
        orders=SMALL, policy=policy, case=case, limits=DispatchLimits(sandboxes=2, memory_mb=1000), capacity=3
    )
    for step in range(1, 10_000):
        outcome, was_over = disturbed(schedule, what, step)
        check(outcome)
        if was_over:
            assert outcome.is_whole
            return
    raise AssertionError("it never ended")


def disturbed(schedule: Schedule, what: str, step: int) -> tuple[Outcome, bool]:
    """The schedule with something cancelled at a step, and whether everything was over by then."""
    loops: list[SteppedLoop] = []
    was_over = False

    def make() -> SteppedLoop:
        loops.append(SteppedLoop(step))
        return loops[0]

    async def main() -> Outcome:
        outcome = new_outcome(schedule)
        dispatchers: list[Dispatcher] = []
        attending = asyncio.create_task(attend(outcome, dispatchers.append))

        def disturb() -> None:
            nonlocal was_over
            was_over = attending.done()
            if what == "the run":
                attending.cancel()
            elif dispatchers:
                outcome.asked_to_cancel.add(what)
                dispatchers[0].cancel(next(job.key for job in schedule.jobs if job.key.task_id == what))

        loops[0].then = disturb
        await note_the_end(outcome, attending, may_be_left=what == "the run")
        return outcome

    with asyncio.Runner(loop_factory=make) as runner:
        outcome = runner.run(main())
        return outcome, was_over or loops[0].num_steps < step


def test_every_policy_is_among_those_that_are_tried() -> None:
    assert {case.name for case in POLICIES} >= {"batch", "bounded", "pipeline"}

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from slipstream.dispatch.adaptive import AHEAD, KNOWN, NO_LIMIT, Adaptive, AdaptiveMemory, Knee
from slipstream.dispatch.base import DispatchLimits, DispatchView, Stage
from slipstream.types import Job, JobKey


def view(
    *, waiting: int = 100, initialising: int = 0, ready: int = 0, running: int = 0, grading: int = 0, room: int | None
) -> DispatchView:
    return DispatchView(
        waiting=waiting,
        initialising=initialising,
        ready=ready,
        running=running,
        ended=0,
        grading=grading,
        in_flight=0,
        live=0,
        done=0,
        abandoned=0,
        room=room,
    )


def seen(*, init_s: float, run_s: float) -> AdaptiveMemory:
    policy = Adaptive()
    memory = policy.start(DispatchLimits())
    for _ in range(KNOWN):
        memory = policy.observe(Stage.INIT, init_s, 64, memory)
        memory = policy.observe(Stage.RUN, run_s, 64, memory)
    return memory


# ---------------------------------------------------------------- how many side by side


def test_before_anything_is_known_there_is_no_limit() -> None:
    knee = Knee()
    for _ in range(KNOWN - 1):
        knee.note(10.0, 50)
    assert (knee.limit, knee.below(1000)) == (math.inf, NO_LIMIT)
    knee.note(10.0, 50)
    assert knee.limit == pytest.approx(50 + 0.1 * math.sqrt(50))
    assert knee.below(50) == 0
    assert knee.below(45) == 5


def test_a_stage_that_all_wait_for_may_take_longer_before_it_is_cut() -> None:
    limits = {}
    for waiting in (0, 1_000):
        knee = Knee()
        knee.waiting = waiting
        for number in range(400):
            inside = 40 if knee.limit == math.inf else int(knee.limit)
            knee.note(10.0 if number % 3 == 0 else 34.0, inside)
        limits[waiting] = knee.limit
    assert limits[0] < 40 < limits[1_000]


def test_what_waits_for_a_stage_is_what_would_enter_it() -> None:
    policy, memory = Adaptive(), seen(init_s=10.0, run_s=100.0)
    policy.decide(replace(view(waiting=7, running=10, room=50), ended=12), memory)
    assert (memory.init.waiting, memory.grade.waiting) == (7, 12)
    policy.decide(view(waiting=70, running=10, ready=5, room=0), memory)
    assert memory.init.waiting == 0


def test_the_limit_grows_while_durations_stay() -> None:
    knee = Knee()
    limits = []
    for _ in range(100):
        knee.note(10.0, 40 if knee.limit == math.inf else int(knee.limit))
        limits.append(knee.limit)
    grown = limits[KNOWN:]
    assert all(later > earlier for earlier, later in pairwise(grown))
    assert knee.limit > 80


def test_the_limit_shrinks_when_durations_more_than_double() -> None:
    knee = Knee()
    for _ in range(20):
        knee.note(10.0, 40)
    before = knee.limit
    for _ in range(40):
        knee.note(40.0, int(knee.limit))
    assert knee.limit < before / 2


def test_the_limit_never_falls_below_a_few() -> None:
    knee = Knee()
    for _ in range(60):
        knee.note(1.0, 40)
    for _ in range(2000):
        knee.note(1.0 if _ % 4 == 0 else 1000.0, int(knee.limit))
    assert knee.below(0) >= 3


def test_where_few_are_inside_their_times_say_nothing_of_the_limit() -> None:
    knee = Knee()
    for _ in range(20):
        knee.note(10.0, 40)
    before = knee.limit
    for _ in range(20):
        knee.note(100.0, 3)
    assert knee.limit == before


def test_a_stage_that_takes_no_time_has_no_knee() -> None:
    knee = Knee()
    for _ in range(50):
        knee.note(0.0, 10)
    assert knee.limit > 10


# ---------------------------------------------------------------- how far ahead


def test_sandboxes_are_started_for_the_room_and_for_those_that_will_have_ended() -> None:
    memory = seen(init_s=60.0, run_s=300.0)
    # With 50 + 4 agents 54 * 60 / 300 = 10.8 end in 60 s; 1.5 times that, 4 for the room, 2 besides: 22.2.
    assert AHEAD == 1.5
    decision, _ = Adaptive().decide(view(room=4, running=50), memory)
    assert decision.init == 23
    decision, _ = Adaptive().decide(view(room=4, running=50, ready=7, initialising=8), memory)
    assert decision.init == 8
    decision, _ = Adaptive().decide(view(room=4, running=50, ready=30), memory)
    assert decision.init == 0


def test_the_longer_initialisation_takes_the_further_ahead() -> None:
    quick, slow = seen(init_s=1.0, run_s=300.0), seen(init_s=900.0, run_s=300.0)
    now = view(room=0, running=10)
    assert Adaptive().decide(now, quick)[0].init == 3
    assert Adaptive().decide(now, slow)[0].init == 1.5 * 10 * 3 + 2  # each place is taken three times meanwhile


def test_a_stage_that_failed_says_nothing_but_that_it_takes_at_least_so_long() -> None:
    policy, memory = Adaptive(), seen(init_s=60.0, run_s=300.0)
    for _ in range(100):
        memory = policy.observe(Stage.INIT, 1.0, 64, memory, failed=True)
        memory = policy.observe(Stage.RUN, 3_600.0, 64, memory, failed=True)
    assert (memory.init.num_seen, memory.run_s.num) == (KNOWN, KNOWN)
    memory = policy.observe(Stage.INIT, 300.0, 64, memory, failed=True)
    assert memory.init.num_seen == KNOWN + 1


def test_a_few_that_hang_do_not_lower_the_limit() -> None:
    knee = Knee()
    for number in range(400):
        knee.note(900.0 if number % 5 == 0 else 10.0, 40 if knee.limit == math.inf else int(knee.limit))
    assert knee.limit > 40


def test_before_anything_is_known_all_may_start() -> None:
    decision, _ = Adaptive().decide(view(waiting=33, room=1), Adaptive().start(DispatchLimits()))
    assert (decision.init, decision.grade) == (33, NO_LIMIT)


def test_where_the_gate_knows_no_limit_all_that_are_ready_run() -> None:
    decision, _ = Adaptive().decide(view(room=None, ready=12, running=5), Adaptive().start(DispatchLimits()))
    assert decision.run == 12


@pytest.mark.parametrize(("room", "running", "may_run"), [(3, 7, 3), (0, 7, 0), (0, 0, 1), (2, 0, 2)])
def test_agents_begin_as_the_gate_has_room_and_one_may_always(room: int, running: int, may_run: int) -> None:
    decision, _ = Adaptive().decide(view(room=room, running=running, ready=9), Adaptive().start(DispatchLimits()))
    assert decision.run == may_run


def test_gradings_and_initialisations_keep_to_their_own_knees() -> None:
    policy, memory = Adaptive(), AdaptiveMemory()
    for _ in range(KNOWN):
        memory = policy.observe(Stage.GRADE, 10.0, 20, memory)
        memory = policy.observe(Stage.INIT, 10.0, 10, memory)
    decision, _ = policy.decide(view(room=None, initialising=7, grading=15), memory)
    assert (decision.init, decision.grade) == (3, 5)


# ---------------------------------------------------------------- who goes first


def test_tasks_that_took_long_go_first() -> None:
    job = Job(key=JobKey(phase="train", step=0, task_id="t", sample=0), seed=0)
    policy = Adaptive()
    ranks = {name: policy.rank(job, s, 100.0) for name, s in (("long", 300.0), ("new", None), ("short", 20.0))}
    assert sorted(ranks, key=lambda name: ranks[name]) == ["long", "new", "short"]

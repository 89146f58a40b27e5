"""How a stopped run is resumed, from hand-written events."""

from __future__ import annotations

from record_samples import ending, job, job_events, key, rollout, turn

from slipstream.record import ResumePlan, plan_resume
from slipstream.seams import Event, JobAdmitted, PastAttempt, RolloutDone, RunEnded, TurnTaken
from slipstream.types import Artifact


def taken(sample: int, attempt: int, index: int, *, token: int = 7) -> TurnTaken:
    return TurnTaken(key=key(sample), attempt=attempt, turn=turn(index, token=token))


def ended(sample: int, attempt: int) -> RunEnded:
    return RunEnded(key=key(sample), attempt=attempt, ending=ending(), artifact=Artifact(answer="42"))


def admitted(sample: int) -> JobAdmitted:
    return JobAdmitted(job=job(sample))


def past(events: list[Event]) -> PastAttempt:
    return plan_resume([admitted(0), *events]).unfinished[key(0)]


def test_nothing_happened() -> None:
    assert plan_resume([]) == ResumePlan(done=frozenset(), unfinished={})


def test_finished_jobs_are_done_and_nothing_else() -> None:
    assert plan_resume([*job_events(0), *job_events(1)]) == ResumePlan(done=frozenset({key(0), key(1)}), unfinished={})


def test_an_admitted_job_without_turns_has_no_attempt() -> None:
    assert past([]) == PastAttempt(attempt=0, turns=(), run_ended=None)


def test_the_turns_of_an_attempt_are_kept() -> None:
    assert past([taken(0, 1, 0), taken(0, 1, 1)]) == PastAttempt(attempt=1, turns=(turn(0), turn(1)), run_ended=None)


def test_turns_are_by_index_whatever_their_order() -> None:
    assert past([taken(0, 1, 1), taken(0, 1, 0)]).turns == (turn(0), turn(1))


def test_the_last_attempt_counts_alone() -> None:
    events: list[Event] = [taken(0, 1, 0, token=1), taken(0, 1, 1, token=1), taken(0, 2, 0, token=2)]
    assert past(events) == PastAttempt(attempt=2, turns=(turn(0, token=2),), run_ended=None)


def test_an_abandoned_attempt_that_speaks_late_changes_nothing() -> None:
    events: list[Event] = [taken(0, 2, 0, token=2), taken(0, 1, 0, token=1), ended(0, 1)]
    assert past(events) == PastAttempt(attempt=2, turns=(turn(0, token=2),), run_ended=None)


def test_after_the_run_only_grading_is_left() -> None:
    assert past([taken(0, 1, 0), ended(0, 1)]) == PastAttempt(attempt=1, turns=(turn(0),), run_ended=ended(0, 1))


def test_a_turn_after_the_end_of_the_run_is_not_part_of_it() -> None:
    assert past([taken(0, 1, 0), ended(0, 1), taken(0, 1, 1)]).turns == (turn(0),)


def test_a_new_attempt_forgets_that_the_last_one_ended() -> None:
    events: list[Event] = [taken(0, 1, 0), ended(0, 1), taken(0, 2, 0)]
    assert past(events) == PastAttempt(attempt=2, turns=(turn(0),), run_ended=None)


def test_a_second_admission_keeps_what_was_reached() -> None:
    assert past([taken(0, 1, 0), admitted(0), taken(0, 1, 1)]).turns == (turn(0), turn(1))


def test_late_words_on_a_done_job_do_not_reopen_it() -> None:
    plan = plan_resume([*job_events(0), admitted(0), taken(0, 2, 0), ended(0, 2)])
    assert plan == ResumePlan(done=frozenset({key(0)}), unfinished={})


def test_unfinished_jobs_stand_in_the_order_of_admission() -> None:
    plan = plan_resume([admitted(2), admitted(0), admitted(1), taken(0, 1, 0), RolloutDone(rollout=rollout(0))])
    assert list(plan.unfinished) == [key(2), key(1)]
    assert plan.done == {key(0)}


def test_an_attempt_that_went_on_in_another_session_keeps_its_turns_and_its_number() -> None:
    session: list[Event] = [taken(0, 2, 0), taken(0, 2, 1)]
    assert past([*session, admitted(0), taken(0, 2, 2)]) == PastAttempt(attempt=2, turns=(turn(0), turn(1), turn(2)))


def test_one_that_could_not_go_on_gives_way_to_the_next_as_soon_as_that_has_a_turn() -> None:
    events: list[Event] = [taken(0, 1, 0), taken(0, 1, 1), admitted(0)]
    assert past(events).attempt == 1
    assert past([*events, taken(0, 2, 0)]) == PastAttempt(attempt=2, turns=(turn(0),))


def test_a_run_that_ended_without_a_turn_has_only_its_grading_left() -> None:
    assert past([ended(0, 1)]) == PastAttempt(attempt=1, turns=(), run_ended=ended(0, 1))

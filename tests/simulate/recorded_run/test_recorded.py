import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from run_stage import EVAL, TRAIN, jobs, ran, store, workload

from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.record.schema import database_path
from slipstream.seams import LearnerWork, LearnerWorked
from slipstream.simulate.recorded_run.predict import predict
from slipstream.simulate.recorded_run.recorded import TimeKind, read_recorded, recorded
from slipstream.types import Ending, EndReason, Job, JobKey, Rollout, Span, SpanKind, Verdict

KEY = JobKey(phase="eval", step=0, task_id="t", sample=0)


def span(kind: SpanKind, start_s: float, end_s: float, **counts: int) -> Span:
    return Span(kind=kind, start_s=start_s, end_s=end_s, counts=counts)


def rollout(*spans: Span, reason: EndReason = EndReason.FINISHED, key: JobKey = KEY) -> Rollout:
    verdict = Verdict(reward=1.0) if reason.trust.graded else None
    return Rollout(job=Job(key=key, seed=0), attempt=1, ending=Ending(reason=reason), verdict=verdict, spans=spans)


STRAIGHT = rollout(
    span(SpanKind.WAIT_INIT, 0, 1),
    span(SpanKind.INIT, 1, 3),
    span(SpanKind.RUN, 3, 20),
    span(SpanKind.MODEL, 4, 6, new=100, kept=0, cached=30, sampled=10),
    span(SpanKind.TOOL, 7, 9),
    span(SpanKind.WAIT_TURN, 9, 12),
    span(SpanKind.MODEL, 13, 15, new=20, kept=110, cached=90, sampled=5),
    span(SpanKind.RELEASE, 20, 21),
    span(SpanKind.GRADE, 22, 25, sandboxes=1),
)


def test_a_rollout_is_taken_apart_into_calls_and_pieces() -> None:
    (rollout,) = recorded([STRAIGHT], name="r").rollouts
    assert [(call.context, call.kept, call.cached, call.fresh, call.sampled) for call in rollout.calls] == [
        (100, 0, 30, 70, 10),
        (130, 110, 90, 40, 5),
    ]
    assert [(piece.kind, piece.seconds) for piece in rollout.init + rollout.start] == [
        (TimeKind.INIT, 2),
        (TimeKind.OWN, 1),
    ]
    assert [[(piece.kind, piece.seconds) for piece in pieces] for pieces in rollout.between] == [
        [(TimeKind.OWN, 1), (TimeKind.TOOL, 2), (TimeKind.OWN, 1)],
        [(TimeKind.OWN, 5)],
    ], "the wait for a turn is nobody's work"
    assert [(piece.kind, piece.seconds) for piece in rollout.release + rollout.grade] == [
        (TimeKind.RELEASE, 1),
        (TimeKind.GRADE, 3),
    ]


def test_a_run_is_as_long_as_something_of_it_was_under_way() -> None:
    later = replace(STRAIGHT, job=Job(key=replace(KEY, sample=1), seed=0))
    moved = [replace(one, start_s=one.start_s + 100, end_s=one.end_s + 100) for one in later.spans]
    found = recorded([STRAIGHT, replace(later, spans=tuple(moved))], name="r")
    assert found.makespan_s == 50, "the pause before the run was resumed is no part of it"
    assert found.again == 2 * 20


def test_what_a_replay_does_otherwise_is_counted() -> None:
    cancelled = rollout(*STRAIGHT.spans[:4], reason=EndReason.CANCELLED, key=replace(KEY, sample=1))
    untrusted = rollout(*STRAIGHT.spans[:7], reason=EndReason.DEADLINE, key=replace(KEY, sample=2))
    tried = tuple(replace(one, attempt=2) for one in STRAIGHT.spans)
    twice = replace(
        STRAIGHT, job=Job(key=replace(KEY, sample=3), seed=0), attempt=2, spans=(*STRAIGHT.spans[:3], *tried)
    )
    resumed = rollout(*STRAIGHT.spans[-2:], key=replace(KEY, sample=4))
    found = recorded([STRAIGHT, cancelled, untrusted, twice, resumed], name="r").left_out
    assert (found.cancelled, found.untrusted, found.attempts, found.overlapping) == (1, 1, 1, 0)
    assert found.without_calls == 1


def test_the_learners_time_is_what_lies_between_two_steps() -> None:
    settings = replace(TRAIN, staleness=0)
    of = workload(jobs(num_tasks=3, phase="train", steps=3), staleness=0, update_s=(2.0, 5.0, 1.0))
    found = recorded(ran(of, settings).rollouts, name="r")
    assert found.update_s == pytest.approx((2.0, 5.0, 0.0), abs=1e-6)


def trained(step: int, at_s: float) -> Rollout:
    """A rollout of a step, of 25 s."""
    spans = (replace(one, start_s=one.start_s + at_s, end_s=one.end_s + at_s) for one in STRAIGHT.spans)
    return rollout(*spans, key=JobKey(phase="train", step=step, task_id="t", sample=0))


def worked(step: int, start_s: float, end_s: float, work: LearnerWork = LearnerWork.UPDATE) -> LearnerWorked:
    return LearnerWorked(step=step, work=work, start_s=start_s, end_s=end_s)


def test_a_resumed_training_run_has_no_pause_and_no_update_made_again(tmp_path: Path) -> None:
    rollouts = [trained(0, 0.0), trained(1, 3_620.0)]
    work = [
        worked(0, 25.0, 30.0),
        worked(1, 30.0, 31.0, LearnerWork.CHECKPOINT),
        # An hour later the update is made again, since the checkpoint was torn.
        worked(0, 3_610.0, 3_616.0),
        worked(1, 3_616.0, 3_618.0, LearnerWork.CHECKPOINT),
        worked(1, 3_645.0, 3_650.0),
    ]
    found = read_recorded(store(tmp_path / "r", rollouts, TRAIN, work=work))
    assert found.update_s == pytest.approx((8.0, 5.0))
    assert found.makespan_s == pytest.approx(25.0 + 8.0 + 25.0), "what the learner does after the last rollout is not"


def test_where_the_learners_work_is_not_on_record_it_cannot_be_told_from_a_pause() -> None:
    assert recorded([trained(0, 0.0), trained(1, 100.0)], name="r").makespan_s == 125


# ---------------------------------------------------------------- runs that cannot be replayed


def refusal(folder: Path, *rollouts: Rollout, open_jobs: tuple[Rollout, ...] = ()) -> str:
    with pytest.raises(ConfigError) as raised:
        predict(store(folder, rollouts, EVAL, open_jobs=open_jobs), [])
    return str(raised.value)


def test_a_run_without_rollouts_is_refused(tmp_path: Path) -> None:
    assert "the run r has no rollouts" in refusal(tmp_path / "r")


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    other = replace(STRAIGHT, job=Job(key=replace(KEY, sample=1), seed=0))
    told = refusal(tmp_path / "r", STRAIGHT, open_jobs=(other,))
    assert "unfinished, 1 of its 2 jobs have no rollout" in told and "--resume" in told


def test_a_chat_run_without_token_counts_is_refused(tmp_path: Path) -> None:
    silent = [replace(one, counts={"concurrent": 1}) for one in STRAIGHT.spans]
    told = refusal(tmp_path / "r", rollout(*silent))
    assert "2 of the 2 model calls" in told and "model.kind=tokens" in told


def test_a_run_that_never_called_a_model_is_refused(tmp_path: Path) -> None:
    assert "no rollout that called a model" in refusal(tmp_path / "r", rollout(*STRAIGHT.spans[:2]))


def test_a_run_without_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no recorded settings"):
        predict(store(tmp_path / "r", [STRAIGHT], None), [])


def test_a_run_of_an_old_schema_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "r", [STRAIGHT], EVAL)
    with sqlite3.connect(database_path(tmp_path / "r")) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    connection.close()
    with pytest.raises(ConfigError, match="schema version 1"):
        RunStore.read(tmp_path / "r")


def test_reading_a_store_and_the_rollouts_themselves_gives_the_same(tmp_path: Path) -> None:
    traced = ran(workload(jobs(num_tasks=2)), EVAL)
    found = read_recorded(store(tmp_path / "r", traced.rollouts, EVAL))
    direct = recorded(traced.rollouts, name="r")
    assert found.makespan_s == pytest.approx(direct.makespan_s)
    assert len(found.calls) == len(direct.calls) > 10
    assert found.makespan_s == pytest.approx(traced.outcome.makespan_s)

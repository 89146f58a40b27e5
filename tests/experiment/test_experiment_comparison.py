"""Figures of reports: success, what it costs, paired differences."""

import pytest
from report_maker import evaluation, report

from slipstream.experiment.comparison import difference, seconds_to, study_of, success, success_interval

BEFORE: dict[str, list[float | None]] = {
    "one-1@easy": [1.0, 0.0],
    "one-2@hard": [0.0, 0.0],
    "two-1@easy": [0.0, None, 0.0],
}
AFTER: dict[str, list[float | None]] = {"one-1@easy": [1.0, 1.0], "one-2@hard": [0.0, 1.0], "two-1@easy": [0.0, 0.0]}


def test_success_is_over_tasks_and_what_has_no_verdict_is_no_failure() -> None:
    (measured,) = study_of("x", report(evaluation(BEFORE, version=0))).evaluations
    found = success(measured)
    assert found is not None
    assert (found.tasks, found.packages, found.rollouts, found.with_verdict, found.k) == (3, 2, 7, 6, 2)
    assert found.pass_1 == pytest.approx(0.5 / 3) and found.pass_k == pytest.approx(1 / 3)
    assert [found.never_solved, found.mixed] == pytest.approx([2 / 3, 1 / 3])
    assert (found.turns, found.turns_per_success, found.tokens_per_success) == (3.0, 21.0, 350.0)
    assert found.calls == {"bash": 2.0, "search": 1.0} and found.failed_calls == {"bash": 0.5, "search": 0.0}
    low, high = success_interval(measured)
    assert low == 0.0 and found.pass_1 < high < 0.5, "the task of package two may be drawn, and is never solved"
    easy = success(measured, "easy")
    assert easy is not None and easy.pass_1 == 0.25 and measured.levels == ["easy", "hard", "all"]


def test_differences_are_paired_by_task_and_seeds_are_averaged() -> None:
    study = study_of("x", report(evaluation(BEFORE, version=0), evaluation(AFTER, version=4)))
    before, after = study.evaluations
    found = difference([before], [after])
    assert found is not None
    assert (found.tasks, found.packages, found.better, found.worse) == (3, 2, 2, 0)
    assert found.more == pytest.approx(1 / 3) == found.after - found.before
    assert found.interval == (0.0, 0.5), "package two has no gain, and both tasks of one have a half"

    worse = study_of("y", report(evaluation({**BEFORE, "three-1@easy": [1.0]}, version=4))).evaluations[0]
    both = difference([before, before], [after, worse])
    assert both is not None and both.tasks == 3 and both.more == pytest.approx(1 / 6)
    assert (
        difference([before], [study_of("z", report(evaluation({"new-1@easy": [1.0]}, version=4))).evaluations[0]])
        is None
    )


def test_gpu_seconds_count_the_start_and_the_steps() -> None:
    study = study_of("x", report(evaluation(BEFORE, version=0), evaluation(AFTER, version=3)))
    assert [study.gpu_seconds(version) for version in (0, 3, 4)] == [25.0, 55.0, 65.0]
    assert seconds_to(study, "held_out", 0.1) == 25.0
    assert seconds_to(study, "held_out", 0.4) == 55.0
    assert seconds_to(study, "held_out", 0.6) is None

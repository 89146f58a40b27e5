"""Where the time went, from spans written by hand and from any at all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.telemetry.utilisation import Resource, TimeLine, time_lines, utilisation
from slipstream.types import Ending, EndReason, Failure, Job, JobKey, Rollout, Span, SpanKind, Verdict


def span(kind: SpanKind, start_s: float, end_s: float, *, attempt: int = 1, **counts: int) -> Span:
    return Span(kind=kind, start_s=start_s, end_s=end_s, attempt=attempt, counts=counts)


def rollout(*spans: Span, sample: int = 0, weight: int = 1, failures: tuple[Failure, ...] = ()) -> Rollout:
    return Rollout(
        job=Job(key=JobKey(phase="eval", step=0, task_id="t", sample=sample), seed=0, weight=weight),
        attempt=max((each.attempt for each in spans), default=1),
        ending=Ending(reason=EndReason.FINISHED),
        verdict=Verdict(reward=1.0),
        spans=spans,
        failures=failures,
    )


ONE = rollout(
    span(SpanKind.WAIT_INIT, 0, 2),
    span(SpanKind.INIT, 2, 4),
    span(SpanKind.WAIT_RUN, 4, 5),
    span(SpanKind.RUN, 5, 15),
    span(SpanKind.MODEL, 5, 9, new=30, kept=10, cached=20, sampled=8, concurrent=2),
    span(SpanKind.TOOL, 9, 10),
    span(SpanKind.WAIT_TURN, 10, 12),
    span(SpanKind.MODEL, 12, 14, new=10, kept=50, cached=55, sampled=4, concurrent=1),
    span(SpanKind.RELEASE, 15, 16),
    span(SpanKind.WAIT_GRADE, 16, 18),
    span(SpanKind.GRADE, 18, 22, sandboxes=1),
)
OTHER = rollout(
    span(SpanKind.INIT, 4, 6), span(SpanKind.RUN, 6, 12), span(SpanKind.RELEASE, 12, 12), sample=1, weight=3
)


def test_the_seconds_of_each_stage_and_of_what_is_in_it() -> None:
    uses = utilisation([ONE]).uses
    assert {name.value: uses[name].total for name in Resource if name is not Resource.JOBS} == {
        "wait_init": 2, "init": 2, "wait_run": 1, "run": 10, "wait_turn": 2, "model": 6, "tool": 1, "own": 1,
        "release": 1, "wait_grade": 2, "grade": 4, "sandboxes": 18, "prefill_tokens": 25, "sampled_tokens": 12,
    }  # fmt: skip


def test_levels_add_up_over_rollouts() -> None:
    lines = time_lines([ONE, OTHER])
    assert (list(lines[Resource.RUN].times_s), list(lines[Resource.RUN].levels)) == ([5, 6, 12, 15], [1, 2, 1, 0])
    sandboxes = lines[Resource.SANDBOXES]
    assert list(zip(sandboxes.times_s, sandboxes.levels, strict=True)) == [
        (2, 1), (4, 4), (12, 1), (16, 0), (18, 1), (22, 0),
    ]  # fmt: skip


def test_a_model_call_inside_a_tool_is_not_counted_twice_in_what_is_left_of_a_run() -> None:
    asked = rollout(span(SpanKind.RUN, 0, 10), span(SpanKind.TOOL, 1, 8), span(SpanKind.MODEL, 2, 3))
    own = time_lines([asked])[Resource.OWN]
    assert (list(own.times_s), list(own.levels)) == ([0, 1, 8, 10], [1, 0, 1, 0])


def test_spans_that_only_touch_are_never_at_once() -> None:
    lines = time_lines([rollout(span(SpanKind.TOOL, 0, 5), span(SpanKind.TOOL, 5, 9))])
    assert (list(lines[Resource.TOOL].times_s), list(lines[Resource.TOOL].levels)) == ([0, 5, 9], [1, 1, 0])


def test_mean_peak_and_busy_share_are_over_the_time_in_which_anything_was_under_way() -> None:
    found = utilisation([ONE, OTHER])
    assert found.seconds == 20
    run = found.uses[Resource.RUN]
    assert (run.mean, run.peak, run.busy_share) == (16 / 20, 2, 10 / 20)


def test_the_pause_before_a_run_was_resumed_is_not_charged() -> None:
    later = rollout(span(SpanKind.INIT, 1000, 1001), span(SpanKind.RUN, 1001, 1003), sample=1)
    assert utilisation([rollout(span(SpanKind.RUN, 0, 5)), later]).seconds == 8


def test_tokens_are_counted_and_what_was_cached_is_said_only_by_engines_that_say_it() -> None:
    found = utilisation([ONE])
    assert (found.num_model_calls, found.num_prompt_tokens, found.num_cached_tokens) == (2, 100, 75)
    assert (found.num_sampled_tokens, found.uses[Resource.SAMPLED_TOKENS].peak) == (12, 2.0)
    chat = utilisation([rollout(span(SpanKind.RUN, 0, 2), span(SpanKind.MODEL, 0, 2, prompt=7, sampled=3))])
    assert (chat.num_prompt_tokens, chat.num_cached_tokens) == (7, None)


def test_attempts_and_failed_stages_are_counted() -> None:
    failure = Failure(attempt=1, stage="init", error="SandboxError", message="no room")
    tried = rollout(span(SpanKind.INIT, 0, 1, failed=1), span(SpanKind.INIT, 1, 2, attempt=2), failures=(failure,))
    found = utilisation([tried])
    assert (found.num_rollouts, found.num_attempts, found.num_failed_stages) == (1, 2, 1)
    assert found.uses[Resource.SANDBOXES].total == 2


def test_an_attempt_that_was_resumed_after_its_initialisation_counts_and_one_that_never_began_does_not() -> None:
    resumed = rollout(span(SpanKind.GRADE, 8, 9))
    waited = rollout(span(SpanKind.WAIT_INIT, 0, 9), sample=1)
    assert utilisation([resumed, waited]).num_attempts == 1


def test_a_run_of_nothing_has_figures_too() -> None:
    found = utilisation([rollout()])
    assert (found.seconds, found.num_rollouts, found.uses[Resource.RUN].mean) == (0, 1, 0)


def test_a_line_of_many_steps_is_resampled_to_the_same_total() -> None:
    line = TimeLine(times_s=[float(place) for place in range(11)], levels=[1.0, 3.0] * 5 + [0.0])
    shorter = line.resampled(4)
    assert list(shorter.times_s) == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert shorter.total == pytest.approx(line.total)
    assert list(shorter.levels) == pytest.approx([1.8, 1.8, 2.2, 2.2, 0.0])
    assert line.resampled(11) is line


stretches = st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.lists(st.tuples(st.sampled_from(SpanKind), stretches), max_size=6), max_size=5), st.randoms())
def test_the_order_of_rollouts_and_spans_does_not_matter_and_nothing_is_lost(
    lives: list[list[tuple[SpanKind, tuple[int, int]]]], chance: random.Random
) -> None:
    made = [
        rollout(*(span(kind, *stretch, sampled=7) for kind, stretch in life), sample=sample)
        for sample, life in enumerate(lives)
    ]
    shuffled = [rollout(*chance.sample(each.spans, len(each.spans)), sample=place) for place, each in enumerate(made)]
    chance.shuffle(shuffled)
    found = utilisation(made)
    assert utilisation(shuffled) == found
    for kind in SpanKind:
        told = sum(each.seconds for one in made for each in one.spans if each.kind is kind)
        assert found.uses[Resource(kind.value)].total == pytest.approx(told)
    assert all(0 <= use.busy_share <= 1 for use in found.uses.values())

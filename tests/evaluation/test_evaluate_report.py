"""The figures of a run, from rollouts made by hand."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slipstream.batch.intervals import bootstrap_interval
from slipstream.evaluation import pass_at_k, report
from slipstream.settings import EvalConfig, ModelConfig, PricesConfig, TasksConfig
from slipstream.types import (
    Ending,
    EndReason,
    Failure,
    Job,
    JobKey,
    Rollout,
    Span,
    SpanKind,
    Turn,
    Verdict,
)


def config(samples: int, solved_at: float = 1.0) -> EvalConfig:
    return EvalConfig(name="x", tasks=TasksConfig(), samples=samples, solved_at=solved_at)


def rollout(
    task_id: str,
    sample: int,
    reward: float | None,
    *,
    reason: EndReason = EndReason.FINISHED,
    num_turns: int = 1,
    spans: Sequence[Span] = (),
    failures: Sequence[Failure] = (),
) -> Rollout:
    """Without a reward it is one that the infrastructure ended."""
    return Rollout(
        job=Job(key=JobKey(phase="eval", step=0, task_id=task_id, sample=sample), seed=0),
        attempt=1,
        ending=Ending(reason=reason if reward is not None else EndReason.INFRASTRUCTURE),
        verdict=None if reward is None else Verdict(reward=reward),
        turns=tuple(Turn(index=index) for index in range(num_turns)),
        spans=tuple(spans),
        failures=tuple(failures),
    )


def test_the_mean_is_over_tasks_and_the_untrusted_are_not_0() -> None:
    found = report(
        [
            rollout("a", 0, 1.0),
            rollout("a", 1, None),
            rollout("b", 0, 0.0),
            rollout("b", 1, 0.5),
            rollout("c", 0, None),
        ],
        config(2),
    )
    # a: 1 (one verdict), b: 0.25, c: none; over rollouts it would be 0.5, with zeros for the untrusted 0.3.
    assert found.mean_reward == pytest.approx((1.0 + 0.25) / 2)
    assert (found.num_tasks, found.num_rollouts, found.num_trusted) == (3, 5, 3)


def test_with_no_verdict_at_all_there_is_no_mean() -> None:
    found = report([rollout("a", 0, None)], config(1))
    assert (found.mean_reward, found.reward_interval, found.pass_at_k) == (None, None, {})
    assert (found.num_rollouts, found.num_trusted) == (1, 0)


def test_no_rollouts_are_no_figures_and_no_error() -> None:
    found = report([], config(1))
    assert (found.num_tasks, found.num_rollouts, found.mean_reward, found.num_turns) == (0, 0, None, 0.0)


@pytest.mark.parametrize("num_samples", range(1, 7))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_solved_one(num_samples: int) -> None:
    for num_solved in range(num_samples + 1):
        solved = [index < num_solved for index in range(num_samples)]
        for k in range(1, num_samples + 1):
            draws = [any(draw) for draw in itertools.combinations(solved, k)]
            assert pass_at_k(num_samples, num_solved, k) == pytest.approx(sum(draws) / len(draws))


def test_pass_at_k_of_a_run_is_the_mean_over_tasks_that_have_k() -> None:
    rollouts = [rollout("a", sample, float(sample == 0)) for sample in range(4)]
    rollouts += [rollout("b", sample, 1.0 if sample < 2 else None) for sample in range(4)]
    found = report(rollouts, config(4))
    # a: 1 of 4 solved; b: 2 of 2, so b says nothing about pass@4.
    assert found.pass_at_k == pytest.approx({1: (0.25 + 1.0) / 2, 2: (0.5 + 1.0) / 2, 4: 1.0})


@pytest.mark.parametrize(("samples", "ks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_k_goes_in_powers_of_two_up_to_the_number_of_samples(samples: int, ks: list[int]) -> None:
    found = report([rollout("a", sample, 1.0) for sample in range(samples)], config(samples))
    assert list(found.pass_at_k) == ks


def test_what_counts_as_solved_is_a_setting() -> None:
    rollouts = [rollout("a", 0, 0.6), rollout("a", 1, 0.4)]
    assert report(rollouts, config(2)).pass_at_k[1] == 0.0
    assert report(rollouts, config(2, solved_at=0.6)).pass_at_k[1] == 0.5


def test_the_interval_is_the_same_each_time_and_holds_the_mean() -> None:
    means = [math.sqrt(index) / 5 for index in range(25)]
    low, high = bootstrap_interval(means)
    assert (low, high) == bootstrap_interval(means)
    assert min(means) < low < sum(means) / len(means) < high < max(means)


def test_the_interval_narrows_with_more_tasks_and_widens_with_more_coverage() -> None:
    def width(means: list[float], coverage: float = 0.95) -> float:
        low, high = bootstrap_interval(means, coverage=coverage)
        return high - low

    assert width([0.0, 1.0] * 50) < width([0.0, 1.0] * 5)
    assert width([0.0, 1.0] * 5, coverage=0.5) < width([0.0, 1.0] * 5)


def test_the_interval_of_equal_tasks_is_a_point() -> None:
    assert bootstrap_interval([0.5] * 3) == (0.5, 0.5)
    assert bootstrap_interval([1.0]) == (1.0, 1.0)


def test_endings_are_counted_the_most_common_first() -> None:
    found = report(
        [
            rollout("a", 0, 0.0, reason=EndReason.TURN_LIMIT),
            rollout("a", 1, 1.0),
            rollout("a", 2, None),
            rollout("a", 3, 1.0),
        ],
        config(4),
    )
    assert next(iter(found.endings.items())) == ("finished", 2)
    assert found.endings == {"finished": 2, "turn_limit": 1, "infrastructure": 1}


def test_stage_times_are_means_over_all_rollouts_with_retries_summed() -> None:
    spans = [
        Span(kind=SpanKind.WAIT_INIT, start_s=0.0, end_s=1.0),
        Span(kind=SpanKind.INIT, start_s=1.0, end_s=2.0),
        Span(kind=SpanKind.INIT, start_s=2.0, end_s=4.0, attempt=2),
        Span(kind=SpanKind.RUN, start_s=4.0, end_s=10.0, attempt=2),
        Span(kind=SpanKind.MODEL, start_s=4.0, end_s=9.0, attempt=2),
    ]
    found = report([rollout("a", 0, 1.0, spans=spans, num_turns=4), rollout("a", 1, None, num_turns=1)], config(2))
    assert found.stage_s == {
        "wait_init": 0.5,
        "init": 1.5,
        "wait_run": 0.0,
        "run": 3.0,
        "release": 0.0,
        "wait_grade": 0.0,
        "grade": 0.0,
    }
    assert found.num_turns == 2.5


def test_failures_are_counted_by_stage_and_error_mended_ones_too() -> None:
    lost = Failure(attempt=1, stage="run", error="SandboxError", message="gone")
    slow = Failure(attempt=2, stage="grade", error="StageDeadline", message="60 s")
    found = report([rollout("a", 0, 1.0, failures=[lost]), rollout("a", 1, None, failures=[lost, slow])], config(2))
    assert found.failures == {"run: SandboxError": 2, "grade: StageDeadline": 1}
    assert found.failure_messages == {"run: SandboxError": "gone", "grade: StageDeadline": "60 s"}


def test_pass_at_1_has_an_interval_over_seeds() -> None:
    rewards = {"a": (1.0, 1.0, 0.0), "b": (0.0, 1.0, None)}
    found = report(
        [rollout(task, sample, reward) for task, values in rewards.items() for sample, reward in enumerate(values)],
        config(3),
    )
    assert found.pass_1_by_seed == (0.5, 1.0, 0.0)
    half = 4.303 * 0.5 / math.sqrt(3)
    assert found.pass_1_interval == pytest.approx((0.5 - half, 0.5 + half))
    assert report([rollout("a", 0, 1.0)], config(1)).pass_1_interval is None


def test_tokens_and_cost_are_means_of_a_rollout_with_repeated_calls() -> None:
    def called(attempt: int, **counts: int) -> Span:
        return Span(kind=SpanKind.MODEL, start_s=0.0, end_s=1.0, attempt=attempt, counts=counts)

    rollouts = [
        rollout("a", 0, 1.0, spans=[called(1, prompt=1_000), called(2, prompt=3_000, cached=2_000, sampled=100)]),
        rollout("b", 0, 0.0),
    ]
    free = report(rollouts, config(1))
    assert free.tokens == {"prompt": 2_000.0, "cached": 1_000.0, "sampled": 50.0} and free.cost is None
    prices = PricesConfig(prompt=2.0, cached=0.5, sampled=10.0)
    priced = replace(config(1), model=ModelConfig(prices=prices))
    found = report(rollouts, priced)
    assert found.cost == pytest.approx((1_000 * 2.0 + 1_000 * 0.5 + 50 * 10.0) / 1e6)
    assert found.metrics()["cost/total"] == pytest.approx(2 * 0.003)

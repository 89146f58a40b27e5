"""What the metrics say of a batch written by hand, that they are always finite, and that docs/metrics.md names them."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from batch_trees import group, groups, rollout, steady, turn
from hypothesis import given
from hypothesis import strategies as st

from slipstream.batch.advantages import ESTIMATORS, leave_one_out
from slipstream.batch.metrics import MAX_TOOLS_NAMED
from slipstream.batch.rows import make_batch
from slipstream.types import (
    CallProblem,
    EndReason,
    Failure,
    ForkReason,
    Group,
    Message,
    Role,
    Rollout,
    Span,
    SpanKind,
    StopReason,
    ToolCall,
)

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def metrics(
    *members: Rollout, max_tokens: int | None = None, solved_at: float = 1.0, version: int | None = None
) -> Mapping[str, float]:
    made = make_batch([group(*members)], leave_one_out, max_tokens=max_tokens, solved_at=solved_at, version=version)
    return made.metrics


def family(found: Mapping[str, float], name: str) -> dict[str, float]:
    return {key.removeprefix(f"{name}/"): value for key, value in found.items() if key.startswith(f"{name}/")}


def reply(*calls: ToolCall) -> Message:
    return Message(role=Role.ASSISTANT, calls=calls)


def call(name: str, problem: CallProblem | None = None) -> ToolCall:
    return ToolCall(id="", name=name, problem=problem)


def tool_span(name: str, seconds: float, *, error: int = 0, attempt: int = 1) -> Span:
    counts = {"error": error, "chars_cut": 0}
    return Span(kind=SpanKind.TOOL, start_s=1.0, end_s=1.0 + seconds, name=name, counts=counts, attempt=attempt)


def plain(sample: int, reward: float = 1.0, reason: EndReason = EndReason.FINISHED, task: str = "t") -> Rollout:
    return rollout(turn(0, [1], [10, 11]), sample=sample, reward=reward, reason=reason, task=task)


def test_groups_are_counted_by_what_they_can_teach() -> None:
    found = make_batch(
        [
            group(plain(0, 1.0), plain(1, 1.0)),
            group(plain(0, 0.0), plain(1, 0.0)),
            group(plain(0, 0.0), plain(1, 1.0)),
            group(plain(0, 0.5), plain(1, 0.0)),
            group(plain(0, 1.0), plain(1, reason=EndReason.INFRASTRUCTURE)),
        ],
        leave_one_out,
    ).metrics
    assert family(found, "groups") == {
        "num": 5,
        "replaced": 0,
        "dropped": 1,
        "without_signal": 2,
        "all_solved": 1,
        "none_solved": 2,
    }


def test_rollouts_are_counted_by_trust_and_by_ending() -> None:
    failure = Failure(attempt=1, stage="init", error="SandboxError", message="no room")
    found = metrics(
        plain(0, 1.0),
        rollout(
            turn(0, [1], [10]), turn(1, [2], [11, 12, 13], parent=0, kept=2), sample=1, reward=0.5, failures=(failure,)
        ),
        plain(2, 0.0, EndReason.TURN_LIMIT),
        rollout(sample=3, reason=EndReason.INFRASTRUCTURE, failures=(failure, failure)),
        plain(4, reason=EndReason.CANCELLED),
    )
    assert family(found, "trust") == {"trusted": 2, "masked": 1, "untrusted": 1, "absent": 1}
    assert family(found, "ended") == {
        "finished": 2,
        "finished/turns": 1.5,
        "finished/tokens": 3,
        "finished/reward": 0.75,
        "turn_limit": 1,
        "turn_limit/turns": 1,
        "turn_limit/tokens": 2,
        "turn_limit/reward": 0,
        "infrastructure": 1,
        "infrastructure/turns": 0,
        "infrastructure/tokens": 0,
        "cancelled": 1,
        "cancelled/turns": 1,
        "cancelled/tokens": 2,
    }
    assert (found["rollouts/num"], found["rollouts/failures"]) == (5, 3)


def test_rewards_are_those_of_the_graded() -> None:
    found = metrics(
        rollout(turn(0, [1], [10]), sample=0, reward=1.0, components={"tests": 0.5, "format": 1.0}),
        rollout(turn(0, [1], [10]), sample=1, reward=0.0, components={"tests": 0.0}),
        plain(2, reason=EndReason.INFRASTRUCTURE),
    )
    assert family(found, "reward") == {
        "mean": 0.5,
        "std": 0.5,
        "min": 0,
        "max": 1,
        "solved_share": 0.5,
        "components/tests": 0.25,
        "components/format": 1,
    }
    assert family(found, "advantage") == {"mean": 0, "abs_mean": 1}
    assert metrics(plain(0, 0.5), plain(1, 0.4), solved_at=0.5)["reward/solved_share"] == 0.5


def test_an_advantage_counts_once_for_each_rollout_however_many_samples_it_has() -> None:
    forked = rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=1), sample=0, reward=1.0)
    assert metrics(forked, plain(1, 0.0))["advantage/mean"] == 0


def test_turns_are_the_agents_own() -> None:
    found = metrics(
        rollout(
            turn(0, [1], [10, 11], messages=(reply(call("bash")),), stop=StopReason.LENGTH),
            turn(1, [7], [20], trainable=False, fork=ForkReason.NESTED, messages=(reply(),)),
            turn(2, [2], [12], parent=0, kept=3, messages=(reply(),)),
            turn(3, [3], [13], parent=2, kept=5, messages=(reply(call("bash"), call("bash")),)),
            sample=0,
        ),
        rollout(turn(0, [1], [10], messages=(reply(),)), sample=1),
        rollout(turn(0, [1], [10]), sample=2, reason=EndReason.DEADLINE),
    )
    assert family(found, "turns") == {
        "mean": 2,
        "max": 3,
        "nested": 1,
        "cut_share": 0.25,
        "without_call_share": 0.5,
    }
    assert (found["calls/num"], found["calls/per_turn"]) == (3, 0.75)
    assert (found["tokens/sampled_mean"], found["tokens/sampled_max"], found["tokens/per_turn"]) == (2.5, 4, 1.25)


def test_tools_are_counted_by_name() -> None:
    found = metrics(
        rollout(
            turn(0, [1], [10], messages=(reply(call("bash"), call("edit", CallProblem.BAD_JSON)),)),
            turn(1, [2], [11], parent=0, kept=2, messages=(reply(call("bash"), call("not a tool\n")),)),
            sample=0,
            spans=(
                tool_span("bash", 9.0, attempt=0),
                tool_span("bash", 2.0),
                tool_span("edit", 0.0, error=1),
                tool_span("bash", 1.0, error=1),
                tool_span("not a tool\n", 0.0, error=1),
                Span(kind=SpanKind.MODEL, start_s=0.0, end_s=50.0),
            ),
        ),
        plain(1),
    )
    assert family(found, "tools") == {
        "bash/calls": 2,
        "bash/problems": 0,
        "bash/errors": 1,
        "bash/seconds": 3,
        "edit/calls": 1,
        "edit/problems": 1,
        "edit/errors": 1,
        "edit/seconds": 0,
        "other/calls": 1,
        "other/problems": 0,
        "other/errors": 1,
        "other/seconds": 0,
    }
    assert (found["calls/problem_share"], found["calls/error_share"], found["calls/seconds_mean"]) == (0.25, 0.75, 0.75)


def test_names_that_a_model_makes_up_do_not_flood_the_metrics() -> None:
    calls = [call("bash"), call("bash"), *(call(f"made_up_{number}") for number in range(100))]
    found = metrics(rollout(turn(0, [1], [10], messages=(reply(*calls),)), sample=0), plain(1))
    named = {name.split("/")[1] for name in found if name.startswith("tools/")}
    assert len(named) == MAX_TOOLS_NAMED + 1
    assert found["tools/bash/calls"] == 2
    assert found["tools/other/calls"] == 102 - 2 - (MAX_TOOLS_NAMED - 1)


def test_a_hint_that_a_rewritten_conversation_brings_again_counts_once() -> None:
    told = Message(role=Role.TOOL, call_id="call_0_0", content="no", hints=("no_such_file", "few_turns_left"))
    again = Message(role=Role.TOOL, call_id="call_1_0", content="no", hints=("no_such_file",))
    old_reply = reply(call("bash"))
    found = metrics(
        rollout(
            turn(0, [1], [10], messages=(old_reply,)),
            turn(1, [2], [11], parent=0, kept=2, messages=(told, reply())),
            turn(2, [3], [12], parent=1, kept=1, messages=(old_reply, told, again, reply())),
            sample=0,
        ),
        plain(1),
    )
    assert family(found, "hints") == {"no_such_file": 2, "few_turns_left": 1}
    assert found["rollouts/hinted_share"] == 0.5
    assert found["calls/num"] == 1


def test_samples_and_forks_are_those_of_the_rows() -> None:
    forked = rollout(
        turn(0, [1], [10]),
        turn(1, [2], [11], parent=0, kept=1, fork=ForkReason.CONTEXT_EDIT),
        turn(2, [3], [12], parent=0, kept=1),
        sample=0,
        reason=EndReason.TURN_LIMIT,
    )
    found = metrics(forked, plain(1), plain(2, reason=EndReason.INFRASTRUCTURE))
    assert family(found, "samples") == {"num": 4, "in_loss": 1, "forked": 2, "per_rollout": 2}
    assert family(found, "forks") == {"context_edit": 1, "unexplained": 1}
    assert found["tokens/in_rows"] == 2 + 3 + 3 + 3


def test_every_sampled_token_outside_the_loss_is_there_for_one_reason() -> None:
    ten = [*range(10, 20)]
    kept = group(
        rollout(
            turn(0, [1], ten),
            turn(1, [2], ten[:6], parent=0, kept=11),
            turn(2, [3], ten[:4], trainable=False, fork=ForkReason.NESTED),
            sample=0,
        ),
        rollout(turn(0, [1], ten), turn(1, [2], ten, parent=0, kept=11), sample=1, reason=EndReason.TOKEN_LIMIT),
        rollout(turn(0, [1], ten), sample=2, reason=EndReason.WAITED),
        rollout(turn(0, [1], ten[:5]), sample=3, reason=EndReason.CANCELLED),
    )
    dropped = group(
        rollout(turn(0, [1], ten[:3]), sample=0), rollout(turn(0, [1], ten[:2]), sample=1, reason=EndReason.DEADLINE)
    )
    found = make_batch([kept, dropped], leave_one_out, max_tokens=15).metrics
    assert found["tokens/sampled"] == 60
    assert found["tokens/in_loss"] == 10
    assert found["tokens/truncated"] == 6 + 10
    assert {name: round(value * 60) for name, value in family(found, "masked").items()} == {
        "share": 50,
        "absent": 5,
        "untrusted": 10 + 2,
        "left_out": 0,
        "dropped_group": 3,
        "not_trainable": 4,
        "own_limit": 20,
        "truncated": 6,
    }


def test_versions_are_those_of_the_tokens_in_the_loss() -> None:
    found = metrics(
        rollout(turn(0, [1], [10, 11], version=[3, 4]), turn(1, [2], [12, 13], parent=0, kept=3, version=5), sample=0),
        rollout(turn(0, [1], [10], version=9), sample=1, reason=EndReason.TURN_LIMIT),
        rollout(
            turn(0, [1], [10], version=5),
            turn(1, [7], [20], trainable=False, version=0, fork=ForkReason.NESTED),
            turn(2, [1, 1, 1, 1, 1], [10], parent=0, kept=2, version=1),
            sample=2,
        ),
        max_tokens=6,
        version=7,
    )
    lag_mean = pytest.approx((4 + 3 + 2 + 2 + 2) / 5)
    assert family(found, "versions") == {"newest": 5, "oldest": 3, "lag_mean": lag_mean, "lag_max": 4}


def test_the_lag_is_counted_from_the_learner_s_version_and_absent_where_that_is_unknown() -> None:
    stale = rollout(turn(0, [1], [10, 11], version=2), sample=0), rollout(turn(0, [1], [10], version=2), sample=1)
    assert family(metrics(*stale, version=3), "versions") == {"newest": 2, "oldest": 2, "lag_mean": 1, "lag_max": 1}
    assert family(metrics(*stale), "versions") == {"newest": 2, "oldest": 2}


def test_what_there_is_nothing_to_average_over_is_absent() -> None:
    found = make_batch([], leave_one_out).metrics
    assert set(found.values()) == {0.0}
    assert not [name for name in found if "mean" in name or "share" in name or name.startswith(("masked", "versions"))]
    nothing = metrics(rollout(sample=0, reason=EndReason.INFRASTRUCTURE))
    assert "reward/mean" not in nothing
    assert all(math.isfinite(value) for value in nothing.values())


@steady
@given(st.lists(groups(), max_size=3), st.sampled_from(sorted(ESTIMATORS)), st.none() | st.integers(0, 20))
def test_metrics_are_finite_and_agree_with_the_rows(many: list[Group], name: str, max_tokens: int | None) -> None:
    batch = make_batch(many, ESTIMATORS[name], max_tokens=max_tokens, version=9)
    found = batch.metrics
    assert all(type(value) is float and math.isfinite(value) for value in found.values())
    assert undocumented(found) == set()
    assert found["samples/num"] == len(batch.rows)
    assert found["tokens/in_rows"] == sum(len(row.sample.ids) for row in batch.rows)
    assert found["tokens/in_loss"] == sum(sum(row.sample.mask) for row in batch.rows if row.in_loss)
    assert sum(family(found, "trust").values()) == found["rollouts/num"]
    assert sum(family(found, "forks").values()) == found["samples/forked"]
    if found["tokens/sampled"]:
        masked = family(found, "masked")
        assert masked["share"] == pytest.approx(1 - found["tokens/in_loss"] / found["tokens/sampled"])
        assert masked.pop("share") == pytest.approx(sum(masked.values()))
    versions = [
        version
        for row in batch.rows
        if row.in_loss
        for version, mask in zip(row.sample.versions, row.sample.mask, strict=True)
        if mask
    ]
    if versions:
        assert (found["versions/newest"], found["versions/oldest"]) == (max(versions), min(versions))
        assert found["versions/lag_mean"] == pytest.approx(9 - sum(versions) / len(versions))
        assert found["versions/lag_max"] == 9 - min(versions)
    else:
        assert not family(found, "versions")


def test_what_a_rule_left_out_counts_in_the_rewards_and_gives_no_row() -> None:
    run = Span(kind=SpanKind.RUN, start_s=1.0, end_s=5.0)
    cancelled = rollout(turn(0, [1], [10, 11, 12]), sample=2, reason=EndReason.CANCELLED, spans=(run,))
    over_sampled = replace(group(plain(0, 1.0), plain(1, 0.0)), left_out=(cancelled, plain(3, 1.0)))
    replaced = Group(phase="train", step=3, task_id="u", rollouts=(), left_out=(plain(0, 1.0), plain(1, 1.0)))
    batch = make_batch([over_sampled, replaced], leave_one_out)
    assert [row.sample.key.sample for row in batch.rows] == [0, 1]
    assert family(batch.metrics, "groups")["num"] == 1
    assert family(batch.metrics, "groups")["replaced"] == 1
    assert family(batch.metrics, "groups")["dropped"] == 0
    assert batch.metrics["rollouts/num"] == 6
    assert batch.metrics["reward/mean"] == 0.8
    assert family(batch.metrics, "left_out") == {
        "num": 4,
        "cancelled": 1,
        "kept_turns": 1,
        "kept_tokens": 2,
        "kept_seconds": 0,
        "cancelled_turns": 1,
        "cancelled_tokens": 3,
        "cancelled_seconds": 4,
    }
    num_sampled = 2 + 2 + 3 + 2 + 2 + 2
    assert batch.metrics["masked/absent"] == 3 / num_sampled
    assert batch.metrics["masked/left_out"] == (2 + 2 + 2) / num_sampled
    assert batch.metrics["masked/share"] == pytest.approx((3 + 2 + 2 + 2) / num_sampled)


def test_what_an_earlier_batch_learnt_from_is_in_the_baseline_alone() -> None:
    carried = replace(group(plain(2, 1.0)), earlier=(plain(0, 0.0), plain(1, 0.5)))
    batch = make_batch([carried], leave_one_out)
    assert [(row.sample.key.sample, row.advantage) for row in batch.rows] == [(2, 0.75)]
    assert batch.metrics["rollouts/num"] == 1


def test_what_a_group_can_teach_goes_by_all_that_it_is_compared_with() -> None:
    found = make_batch(
        [
            replace(group(plain(2, 1.0)), earlier=(plain(0, 0.0), plain(1, 0.0))),
            replace(group(plain(2, 1.0)), earlier=(plain(0, 1.0), plain(1, 1.0))),
            replace(group(plain(2, 0.0)), earlier=(plain(0, 0.0), plain(1, reason=EndReason.DEADLINE))),
        ],
        leave_one_out,
    ).metrics
    counted = family(found, "groups")
    assert (counted["without_signal"], counted["all_solved"], counted["none_solved"]) == (2, 1, 1)


def test_the_page_names_every_metric_and_no_other() -> None:
    hinted = Message(role=Role.TOOL, call_id="a", hints=("no_such_file",))
    full = metrics(
        rollout(
            turn(0, [1], [10], messages=(reply(call("bash")),)),
            turn(1, [2], [11], parent=0, kept=1, fork=ForkReason.TEMPLATE, messages=(hinted, reply())),
            sample=0,
            components={"tests": 1.0},
            spans=(tool_span("bash", 1.0),),
        ),
        plain(1),
    )
    over_sampled = replace(group(plain(0), plain(1)), left_out=(plain(2, reason=EndReason.CANCELLED),))
    full = {**full, **make_batch([over_sampled], leave_one_out, version=3).metrics}
    assert undocumented(full) == set()
    assert [pattern for pattern in patterns() if not any(re.fullmatch(pattern, name) for name in full)] == []


def undocumented(found: Mapping[str, float]) -> set[str]:
    known = patterns()
    return {name for name in found if not any(re.fullmatch(pattern, name) for pattern in known)}


def patterns() -> list[str]:
    """The names in the tables of the page; what stands in angle brackets is any name."""
    names = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert len(names) == len(set(names)) > 0
    return ["[^/]+".join(re.escape(part) for part in re.split(r"<\w+>", name)) for name in names]

"""Samples pinned to token lists written by hand, and the rule that every sampled token is trained on once."""

import pytest
from batch_trees import assert_tokens, rollout, steady, turn, turns
from hypothesis import given
from hypothesis import strategies as st

from slipstream.batch.merge import Merged, merge
from slipstream.errors import ConfigError
from slipstream.types import CallProblem, ForkReason, Message, Role, Sampled, StopReason, ToolCall, Turn


def test_a_conversation_without_forks_is_one_sample() -> None:
    merged = merge(
        rollout(
            turn(0, [1, 2, 3], [10, 11], version=4),
            turn(1, [4, 5], [12], parent=0, kept=5, version=5),
        )
    )
    (sample,) = merged.samples
    assert_tokens(
        sample,
        ids=[1, 2, 3, 10, 11, 4, 5, 12],
        mask=[0, 0, 0, 1, 1, 0, 0, 1],
        logprobs=[0, 0, 0, -0.10, -0.11, 0, 0, -0.12],
        versions=[-1, -1, -1, 4, 4, -1, -1, 5],
    )
    assert (sample.turns, sample.branch, sample.num_truncated, sample.fork) == ((0, 1), 0, 0, None)
    assert merged.num_truncated == 0


def test_a_reply_that_two_versions_sampled_keeps_a_version_for_each_token() -> None:
    (sample,) = merge(rollout(turn(0, [1], [10, 11, 12], version=[7, 7, 8]))).samples
    assert_tokens(
        sample,
        ids=[1, 10, 11, 12],
        mask=[0, 1, 1, 1],
        logprobs=[0, -0.10, -0.11, -0.12],
        versions=[-1, 7, 7, 8],
    )


def test_the_answers_to_several_calls_of_one_turn_follow_each_other_as_context() -> None:
    calls = (ToolCall(id="a", name="bash"), ToolCall(id="b", name="bash"))
    answers = tuple(Message(role=Role.TOOL, call_id=call.id, name=call.name) for call in calls)
    merged = merge(
        rollout(
            turn(0, [1], [10, 11], messages=(Message(role=Role.ASSISTANT, calls=calls),)),
            turn(1, [30, 31, 40, 41, 2], [12, 13], parent=0, kept=3, messages=answers),
        )
    )
    (sample,) = merged.samples
    assert_tokens(
        sample,
        ids=[1, 10, 11, 30, 31, 40, 41, 2, 12, 13],
        mask=[0, 1, 1, 0, 0, 0, 0, 0, 1, 1],
        logprobs=[0, -0.10, -0.11, 0, 0, 0, 0, 0, -0.12, -0.13],
        versions=[-1, 0, 0, -1, -1, -1, -1, -1, 0, 0],
    )


def test_a_malformed_call_is_trained_on_and_the_error_it_got_is_context() -> None:
    malformed = ToolCall(id="a", name="", problem=CallProblem.BAD_JSON, raw="{")
    told = Message(role=Role.TOOL, call_id="a", content="This tool call was not run: it is not valid JSON.")
    merged = merge(
        rollout(
            turn(0, [1, 2], [10, 66], messages=(Message(role=Role.ASSISTANT, calls=(malformed,)),)),
            turn(1, [70, 71, 72], [10, 11], parent=0, kept=4, messages=(told, Message(role=Role.ASSISTANT))),
            turn(2, [3], [12], parent=1, kept=9),
        )
    )
    (sample,) = merged.samples
    assert_tokens(
        sample,
        ids=[1, 2, 10, 66, 70, 71, 72, 10, 11, 3, 12],
        mask=[0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1],
        logprobs=[0, 0, -0.10, -0.66, 0, 0, 0, -0.10, -0.11, 0, -0.12],
        versions=[-1, -1, 0, 0, -1, -1, -1, 0, 0, -1, 0],
    )


def test_a_context_edit_is_a_second_sample_that_trains_only_what_came_after() -> None:
    merged = merge(
        rollout(
            turn(0, [1, 2], [10], version=1),
            turn(1, [3], [11], parent=0, kept=3, version=1),
            turn(2, [9, 8], [12], parent=1, kept=1, branch=1, version=2, fork=ForkReason.CONTEXT_EDIT),
            turn(3, [7], [13], parent=2, kept=4, branch=1, version=2),
        )
    )
    before, after = merged.samples
    assert_tokens(
        before,
        ids=[1, 2, 10, 3, 11],
        mask=[0, 0, 1, 0, 1],
        logprobs=[0, 0, -0.10, 0, -0.11],
        versions=[-1, -1, 1, -1, 1],
    )
    assert_tokens(
        after,
        ids=[1, 9, 8, 12, 7, 13],
        mask=[0, 0, 0, 1, 0, 1],
        logprobs=[0, 0, 0, -0.12, 0, -0.13],
        versions=[-1, -1, -1, 2, -1, 2],
    )
    assert [(sample.branch, sample.turns, sample.fork) for sample in merged.samples] == [
        (0, (0, 1), None),
        (1, (2, 3), ForkReason.CONTEXT_EDIT),
    ]


def test_what_a_trimmed_reply_left_out_is_trained_on_where_it_was_sampled() -> None:
    """The engine continued to 99 after the end of the reply: the next prompt keeps the reply without it."""
    merged = merge(
        rollout(
            turn(0, [1], [10, 11, 99], version=2),
            turn(1, [5], [13], parent=0, kept=3, version=3, fork=ForkReason.TRIMMED),
        )
    )
    first, second = merged.samples
    assert_tokens(
        first,
        ids=[1, 10, 11, 99],
        mask=[0, 1, 1, 1],
        logprobs=[0, -0.10, -0.11, -0.99],
        versions=[-1, 2, 2, 2],
    )
    assert_tokens(
        second,
        ids=[1, 10, 11, 5, 13],
        mask=[0, 0, 0, 0, 1],
        logprobs=[0, 0, 0, 0, -0.13],
        versions=[-1, -1, -1, -1, 3],
    )
    assert (first.fork, second.fork) == (None, ForkReason.TRIMMED)


def test_a_conversation_that_was_rendered_anew_forks_where_the_tokens_part() -> None:
    merged = merge(
        rollout(
            turn(0, [1, 2], [10, 11]),
            turn(1, [20, 21, 3], [12], parent=0, kept=2, fork=ForkReason.TEMPLATE),
        )
    )
    first, second = merged.samples
    assert_tokens(first, ids=[1, 2, 10, 11], mask=[0, 0, 1, 1], logprobs=[0, 0, -0.10, -0.11], versions=[-1, -1, 0, 0])
    assert_tokens(
        second,
        ids=[1, 2, 20, 21, 3, 12],
        mask=[0, 0, 0, 0, 0, 1],
        logprobs=[0, 0, 0, 0, 0, -0.12],
        versions=[-1, -1, -1, -1, -1, 0],
    )
    assert second.fork is ForkReason.TEMPLATE


def test_branches_side_by_side_share_their_stem_as_context() -> None:
    """Only the first continues the stem; the other is parallel, though its turn keeps the whole parent."""
    merged = merge(
        rollout(
            turn(0, [1], [10]),
            turn(1, [2], [11], parent=0, kept=2, branch=1),
            turn(2, [3], [12], parent=0, kept=2, branch=2),
        )
    )
    first, second = merged.samples
    assert_tokens(first, ids=[1, 10, 2, 11], mask=[0, 1, 0, 1], logprobs=[0, -0.10, 0, -0.11], versions=[-1, 0, -1, 0])
    assert_tokens(second, ids=[1, 10, 3, 12], mask=[0, 0, 0, 1], logprobs=[0, 0, 0, -0.12], versions=[-1, -1, -1, 0])
    assert (first.fork, second.fork) == (None, ForkReason.PARALLEL)


def test_a_sub_agent_with_a_conversation_of_its_own_is_a_sample_of_its_own() -> None:
    merged = merge(
        rollout(
            turn(0, [1], [10]),
            turn(1, [7, 8], [20], branch=1, fork=ForkReason.SUB_AGENT),
            turn(2, [9], [21], parent=1, kept=3, branch=1),
            turn(3, [2], [11], parent=0, kept=2),
        )
    )
    own, sub = merged.samples
    assert_tokens(own, ids=[1, 10, 2, 11], mask=[0, 1, 0, 1], logprobs=[0, -0.10, 0, -0.11], versions=[-1, 0, -1, 0])
    assert_tokens(
        sub,
        ids=[7, 8, 20, 9, 21],
        mask=[0, 0, 1, 0, 1],
        logprobs=[0, 0, -0.20, 0, -0.21],
        versions=[-1, -1, 0, -1, 0],
    )
    assert [(sample.turns, sample.fork) for sample in merged.samples] == [
        ((0, 3), None),
        ((1, 2), ForkReason.SUB_AGENT),
    ]


def test_a_nested_judge_leaves_no_sample_and_needs_no_logprobs() -> None:
    merged = merge(
        rollout(
            turn(0, [1], [10]),
            turn(1, [7], [20, 21], branch=1, trainable=False, logprobs=False, fork=ForkReason.NESTED),
            turn(2, [2], [11], parent=0, kept=2),
        )
    )
    (sample,) = merged.samples
    assert_tokens(sample, ids=[1, 10, 2, 11], mask=[0, 1, 0, 1], logprobs=[0, -0.10, 0, -0.11], versions=[-1, 0, -1, 0])
    assert merged.num_truncated == 0


def test_what_a_turn_that_is_not_trained_on_said_is_context_of_those_after_it() -> None:
    (sample,) = merge(rollout(turn(0, [1], [10, 11], trainable=False), turn(1, [2], [12], parent=0, kept=3))).samples
    assert_tokens(
        sample,
        ids=[1, 10, 11, 2, 12],
        mask=[0, 0, 0, 0, 1],
        logprobs=[0, 0, 0, 0, -0.12],
        versions=[-1, -1, -1, -1, 0],
    )


def test_an_empty_reply_adds_nothing_and_does_not_end_the_sample() -> None:
    merged = merge(
        rollout(turn(0, [1], [10]), turn(1, [2], [], parent=0, kept=2), turn(2, [3], [11], parent=1, kept=3))
    )
    (sample,) = merged.samples
    assert_tokens(
        sample,
        ids=[1, 10, 2, 3, 11],
        mask=[0, 1, 0, 0, 1],
        logprobs=[0, -0.10, 0, 0, -0.11],
        versions=[-1, 0, -1, -1, 0],
    )
    assert sample.turns == (0, 1, 2)
    assert merge(rollout(turn(0, [1], []))) == Merged(samples=(), num_truncated=0)


def test_a_sample_is_cut_between_turns_and_says_how_much_is_gone() -> None:
    whole = rollout(
        turn(0, [1, 2], [10]), turn(1, [3], [11, 12], parent=0, kept=3), turn(2, [4], [13], parent=1, kept=6)
    )
    merged = merge(whole, max_tokens=7)
    (sample,) = merged.samples
    assert_tokens(
        sample,
        ids=[1, 2, 10, 3, 11, 12],
        mask=[0, 0, 1, 0, 1, 1],
        logprobs=[0, 0, -0.10, 0, -0.11, -0.12],
        versions=[-1, -1, 0, -1, 0, 0],
    )
    assert (sample.turns, sample.num_truncated, merged.num_truncated) == ((0, 1), 1, 1)
    assert merge(whole, max_tokens=2) == Merged(samples=(), num_truncated=4)


def test_a_fork_off_what_was_cut_still_has_its_whole_context() -> None:
    merged = merge(
        rollout(
            turn(0, [1, 2], [10]),
            turn(1, [3], [11, 12, 13], parent=0, kept=3),
            turn(2, [], [14], parent=1, kept=5, fork=ForkReason.CONTEXT_EDIT),
        ),
        max_tokens=6,
    )
    first, second = merged.samples
    assert_tokens(first, ids=[1, 2, 10], mask=[0, 0, 1], logprobs=[0, 0, -0.10], versions=[-1, -1, 0])
    assert_tokens(
        second,
        ids=[1, 2, 10, 3, 11, 14],
        mask=[0, 0, 0, 0, 0, 1],
        logprobs=[0, 0, 0, 0, 0, -0.14],
        versions=[-1, -1, -1, -1, -1, 0],
    )
    assert (first.num_truncated, second.num_truncated, merged.num_truncated) == (3, 0, 3)


def test_what_cannot_be_trained_on_is_refused_and_never_made_up() -> None:
    chat = Turn(index=0)
    with pytest.raises(ConfigError, match="turn 0 of train/3/t/1 has no tokens"):
        merge(rollout(chat))
    with pytest.raises(ConfigError, match="turn 1 of train/3/t/1 has no tokens"):
        merge(rollout(turn(0, [1], [10]), Turn(index=1, trainable=False)))
    bare = Sampled.at_version([10], None, version=0, stop=StopReason.STOP)
    with pytest.raises(ConfigError, match="turn 0 of train/3/t/1 has no logprobs"):
        merge(rollout(Turn(index=0, sampled=bare)))
    with pytest.raises(ConfigError, match="turn 1 of train/3/t/1 has no logprobs"):
        merge(rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=2, logprobs=False)), max_tokens=2)
    with pytest.raises(ConfigError, match="keeps 9 of 2 tokens"):
        merge(rollout(turn(0, [1], [10]), turn(1, [2], [11], parent=0, kept=9)))
    with pytest.raises(ConfigError, match="keeps 1 of 0 tokens"):
        merge(rollout(turn(0, [1], [10], kept=1)))
    with pytest.raises(ConfigError, match="turn 0 of train/3/t/1 continues turn 4, which does not come before it"):
        merge(rollout(turn(0, [1], [10], parent=4)))


@steady
@given(turns(), st.none() | st.integers(0, 20))
def test_every_sampled_token_is_trained_on_exactly_once_or_counted_as_cut(
    tree: tuple[Turn, ...], max_tokens: int | None
) -> None:
    merged = merge(rollout(*tree), max_tokens=max_tokens)
    trained = [token for sample in merged.samples for token, mask in zip(sample.ids, sample.mask, strict=True) if mask]
    sampled = [token for each in tree if each.trainable and each.sampled is not None for token in each.sampled.ids]
    assert len(trained) == len(set(trained))
    assert set(trained) <= set(sampled)
    assert len(sampled) - len(trained) == merged.num_truncated
    assert merged.num_truncated >= sum(sample.num_truncated for sample in merged.samples)
    assert all(any(sample.mask) for sample in merged.samples)
    if max_tokens is None:
        assert merged.num_truncated == 0
    else:
        assert all(len(sample.ids) <= max_tokens for sample in merged.samples)


@steady
@given(turns(), st.none() | st.integers(0, 20))
def test_every_token_carries_the_logprob_and_version_it_was_sampled_with_or_none(
    tree: tuple[Turn, ...], max_tokens: int | None
) -> None:
    truth = {
        token: (logprob, version)
        for each in tree
        if each.sampled is not None and each.sampled.logprobs is not None
        for token, logprob, version in zip(each.sampled.ids, each.sampled.logprobs, each.sampled.versions, strict=True)
    }
    for sample in merge(rollout(*tree), max_tokens=max_tokens).samples:
        for token, mask, logprob, version in zip(
            sample.ids, sample.mask, sample.logprobs, sample.versions, strict=True
        ):
            assert (logprob, version) == (truth[token] if mask else (0.0, -1))


@steady
@given(turns())
def test_every_prompt_stands_unchanged_in_the_sample_of_its_turn(tree: tuple[Turn, ...]) -> None:
    full: dict[int, list[int]] = {}
    for each in tree:
        assert each.sampled is not None
        before = [] if each.parent is None else full[each.parent][: each.num_kept]
        full[each.index] = [*before, *each.added, *each.sampled.ids]
    for sample in merge(rollout(*tree)).samples:
        for index in sample.turns:
            assert sample.ids.tolist()[: len(full[index])] == full[index]

"""The numbers that explain a batch. `docs/metrics.md` says what each of them means.

Input: the groups of a batch, and the members of those that were kept, with advantages and samples. Output: one flat
mapping, with `/` between a family and its member: `ended/finished`, `tools/bash/calls`.
Invariants: every value is a finite number, and a mean over nothing is absent; the work is linear in turns and spans,
and in tokens only where one reply was sampled by several versions of the policy.

There are three scopes, and each family has one: all rollouts (what was requested and how it ended), graded rollouts
(how agents behave, without those that infrastructure cut short), and rows (what the learner gets).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.batch.merge import Merged
from slipstream.types import (
    EndReason,
    Group,
    Message,
    Role,
    Rollout,
    Span,
    SpanKind,
    StopReason,
    ToolCall,
    Trust,
    Turn,
    set_of,
)

MAX_TOOLS_NAMED = 32
OTHER_TOOLS = "other"
"""Models invent tool names. Odd ones, and all but the most frequent, are counted together under this name."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A member of a kept group, its advantage and its samples."""

    rollout: Rollout
    advantage: float
    merged: Merged


def batch_metrics(
    groups: Sequence[Group],
    scored: Sequence[Sequence[Scored]],
    *,
    solved_at: float = 1.0,
    version: int | None = None,
    sets: Collection[str] = (),
) -> dict[str, float]:
    """All metrics of a batch. `scored` is parallel to `groups`, and empty for a group that was dropped. `version` is
    that of the policy before the update, if known. `sets` are those of a mixture, each of which gets figures of its
    own too."""
    rollouts = [rollout for group in groups for rollout in (*group.rollouts, *group.left_out)]
    graded = [rollout for rollout in rollouts if rollout.verdict is not None]
    members = [member for group in scored for member in group]
    found: dict[str, float] = {
        **_groups(groups, scored, solved_at),
        **_left_out(groups),
        **_rollouts(rollouts),
        **_endings(rollouts),
        **_rewards(graded, solved_at),
        **_advantages(members),
        **_turns(graded),
        **_tools(graded),
        **_hints(graded),
        **_samples(members),
        **_tokens(rollouts, graded, members),
        **_masked(groups, scored),
        **_versions(members, version),
        **_sets(groups, scored, solved_at, sets),
    }
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


# ---------------------------------------------------------------- groups, endings, rewards


def _groups(groups: Sequence[Group], scored: Sequence[Sequence[Scored]], solved_at: float) -> dict[str, float]:
    kept = [_compared(group) for group, members in zip(groups, scored, strict=True) if members]
    num_replaced = sum(bool(group.left_out) and not group.rollouts for group in groups)
    return {
        "groups/num": len(scored) - num_replaced,
        "groups/replaced": num_replaced,
        "groups/dropped": len(scored) - len(kept) - num_replaced,
        "groups/without_signal": sum(min(rewards) == max(rewards) for rewards in kept),
        "groups/all_solved": sum(min(rewards) >= solved_at for rewards in kept),
        "groups/none_solved": sum(max(rewards) < solved_at for rewards in kept),
    }


def _sets(
    groups: Sequence[Group], scored: Sequence[Sequence[Scored]], solved_at: float, sets: Collection[str]
) -> dict[str, float]:
    """The main figures of each set of a mixture that is in the batch."""
    found: dict[str, float] = {}
    for name in sets:
        of_set = [
            (group, members)
            for group, members in zip(groups, scored, strict=True)
            if set_of(group.task_id, sets) == name
        ]
        if not of_set:
            continue
        own, own_scored = [group for group, _ in of_set], [members for _, members in of_set]
        rollouts = [rollout for group in own for rollout in (*group.rollouts, *group.left_out)]
        graded = [rollout for rollout in rollouts if rollout.verdict is not None]
        rewards = [_reward(rollout) for rollout in graded]
        figures: dict[str, float] = {
            **_groups(own, own_scored, solved_at),
            "rollouts/num": len(rollouts),
            "rollouts/untrusted": sum(rollout.trust is Trust.UNTRUSTED for rollout in rollouts),
            **_mean("reward/mean", rewards),
            **_mean("reward/solved_share", [reward >= solved_at for reward in rewards]),
            **_mean("turns/mean", [len(_own_turns(rollout)) for rollout in graded]),
            **_mean("tokens/sampled_mean", [_num_sampled(_own_turns(rollout)) for rollout in graded]),
            **_mean("seconds/run_mean", [_run_seconds(rollout) for rollout in graded]),
        }
        found |= {f"set/{name}/{key}": value for key, value in figures.items()}
    return found


def _compared(group: Group) -> list[float]:
    """The rewards in a group's baseline: of its members, and of members that an earlier batch learned from."""
    return [_reward(rollout) for rollout in (*group.rollouts, *group.earlier) if rollout.trust.in_baseline]


def _left_out(groups: Sequence[Group]) -> dict[str, float]:
    """How long kept and cancelled rollouts are: a group rule that stops early favours short ones."""
    if not any(group.left_out for group in groups):
        return {}
    kept = [rollout for group in groups for rollout in group.rollouts if rollout.verdict is not None]
    left_out = [rollout for group in groups for rollout in group.left_out]
    cancelled = [rollout for rollout in left_out if rollout.ending.reason is EndReason.CANCELLED]
    found: dict[str, float] = {"left_out/num": len(left_out), "left_out/cancelled": len(cancelled)}
    for name, members in (("kept", kept), ("cancelled", cancelled)):
        found |= _mean(f"left_out/{name}_turns", [len(_own_turns(rollout)) for rollout in members])
        found |= _mean(f"left_out/{name}_tokens", [_num_sampled(_own_turns(rollout)) for rollout in members])
        found |= _mean(f"left_out/{name}_seconds", [_run_seconds(rollout) for rollout in members])
    return found


def _rollouts(rollouts: Sequence[Rollout]) -> dict[str, float]:
    trusts = Counter(rollout.trust for rollout in rollouts)
    return {
        "rollouts/num": len(rollouts),
        "rollouts/failures": sum(len(rollout.failures) for rollout in rollouts),
        **{f"trust/{trust}": trusts[trust] for trust in Trust},
    }


def _endings(rollouts: Sequence[Rollout]) -> dict[str, float]:
    found: dict[str, float] = {}
    for reason in EndReason:
        ended = [rollout for rollout in rollouts if rollout.ending.reason is reason]
        if not ended:
            continue
        found[f"ended/{reason}"] = len(ended)
        found |= _mean(f"ended/{reason}/turns", [len(_own_turns(rollout)) for rollout in ended])
        found |= _mean(f"ended/{reason}/tokens", [_num_sampled(_own_turns(rollout)) for rollout in ended])
        if reason.trust.graded:
            found |= _mean(f"ended/{reason}/reward", [_reward(rollout) for rollout in ended])
    return found


def _rewards(graded: Sequence[Rollout], solved_at: float) -> dict[str, float]:
    rewards = [_reward(rollout) for rollout in graded]
    components: dict[str, list[float]] = {}
    for rollout in graded:
        for name, value in rollout.verdict.components.items() if rollout.verdict is not None else ():
            components.setdefault(name, []).append(value)
    found = _mean("reward/mean", rewards) | _mean("reward/solved_share", [reward >= solved_at for reward in rewards])
    if rewards and all(math.isfinite(reward) for reward in rewards):
        found |= {
            "reward/std": statistics.pstdev(rewards),
            "reward/min": min(rewards),
            "reward/max": max(rewards),
        }
    for name, values in components.items():
        found |= _mean(f"reward/components/{name}", values)
    return found


def _advantages(members: Sequence[Scored]) -> dict[str, float]:
    values = [member.advantage for member in members]
    return _mean("advantage/mean", values) | _mean("advantage/abs_mean", [abs(value) for value in values])


# ---------------------------------------------------------------- how agents behave


def _turns(graded: Sequence[Rollout]) -> dict[str, float]:
    numbers = [len(_own_turns(rollout)) for rollout in graded]
    turns = [turn for rollout in graded for turn in _own_turns(rollout)]
    cut = [turn.sampled is not None and turn.sampled.stop is StopReason.LENGTH for turn in turns]
    found: dict[str, float] = {"turns/nested": sum(len(rollout.turns) for rollout in graded) - len(turns)}
    return (
        found
        | _mean("turns/mean", numbers)
        | _max("turns/max", numbers)
        | _mean("turns/cut_share", cut)
        | _mean("turns/without_call_share", [not _calls(turn) for turn in turns])
    )


def _tools(graded: Sequence[Rollout]) -> dict[str, float]:
    turns = [turn for rollout in graded for turn in _own_turns(rollout)]
    calls = [call for turn in turns for call in _calls(turn)]
    spans = [span for rollout in graded for span in _tool_spans(rollout)]
    names = _tool_names([call.name for call in calls] + [span.name for span in spans])
    found: dict[str, float] = {"calls/num": len(calls)}
    found |= _mean("calls/per_turn", [len(_calls(turn)) for turn in turns])
    found |= _mean("calls/problem_share", [call.problem is not None for call in calls])
    found |= _mean("calls/error_share", [_is_error(span) for span in spans])
    found |= _mean("calls/seconds_mean", [span.seconds for span in spans])
    for name in sorted(set(names.values())):
        found |= {f"tools/{name}/{what}": 0.0 for what in ("calls", "problems", "errors", "seconds")}
    for call in calls:
        found[f"tools/{names[call.name]}/calls"] += 1
        found[f"tools/{names[call.name]}/problems"] += call.problem is not None
    for span in spans:
        found[f"tools/{names[span.name]}/errors"] += _is_error(span)
        found[f"tools/{names[span.name]}/seconds"] += span.seconds
    return found


def _tool_names(called: Iterable[str]) -> Mapping[str, str]:
    """The name that each tool is counted under."""
    numbers = Counter(called)
    by_number = sorted(numbers, key=lambda name: (-numbers[name], name))
    named = [name for name in by_number if _TOOL_NAME.fullmatch(name)][:MAX_TOOLS_NAMED]
    return dict.fromkeys(numbers, OTHER_TOOLS) | {name: name for name in named}


def _hints(graded: Sequence[Rollout]) -> dict[str, float]:
    fired = [_hints_of(rollout) for rollout in graded]
    numbers = Counter(hint for hints in fired for hint in hints)
    found: dict[str, float] = {f"hints/{hint}": number for hint, number in sorted(numbers.items())}
    return found | _mean("rollouts/hinted_share", [bool(hints) for hints in fired])


def _hints_of(rollout: Rollout) -> list[str]:
    """The hints that the agent read. A rewritten conversation repeats old answers, which count once."""
    found: list[str] = []
    seen: set[tuple[str, str]] = set()
    for turn in _own_turns(rollout):
        for message in turn.messages:
            if message.hints and (not message.call_id or _identity(message) not in seen):
                seen.add(_identity(message))
                found += message.hints
    return found


def _identity(message: Message) -> tuple[str, str]:
    return message.call_id, message.content


# ---------------------------------------------------------------- what the learner gets


def _samples(members: Sequence[Scored]) -> dict[str, float]:
    numbers = [len(member.merged.samples) for member in members]
    forks = [sample for member in members for sample in member.merged.samples[1:]]
    reasons = Counter("unexplained" if sample.fork is None else str(sample.fork) for sample in forks)
    found: dict[str, float] = {
        "samples/num": sum(numbers),
        "samples/in_loss": sum(len(member.merged.samples) for member in members if member.rollout.trust.in_loss),
        "samples/forked": len(forks),
        **{f"forks/{reason}": number for reason, number in sorted(reasons.items())},
    }
    return found | _mean("samples/per_rollout", numbers)


def _tokens(rollouts: Sequence[Rollout], graded: Sequence[Rollout], members: Sequence[Scored]) -> dict[str, float]:
    numbers = [_num_sampled(_own_turns(rollout)) for rollout in graded]
    per_turn = [_num_sampled((turn,)) for rollout in graded for turn in _own_turns(rollout)]
    found: dict[str, float] = {
        "tokens/sampled": sum(_num_sampled(rollout.turns) for rollout in rollouts),
        "tokens/in_rows": sum(len(sample.ids) for member in members for sample in member.merged.samples),
        "tokens/in_loss": sum(_num_in_loss(member) for member in members),
        "tokens/truncated": sum(member.merged.num_truncated for member in members),
    }
    return (
        found
        | _mean("tokens/sampled_mean", numbers)
        | _max("tokens/sampled_max", numbers)
        | _mean("tokens/per_turn", per_turn)
    )


def _masked(groups: Sequence[Group], scored: Sequence[Sequence[Scored]]) -> dict[str, float]:
    """Why sampled tokens are outside the loss; each is counted under the first reason that applies."""
    why = dict.fromkeys(
        ("absent", "left_out", "untrusted", "dropped_group", "not_trainable", "own_limit", "truncated"), 0
    )
    for group, members in zip(groups, scored, strict=True):
        for rollout in group.left_out:
            why["absent" if rollout.trust is Trust.ABSENT else "left_out"] += _num_sampled(rollout.turns)
        for rollout in group.rollouts:
            if not rollout.trust.in_baseline:
                why["absent" if rollout.trust is Trust.ABSENT else "untrusted"] += _num_sampled(rollout.turns)
            elif not members:
                why["dropped_group"] += _num_sampled(rollout.turns)
        for member in members:
            num_trainable = _num_sampled(_own_turns(member.rollout))
            why["not_trainable"] += _num_sampled(member.rollout.turns) - num_trainable
            if member.rollout.trust.in_loss:
                why["truncated"] += member.merged.num_truncated
            else:
                why["own_limit"] += num_trainable
    num_sampled = sum(_num_sampled(rollout.turns) for group in groups for rollout in (*group.rollouts, *group.left_out))
    if not num_sampled:
        return {}
    return {
        "masked/share": sum(why.values()) / num_sampled,
        **{f"masked/{reason}": number / num_sampled for reason, number in why.items()},
    }


def _versions(members: Sequence[Scored], learner: int | None) -> dict[str, float]:
    """Lag is relative to the learner's version, not to the newest token: a whole batch may be stale."""
    num_tokens = total = 0
    newest, oldest = -math.inf, math.inf
    for turn in (turn for member in members if member.rollout.trust.in_loss for turn in _turns_in_samples(member)):
        versions = turn.sampled.versions if turn.sampled is not None else ()
        if not versions:
            continue
        one = versions == versions[:1] * len(versions)  # nearly always, and much faster than looking at each
        newest = max(newest, versions[0] if one else max(versions))
        oldest = min(oldest, versions[0] if one else min(versions))
        total += versions[0] * len(versions) if one else sum(versions)
        num_tokens += len(versions)
    if not num_tokens:
        return {}
    found = {"versions/newest": newest, "versions/oldest": oldest}
    if learner is not None:
        found |= {"versions/lag_mean": learner - total / num_tokens, "versions/lag_max": learner - oldest}
    return found


# ---------------------------------------------------------------- reading rollouts


def _reward(rollout: Rollout) -> float:
    assert rollout.verdict is not None, "a graded rollout has a verdict: the type refuses anything else"
    return rollout.verdict.reward


def _own_turns(rollout: Rollout) -> tuple[Turn, ...]:
    """The turns of the agent and its sub-agents, without those of judges and summarisers."""
    return tuple(turn for turn in rollout.turns if turn.trainable)


def _num_sampled(turns: Iterable[Turn]) -> int:
    return sum(len(turn.sampled.ids) for turn in turns if turn.sampled is not None)


def _run_seconds(rollout: Rollout) -> float:
    return sum(span.seconds for span in rollout.spans if span.kind is SpanKind.RUN and span.attempt == rollout.attempt)


def _num_in_loss(member: Scored) -> int:
    if not member.rollout.trust.in_loss:
        return 0
    return _num_sampled(_own_turns(member.rollout)) - member.merged.num_truncated


def _turns_in_samples(member: Scored) -> list[Turn]:
    held = {index for sample in member.merged.samples for index in sample.turns}
    return [turn for turn in _own_turns(member.rollout) if turn.index in held]


def _calls(turn: Turn) -> tuple[ToolCall, ...]:
    """The calls of the reply, which is the last message. Those before it may be replies of earlier turns."""
    reply = turn.messages[-1] if turn.messages else None
    return reply.calls if reply is not None and reply.role is Role.ASSISTANT else ()


def _tool_spans(rollout: Rollout) -> list[Span]:
    """The spans of the attempt that the turns are from."""
    return [span for span in rollout.spans if span.kind is SpanKind.TOOL and span.attempt == rollout.attempt]


def _is_error(span: Span) -> bool:
    return span.counts.get("error", 0) > 0


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}


def _max(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: max(values)} if values else {}

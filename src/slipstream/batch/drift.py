"""The drift report: how often a rollout became more than one sample, why, and what that costs.

A rollout that forks is trained on in several samples, and each repeats what came before its fork, as context.
Invariants: the samples counted here are those of `merge` without truncation, since both walk the same strands. Logprobs
are not needed, so it works on evaluations too. Rollouts without tokens are counted separately, never as rollouts
without drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slipstream.batch.strands import strands_of
from slipstream.types import ForkReason, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    num_rollouts: int
    """Rollouts with tokens: every count but the last is about them."""
    num_samples: int
    num_forked: int
    """Samples beyond the first of a rollout."""
    by_reason: Mapping[ForkReason, int] = field(default_factory=dict)
    """Forks by reason. Those without a reason are in `num_unexplained`."""
    num_tokens_repeated: int
    """Tokens from before a fork that a sample repeats, with mask 0. What was rendered again counts as new."""
    num_rollouts_forked: int
    num_without_tokens: int
    """Rollouts without a turn, or with a turn that has no tokens, as from a chat endpoint."""

    @property
    def num_unexplained(self) -> int:
        return self.num_forked - sum(self.by_reason.values())

    @property
    def share(self) -> float | None:
        """The share of rollouts that forked; None if no rollout has tokens."""
        return self.num_rollouts_forked / self.num_rollouts if self.num_rollouts else None


def drift(rollouts: Iterable[Rollout]) -> Drift:
    """The drift of these rollouts; holds one of them at a time."""
    num_rollouts = num_samples = num_forked = num_repeated = num_rollouts_forked = num_without_tokens = 0
    reasons: Counter[ForkReason] = Counter()
    for rollout in rollouts:
        if not rollout.turns or any(turn.sampled is None for turn in rollout.turns):
            num_without_tokens += 1
            continue
        samples = [strand for strand in strands_of(rollout.turns, rollout.job.key) if strand.is_trained]
        forks = samples[1:]
        num_rollouts += 1
        num_samples += len(samples)
        num_forked += len(forks)
        num_rollouts_forked += bool(forks)
        num_repeated += sum(fork.num_kept for fork in forks)
        reasons.update(fork.fork for fork in forks if fork.fork is not None)
    return Drift(
        num_rollouts=num_rollouts,
        num_samples=num_samples,
        num_forked=num_forked,
        by_reason={reason: reasons[reason] for reason in ForkReason if reasons[reason]},
        num_tokens_repeated=num_repeated,
        num_rollouts_forked=num_rollouts_forked,
        num_without_tokens=num_without_tokens,
    )


def drift_lines(report: Drift) -> list[str]:
    """The report for people: `3 of 256 samples forked: 2 template, 1 context edit; 1,204 tokens carried twice`."""
    lines: list[str] = []
    if report.num_rollouts:
        lines.append(_forks_line(report))
    if report.num_rollouts_forked:
        lines.append(f"{report.num_rollouts_forked:,} of {_counted(report.num_rollouts, 'rollout')} forked")
    if report.num_without_tokens:
        lines.append(f"{_counted(report.num_without_tokens, 'rollout')} without tokens, of which nothing is known")
    return lines or ["no rollouts"]


def _forks_line(report: Drift) -> str:
    samples = _counted(report.num_samples, "sample")
    if not report.num_forked:
        return f"none of {samples} forked"
    reasons = sorted(report.by_reason.items(), key=lambda item: -item[1])
    why = [f"{number:,} {reason.replace('_', ' ')}" for reason, number in reasons]
    if report.num_unexplained:
        why.append(f"{report.num_unexplained:,} for no stated reason")
    tokens = _counted(report.num_tokens_repeated, "token")
    return f"{report.num_forked:,} of {samples} forked: {', '.join(why)}; {tokens} carried twice"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""A rollout as verl's agent loop outputs: one for each of its rows, the last with the score."""

from __future__ import annotations

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from slipstream.bridges.outgoing import Member, OutRow
from slipstream.types import Rollout, SpanKind


def outputs_of(member: Member, *, step: int) -> list[AgentLoopOutput]:
    """`step` is the policy's version where nothing was sampled."""
    rollout = member.rollout
    reward = member.score if rollout.verdict is None else rollout.verdict.reward
    extra = {"reward": reward, "trusted": float(rollout.verdict is not None), "ending": str(rollout.ending.reason)}
    return [
        AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.mask,
            response_logprobs=row.logprobs,
            reward_score=member.score,
            num_turns=len(rollout.turns),
            metrics=_metrics(rollout),
            extra_fields={"reward_extra_info": dict(extra), **_versions(row, step)},
        )
        for row in member.rows
    ]


def _metrics(rollout: Rollout) -> AgentLoopMetrics:
    return AgentLoopMetrics(
        generate_sequences=_seconds(rollout, SpanKind.MODEL),
        tool_calls=_seconds(rollout, SpanKind.TOOL),
        compute_score=_seconds(rollout, SpanKind.GRADE),
    )


def _seconds(rollout: Rollout, kind: SpanKind) -> float:
    return sum(span.seconds for span in rollout.spans if span.kind is kind)


def _versions(row: OutRow, step: int) -> dict[str, int]:
    """verl reads from these how stale a row is."""
    sampled = [version for version in row.versions if version >= 0] or [step]
    return {"min_global_steps": min(sampled), "max_global_steps": max(sampled)}

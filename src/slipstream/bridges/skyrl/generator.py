"""SkyRL-train's generator: a whole batch of its prompts goes to our dispatcher.

Input: a GeneratorInput, in which each prompt appears as often as it is to be sampled. Output: a GeneratorOutput in the
same order. With step-wise trajectories a rollout of several sequences has a row for each, one after the other, the last
with `is_last_step`; without, each rollout is one row, and one of several sequences is refused.
Invariants: every requested rollout is there. One that is not learnt from has mask 0, and a batch that has
nothing else is an error, as `outgoing` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from skyrl.train.generators.base import GeneratorInterface

from slipstream.bridges.client import Sampling
from slipstream.bridges.driven import EVAL, TRAIN, Driver, PromptRequest
from slipstream.bridges.outgoing import Member, Outgoing, RowUse, make_evaluated, make_outgoing
from slipstream.errors import ConfigError
from slipstream.types import Rollout, SpanKind, Trust


class SlipstreamGenerator(GeneratorInterface):  # type: ignore[misc]  # skyrl is not typed
    def __init__(self, driver: Driver, *, step_wise: bool, passes_through: bool) -> None:
        """`passes_through`: scores are our advantages, for the estimator of `advantage`; else they are rewards."""
        self.driver = driver
        self._step_wise = step_wise
        self._passes_through = passes_through

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        phase, step = _place(input_batch)
        self._sample_as(phase, input_batch.get("sampling_params"))
        asked = _asked(input_batch)
        groups = await self.driver.run(asked, phase=phase, step=step)
        out = self._outgoing(groups, phase)
        members = [member for group in out.groups for member in group]
        if not self._step_wise:
            _check_single(members)
        await self.driver.note(out.metrics, phase=phase, step=step)
        return _output(members, input_batch["trajectory_ids"], out.metrics, step_wise=self._step_wise)

    def _outgoing(self, groups: Sequence[Sequence[Rollout]], phase: str) -> Outgoing:
        driver = self.driver
        if phase == EVAL:
            return make_evaluated(groups, end_id=driver.end_id)
        return make_outgoing(
            groups,
            end_id=driver.end_id,
            estimator=driver.estimator if self._passes_through else None,
            max_tokens=driver.config.max_sample_tokens,
            solved_at=driver.config.solved_at,
        )

    def _sample_as(self, phase: str, params: Mapping[str, Any] | None) -> None:
        """Use the trainer's settings, which its loss assumes."""
        if params:
            named = {name: params[name] for name in ("temperature", "top_p", "top_k") if params.get(name) is not None}
            self.driver.completer.sampling[phase] = Sampling(**named)

    async def aclose(self) -> None:
        await self.driver.aclose()


def _place(given: Mapping[str, Any]) -> tuple[str, int]:
    about = given.get("batch_metadata")
    if about is None or given.get("trajectory_ids") is None:
        raise ConfigError("the trainer gave no batch_metadata or no trajectory_ids: use the one of skyrl 0.4.0")
    return (EVAL if about.training_phase == "eval" else TRAIN), int(about.global_step)


def _asked(given: Mapping[str, Any]) -> list[PromptRequest]:
    """The prompts, each with the number of its rollouts: those of one prompt are consecutive."""
    ids = [each.instance_id for each in given["trajectory_ids"]]
    asked = []
    start = 0
    for instance_id, run in groupby(ids):
        num = len(list(run))
        extras = (given.get("env_extras") or [{}] * len(ids))[start]
        if not extras.get("task_id"):
            raise ConfigError(f"prompt {instance_id} has no task_id: write data.train_data with write_prompts")
        asked.append(PromptRequest(task_id=str(extras["task_id"]), num=num))
        start += num
    return asked


def _check_single(members: Sequence[Member]) -> None:
    for member in members:
        if len(member.rows) > 1:
            raise ConfigError(
                f"rollout {member.rollout.job.key} is {len(member.rows)} sequences, and the trainer takes one: set "
                "generator.step_wise_trajectories=true"
            )


def _output(
    members: Sequence[Member], trajectory_ids: Sequence[Any], metrics: Mapping[str, float], *, step_wise: bool
) -> dict[str, Any]:
    rows = [
        (member, row, trajectory_id, place == len(member.rows) - 1)
        for member, trajectory_id in zip(members, trajectory_ids, strict=True)
        for place, row in enumerate(member.rows)
    ]
    model, tool = ([_seconds(member.rollout, kind) for member in members] for kind in (SpanKind.MODEL, SpanKind.TOOL))
    return {
        "prompt_token_ids": [row.prompt_ids for _, row, _, _ in rows],
        "response_ids": [row.response_ids for _, row, _, _ in rows],
        "rewards": [member.score for member, _, _, _ in rows],
        "loss_masks": [row.mask for _, row, _, _ in rows],
        "stop_reasons": [_stop_reason(member) for member, _, _, _ in rows],
        "rollout_metrics": {f"slipstream/{name}": value for name, value in metrics.items()},
        "rollout_logprobs": [row.logprobs for _, row, _, _ in rows],
        "trajectory_ids": [trajectory_id for _, _, trajectory_id, _ in rows],
        "trajectory_generation_times": [_seconds(member.rollout, SpanKind.RUN) for member in members],
        "trajectory_time_splits": {"llm": model, "env": tool},
        "rollout_expert_indices": None,
        "rollout_sample_support": None,
        "is_last_step": [is_last for _, _, _, is_last in rows] if step_wise else None,
        "env_metrics": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }


def _stop_reason(member: Member) -> str:
    if member.use is RowUse.UNTRUSTED:
        return "error"
    return "length" if member.rollout.trust is Trust.MASKED else "stop"


def _seconds(rollout: Rollout, kind: SpanKind) -> float:
    return sum(span.seconds for span in rollout.spans if span.kind is kind)

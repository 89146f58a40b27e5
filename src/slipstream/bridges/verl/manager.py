"""verl's v1 path: a whole batch of prompts goes to our dispatcher, and rows come out through the TransferQueue.

Input: a TensorDict of prompts, as verl's v1 trainers send it. Output: for each prompt `rollout.n` rollouts, each of one
row or several, put into the queue by verl's own post-processing under `{uid}_{rollout}_{row}`; then the status of the
prompt.
Invariants: a prompt is `finished` only when all its rows are in the queue; if a batch cannot be made, or there is
nothing to learn from in it, its prompts are a `failure` and none of its rows is in the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from slipstream.bridges.driven import EVAL, PASS_THROUGH, TRAIN, PromptRequest
from slipstream.bridges.outgoing import Member, make_evaluated, make_outgoing
from slipstream.bridges.verl.advantage import register
from slipstream.bridges.verl.output import outputs_of
from slipstream.bridges.verl.setup import SEVERAL_ROWS, check_config, make_driver, task_id_of
from slipstream.errors import ConfigError

logger = logging.getLogger(__name__)

_NOT_FOR_ROWS = ("agent_name", "__rollout_n__", "__do_sample__")


class SlipstreamWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc]  # the class inside verl's actor
    """Makes the rollouts of every batch: one actor, so that one dispatcher holds the limits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._driver = make_driver(self.config, self.llm_client, self.tokenizer)
        self._passes_through = self.config.algorithm.adv_estimator == PASS_THROUGH

    async def generate_sequences(self, batch: Any) -> None:
        """Start a batch, which continues after the return, as in verl's own worker."""
        validate = bool(batch["validate"]) if "validate" in batch.keys() else False  # noqa: SIM118  see _row
        batch.pop("validate", None)
        prompts = [_row(batch, place) for place in range(len(batch))]
        task = asyncio.create_task(self._make(prompts, validate=validate))
        self.background_tasks.add(task)
        task.add_done_callback(self.background_tasks.discard)

    async def _make(self, prompts: Sequence[dict[str, Any]], *, validate: bool) -> None:
        uids = [prompt["uid"] for prompt in prompts]
        partition = "val" if validate else "train"
        await _set_status(uids, partition, "running")
        try:
            groups = await self._groups(prompts, validate=validate)
        except Exception:  # the status tells the trainer: nothing here may end the actor
            logger.exception("a batch of %d prompts could not be made", len(prompts))
            await _set_status(uids, partition, "failure")
            return
        for prompt, group in zip(prompts, groups, strict=True):
            try:
                await self._put(prompt, group, validate=validate)
                await _set_status([prompt["uid"]], partition, "finished")
            except Exception:
                logger.exception("the rows of prompt %s could not be put into the queue", prompt["uid"])
                await _set_status([prompt["uid"]], partition, "failure")

    async def _groups(self, prompts: Sequence[dict[str, Any]], *, validate: bool) -> Sequence[Sequence[Member]]:
        rollout = self.config.actor_rollout_ref.rollout
        num = rollout.val_kwargs.n if validate else rollout.n
        asked = [PromptRequest(task_id=task_id_of(each), num=each.get("__rollout_n__", num)) for each in prompts]
        driver, phase, step = self._driver, EVAL if validate else TRAIN, int(prompts[0]["global_steps"])
        groups = await driver.run(asked, phase=phase, step=step)
        if validate:
            out = make_evaluated(groups, end_id=driver.end_id)
        else:
            out = make_outgoing(
                groups,
                end_id=driver.end_id,
                estimator=driver.estimator if self._passes_through else None,
                max_tokens=driver.config.max_sample_tokens,
                solved_at=driver.config.solved_at,
            )
            self._check_rows(out.groups)
        await driver.note(out.metrics, phase=phase, step=step)
        return out.groups

    def _check_rows(self, groups: Sequence[Sequence[Member]]) -> None:
        estimator = self.config.algorithm.adv_estimator
        several = next((each for group in groups for each in group if len(each.rows) > 1), None)
        if several is not None and estimator not in SEVERAL_ROWS:
            raise ConfigError(
                f"rollout {several.rollout.job.key} has {len(several.rows)} rows, and algorithm.adv_estimator="
                f"{estimator} would count each of them: use one of {', '.join(SEVERAL_ROWS)}"
            )

    async def _put(self, prompt: Mapping[str, Any], group: Sequence[Member], *, validate: bool) -> None:
        fields = {name: value for name, value in prompt.items() if name not in _NOT_FOR_ROWS}
        for number, member in enumerate(group):
            outputs = outputs_of(member, step=int(prompt["global_steps"]))
            await self._agent_loop_postprocess(outputs, validate, **fields, session_id=number)


class SlipstreamManager(AgentLoopManagerTQ):  # type: ignore[misc]  # verl is not typed
    """`actor_rollout_ref.rollout.agent.agent_loop_manager_class=slipstream.bridges.verl.manager.SlipstreamManager`"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_config(self.config)
        register()
        if self.rollout_config.agent.num_workers != 1:
            raise ConfigError(
                f"actor_rollout_ref.rollout.agent.num_workers={self.rollout_config.agent.num_workers}: one dispatcher "
                "holds the limits of a run, so set it to 1"
            )
        self.agent_loop_workers_class = ray.remote(SlipstreamWorker)


async def _set_status(uids: Sequence[str], partition: str, status: str) -> None:
    for uid in uids:
        await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": status})


def _row(batch: Any, place: int) -> dict[str, Any]:
    """One row of a TensorDict, as plain values and tensors."""
    row = {}
    for name in batch.keys():  # noqa: SIM118  a TensorDict iterates over its rows
        value = batch.get(name)
        kind = type(value).__name__
        if kind == "NonTensorData":
            row[name] = value.data
        elif kind == "NonTensorStack":
            row[name] = value[place].data
        else:
            row[name] = value[place]
    return row

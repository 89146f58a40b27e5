"""An agent loop for verl that runs one row at a time, for trainers that use verl's own workers.

Input: a row with a task's id. Output: one AgentLoopOutput, of one sequence.
Invariants: a rollout with several sequences, or one that cannot be trusted, raises: a single row knows nothing of its
group, so there is no neutral reward for it. `manager` handles both.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from slipstream.batch.merge import merge
from slipstream.bridges.client import Sampling
from slipstream.bridges.driven import EVAL, TRAIN, Driver, PromptRequest
from slipstream.bridges.outgoing import Member, RowUse, rows_of
from slipstream.bridges.verl.output import outputs_of
from slipstream.bridges.verl.setup import make_driver, task_id_of
from slipstream.errors import BridgeError, ConfigError
from slipstream.types import Rollout

_drivers: dict[int, Driver] = {}
"""By client: verl makes a loop for each row, and all rows of a worker share one client."""


@register("slipstream")
class SlipstreamAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is not typed
    """`actor_rollout_ref.rollout.agent.default_agent_loop=slipstream`, in a worker that has imported this module."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        driver = self._driver()
        train = driver.completer.sampling[TRAIN]
        asked = Sampling(**{name: sampling_params[name] for name in ("temperature", "top_p", "top_k")})
        phase, step = TRAIN if asked == train else EVAL, int(row.get("global_steps", 0))
        ((rollout,),) = await driver.run([PromptRequest(task_id=task_id_of(row), num=1)], phase=phase, step=step)
        (output,) = outputs_of(self._member(rollout, driver), step=step)
        return output

    def _driver(self) -> Driver:
        key = id(self.server_manager)
        if key not in _drivers:
            _drivers[key] = make_driver(self.config, self.server_manager, self.tokenizer)
        return _drivers[key]

    def _member(self, rollout: Rollout, driver: Driver) -> Member:
        if rollout.verdict is None:
            raise BridgeError(
                f"rollout {rollout.job.key} ended by {rollout.ending.reason} ({rollout.ending.detail}) and cannot be "
                "trusted: this row is left out; with slipstream.bridges.verl.manager.SlipstreamManager it stays, masked"
            )
        prompt_length, response_length = self.rollout_config.prompt_length, self.rollout_config.response_length
        num_prompt = len(rollout.turns[0].added) if rollout.turns else 0
        if num_prompt > prompt_length:
            raise ConfigError(
                f"the prompt of task {rollout.job.key.task_id} has {num_prompt} tokens: set data.max_prompt_length "
                f"above {prompt_length}"
            )
        samples = merge(rollout, max_tokens=num_prompt + response_length).samples
        if len(samples) > 1:
            raise ConfigError(
                f"rollout {rollout.job.key} is {len(samples)} sequences, and an agent loop returns one: use "
                "slipstream.bridges.verl.manager.SlipstreamManager as agent_loop_manager_class"
            )
        rows = rows_of(samples, driver.end_id, in_loss=rollout.trust.in_loss)
        use = RowUse.LEARNT if rollout.trust.in_loss else RowUse.LIMIT
        return Member(rollout=rollout, rows=rows, score=rollout.verdict.reward, use=use)

"""The trainer of `trainer`, with what it computes in each step written down beside what it was given.

`slipstream.observe=FILE` starts it. FILE gets a line for each step: the trainer's logprobs against those that the
tokens were sampled with, its advantages row by row, what the update changed, the engine's logprobs under the new
weights against the trainer's, and SkyRL-train's own figures. `step_report` compares the lines with the run store.
Invariants: nothing of what SkyRL-train computes or trains on is changed. A step takes two more passes over its rows,
one of the trainer's and one of the engine's.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.utils.callbacks import TrainingCallback

from slipstream.bridges.skyrl.trainer import SlipstreamTrainer
from slipstream.bridges.step_log import ScoredRow, StepLog, described_row, difference, kept_rows, of_prompt, where

_FIGURES = ("policy/", "loss/", "reward/", "trainer/")


class ObservedTrainer(SlipstreamTrainer):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._log = StepLog(Path(self.cfg.slipstream.observe))
        self._line: dict[str, Any] = {}
        self._rows: list[ScoredRow] = []
        self._tasks: dict[str, str] = {}
        self._places: list[tuple[str, int, int]] = []
        self._is_first = True
        self.add_callback(_AfterSync())

    async def generate(self, input_batch: Mapping[str, Any]) -> Any:
        if self._is_first:
            # After a restart: are the engine's logprobs still those of the checkpoint's weights?
            self._is_first = False
            kept = self._log.kept_of(self.global_step - 1)
            if kept:
                answered = await self._ask(self.inference_engine_client, kept)
                pairs = [(row.logprobs, said) for row, said in zip(kept, answered, strict=True)]
                self._line["engine_after_restart"] = difference(pairs)
        self._tasks = {
            each.instance_id: str(extras["task_id"])
            for each, extras in zip(input_batch["trajectory_ids"], input_batch["env_extras"], strict=True)
        }
        return await super().generate(input_batch)

    def convert_to_training_input(self, generator_output: Mapping[str, Any], uids: Sequence[str]) -> Any:
        seen: Counter[tuple[str, int]] = Counter()
        self._places = []
        for each in generator_output["trajectory_ids"]:
            place = self._tasks[each.instance_id], int(each.repetition_id)
            self._places.append((*place, seen[place]))
            seen[place] += 1
        return super().convert_to_training_input(generator_output, uids)

    def train_critic_and_policy(self, data: Any) -> Any:
        # Before the update, which scales the advantages.
        before = _Columns(data, len(self._places))
        status = super().train_critic_and_policy(data)
        new = self._execute_forward_pass(
            "policy",
            data.select(keys=["sequences", "attention_mask"], metadata_keys=["response_length"]),
            key="logprobs",
            mini_batch_boundaries=data.metadata["policy_mini_batch_boundaries"],
        )
        after = before.of_responses(new)
        rows = range(len(self._places))
        self._line |= {
            "rows": [
                described_row(
                    task_id=task_id,
                    sample=sample,
                    row=row,
                    mask=before.mask[place],
                    advantages=before.advantages[place],
                    outside=before.outside[place],
                )
                for place, (task_id, sample, row) in enumerate(self._places)
            ],
            "trainer_against_passed": difference(
                [(before.trained(before.old, row), before.trained(before.passed, row)) for row in rows]
            ),
            "update_moved": difference([(before.trained(before.old, row), before.trained(after, row)) for row in rows]),
        }
        self._rows = [
            ScoredRow(ids=before.ids[row], mask=before.mask[row], logprobs=before.trained(after, row))
            for row in rows
            if any(before.mask[row])
        ]
        return status

    def write_line(self, logs: Mapping[str, Any]) -> None:
        """What the engine says under the new weights, and the step's figures. SkyRL-train calls it inside its event
        loop, so the engine is asked from another."""
        client = copy.copy(self.inference_engine_client)  # one with connections of its own, as SkyRL-train copies it
        with ThreadPoolExecutor(1) as thread:
            answered = thread.submit(asyncio.run, self._ask_and_close(client, self._rows)).result()
        pairs = [(row.logprobs, said) for row, said in zip(self._rows, answered, strict=True)]
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        self._log.append(
            self._line
            | {
                "step": self.global_step,
                "engine_after_sync": difference(pairs),
                "grad_norm": numbers.get("policy/grad_norm", 0.0),
                "seconds": {
                    name.removeprefix("timing/"): value for name, value in numbers.items() if name.startswith("timing/")
                },
                "figures": {name: value for name, value in numbers.items() if name.startswith(_FIGURES)},
                "kept": kept_rows(self._rows, answered),
            }
        )
        self._line = {}

    async def _ask_and_close(self, client: Any, rows: Sequence[ScoredRow]) -> list[list[float]]:
        try:
            return await self._ask(client, rows)
        finally:
            await client.aclose()

    async def _ask(self, client: Any, rows: Sequence[ScoredRow]) -> list[list[float]]:
        """The engine's logprobs of the tokens that were learnt from, by SkyRL-train's own client."""

        async def ask(row: ScoredRow) -> list[float]:
            output = await client.sample(
                {
                    "json": {
                        "model": resolve_policy_model_name(self.cfg),
                        "prompt": {"chunks": [{"type": "encoded_text", "tokens": row.ids}]},
                        "sampling_params": {"temperature": 1.0, "max_tokens": 1},
                        "include_prompt_logprobs": True,
                    }
                }
            )
            return of_prompt(output["prompt_logprobs"], row)

        return await asyncio.gather(*(ask(row) for row in rows))


class _AfterSync(TrainingCallback):  # type: ignore[misc]  # skyrl is not typed
    """SkyRL-train logs a step when its weights have been sent."""

    def on_log(self, trainer: ObservedTrainer, callback_input: Any, control: Any) -> None:
        trainer.write_line(callback_input.logs)


class _Columns:
    """A batch as plain lists, without the rows that SkyRL-train adds so that it can be divided."""

    def __init__(self, data: Any, num: int) -> None:
        self._inside = [row.bool() for row in data["response_mask"][:num]]
        self.ids: list[list[int]] = [
            row[kept.bool()].tolist()
            for row, kept in zip(data["sequences"][:num], data["attention_mask"][:num], strict=True)
        ]
        self.mask: list[list[int]] = [[int(bit) for bit in row] for row in self.of_responses(data["loss_mask"])]
        self.advantages = self.of_responses(data["advantages"])
        """SkyRL-train gives one to every token of a response: its loss applies the mask."""
        self.outside = [bool(row.any()) for row in (data["advantages"] * (1 - data["response_mask"]))[:num]]
        self.old = self.of_responses(data["action_log_probs"])
        """The trainer's logprobs before the update."""
        self.passed = self.of_responses(data["rollout_logprobs"])

    def of_responses(self, values: Any) -> list[list[float]]:
        return [row[kept].tolist() for row, kept in zip(values[: len(self._inside)], self._inside, strict=True)]

    def trained(self, values: Sequence[Sequence[float]], row: int) -> list[float]:
        return where(values[row], self.mask[row])

"""verl's own synchronous trainer, with what it computes in each step written down beside what it was given.

`slipstream.observe=FILE` starts it. FILE gets a line for each step: the trainer's logprobs against those that the
tokens were sampled with, its advantages row by row, what the update changed, the engine's logprobs under the new
weights against the trainer's, and verl's own figures. `step_report` compares the lines with the run store.
Invariants: nothing of what verl computes or trains on is changed. A step takes two more passes over its rows, one of
the trainer's and one of the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transfer_queue as tq
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_from_nested

from slipstream.bridges.step_log import ScoredRow, StepLog, described_row, difference, kept_rows, of_prompt, where

_FIGURES = ("actor/", "training/rollout", "training/global_step", "rollout_corr/", "perf/max_memory")


class ObservedTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl is not typed
    """verl's trainer at `trainer.v1.trainer_mode=sync`."""

    def on_init_end(self) -> None:
        super().on_init_end()
        self._line: dict[str, Any] = {}
        self._rows: list[ScoredRow] = []
        self._log = StepLog(Path(self.config.slipstream.observe))
        self._kept = self._log.kept_of(self.global_steps)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        if self._kept:
            # The first step after a restart: are the engine's logprobs still those of the checkpoint's weights?
            answered = self._ask_engine(self._kept)
            pairs = [(row.logprobs, said) for row, said in zip(self._kept, answered, strict=True)]
            self._line["engine_after_restart"] = difference(pairs)
            self._kept = []

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        out = super()._update_actor(batch, metrics)
        self._metrics = metrics
        # The trainer's pass for logprobs once more, asked for as it was before the update.
        after, batch.extra_info = (
            batch.extra_info,
            {
                "calculate_entropy": True,
                "compute_loss": False,
                "temperature": self.config.actor_rollout_ref.rollout.temperature,
            },
        )
        self.actor_rollout_wg.compute_log_prob(batch)
        batch.extra_info = after
        seen = _Columns(batch)
        self._line |= {
            "rows": [seen.described(place) for place in seen.places],
            "trainer_against_passed": difference([(seen.old(place), seen.passed(place)) for place in seen.places]),
            "update_moved": difference([(seen.old(place), seen.new(place)) for place in seen.places]),
        }
        self._rows = [seen.row(place) for place in seen.places if any(seen.mask[place])]
        return out

    def on_step_end(self) -> None:
        super().on_step_end()
        answered = self._ask_engine(self._rows)
        pairs = [(row.logprobs, said) for row, said in zip(self._rows, answered, strict=True)]
        self._line |= {
            "step": self.global_steps,
            "engine_after_sync": difference(pairs),
            "grad_norm": float(self._metrics.get("actor/grad_norm", 0.0)),
            "seconds": {name: float(value) for name, value in self.timing_raw.items() if "/" not in name},
            "figures": {name: float(value) for name, value in self._metrics.items() if name.startswith(_FIGURES)},
            "kept": kept_rows(self._rows, answered),
        }
        self._log.append(self._line)
        self._line = {}

    def _ask_engine(self, rows: Sequence[ScoredRow]) -> list[list[float]]:
        """The engine's logprobs of the tokens that were learnt from, by verl's own client."""
        client = self.get_llm_client()

        async def ask(number: int, row: ScoredRow) -> list[float]:
            output = await client.generate(
                f"observe-{self.global_steps}-{number}",
                prompt_ids=row.ids,
                sampling_params={"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0},
            )
            said = [each[0] for each in output.extra_fields["prompt_logprobs"]]
            # The first of them is of the second token, and the last of none.
            return of_prompt([None, *said[:-1]], row)

        async def ask_all() -> list[list[float]]:
            return await asyncio.gather(*(ask(number, row) for number, row in enumerate(rows)))

        return asyncio.run(ask_all())


class ObservedRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]  # the class inside verl's actor
    """verl's runner, with the observed trainer in place of the synchronous one."""

    def run(self, config: Any) -> None:
        TRAINER_REGISTRY["sync"] = ObservedTrainer
        super().run(config)


class _Columns:
    """A batch after its update, as plain lists."""

    def __init__(self, batch: Any) -> None:
        names = (
            "input_ids",
            "response_mask",
            "advantages",
            "old_log_probs",
            "rollout_log_probs",
            "log_probs",
            "extra_info",
        )
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names))
        self._keys = list(batch.keys)
        self._ids = _lists(data["input_ids"])
        self._advantages = _lists(data["advantages"])
        self._old = _lists(data["old_log_probs"])
        self._passed = _lists(data["rollout_log_probs"])
        self._new = _lists(response_from_nested(data["log_probs"], data["response_mask"]))
        self._info = _lists(data["extra_info"])
        self.mask: list[list[int]] = _lists(data["response_mask"])
        self.places = [place for place, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        """Without the rows that verl adds so that a batch can be divided."""

    def old(self, place: int) -> list[float]:
        """The trainer's logprobs before the update, of what is learnt from."""
        return where(self._old[place], self.mask[place])

    def passed(self, place: int) -> list[float]:
        return where(self._passed[place], self.mask[place])

    def new(self, place: int) -> list[float]:
        return where(self._new[place], self.mask[place])

    def row(self, place: int) -> ScoredRow:
        return ScoredRow(ids=self._ids[place], mask=self.mask[place], logprobs=self.new(place))

    def described(self, place: int) -> dict[str, Any]:
        _, sample, row = self._keys[place].rsplit("_", 2)
        mask, advantages = self.mask[place], self._advantages[place]
        return described_row(
            task_id=self._info[place]["task_id"],
            sample=int(sample),
            row=int(row),
            mask=mask,
            advantages=advantages,
            outside=any(where(advantages, [1 - bit for bit in mask])),
        )


def _lists(rows: Any) -> list[Any]:
    """Of a nested tensor, or of a column of plain values."""
    return [row.tolist() if hasattr(row, "tolist") else row for row in rows]

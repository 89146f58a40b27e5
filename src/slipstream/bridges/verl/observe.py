"""verl's own synchronous trainer, with what it computes in each step written down beside what it was given.

`slipstream.observe=FILE` starts it. FILE gets a line for each step: the trainer's logprobs against those that the
tokens were sampled with, its advantages row by row, what the update changed, the engine's logprobs under the new
weights against the trainer's, and verl's own figures. `report` compares the lines with the run store.
Invariants: nothing of what verl computes or trains on is changed. A step takes two more passes over its rows, one of
the trainer's and one of the engine's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transfer_queue as tq
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_from_nested

NUM_KEPT = 8
"""Rows whose logprobs are kept in FILE, to be computed again after a restart."""

_FIGURES = ("actor/", "training/rollout", "training/global_step", "rollout_corr/", "timing_s/", "perf/max_memory")


class ObservedTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl is not typed
    """verl's trainer at `trainer.v1.trainer_mode=sync`."""

    def on_init_end(self) -> None:
        super().on_init_end()
        self._line: dict[str, Any] = {}
        self._rows: list[_Row] = []
        self._file = Path(self.config.slipstream.observe)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        kept = [json.loads(line) for line in lines]
        self._kept = next((each for each in reversed(kept) if each["step"] == self.global_steps), None)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        if self._kept is not None:
            # The first step after a restart: are the engine's logprobs still those of the checkpoint's weights?
            kept = [_Row(**row) for row in self._kept["kept"]]
            answered = self._ask_engine(kept)
            pairs = [(row.logprobs, said) for row, said in zip(kept, answered, strict=True)]
            self._line["engine_after_restart"] = _difference(pairs)
            self._kept = None

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
            "trainer_against_passed": _difference([(seen.old(place), seen.passed(place)) for place in seen.places]),
            "update_moved": _difference([(seen.old(place), seen.new(place)) for place in seen.places]),
        }
        self._rows = [seen.row(place) for place in seen.places if any(seen.mask[place])]
        return out

    def on_step_end(self) -> None:
        super().on_step_end()
        answered = self._ask_engine(self._rows)
        pairs = [(row.logprobs, said) for row, said in zip(self._rows, answered, strict=True)]
        figures = {name: float(value) for name, value in self._metrics.items() if name.startswith(_FIGURES)}
        self._line |= {
            "step": self.global_steps,
            "engine_after_sync": _difference(pairs),
            "figures": figures | {f"timing_s/{name}": float(value) for name, value in self.timing_raw.items()},
            "kept": [
                {"ids": row.ids, "mask": row.mask, "logprobs": said}
                for row, said in list(zip(self._rows, answered, strict=True))[:NUM_KEPT]
            ],
        }
        with self._file.open("a") as file:
            file.write(json.dumps(self._line) + "\n")
        self._line = {}

    def _ask_engine(self, rows: Sequence[_Row]) -> list[list[float]]:
        """The engine's logprobs of the tokens that were learnt from, by verl's own client."""
        client = self.get_llm_client()

        async def ask(number: int, row: _Row) -> list[float]:
            output = await client.generate(
                f"observe-{self.global_steps}-{number}",
                prompt_ids=row.ids,
                sampling_params={"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0},
            )
            said = [each[0] for each in output.extra_fields["prompt_logprobs"]]
            # The first of them is of the second token, and the last of none.
            return _where(said[len(row.ids) - len(row.mask) - 1 : -1], row.mask)

        async def ask_all() -> list[list[float]]:
            return await asyncio.gather(*(ask(number, row) for number, row in enumerate(rows)))

        return asyncio.run(ask_all())


class ObservedRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]  # the class inside verl's actor
    """verl's runner, with the observed trainer in place of the synchronous one."""

    def run(self, config: Any) -> None:
        TRAINER_REGISTRY["sync"] = ObservedTrainer
        super().run(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    ids: list[int]
    mask: list[int]
    """Of the response, the last part of `ids`."""
    logprobs: list[float]
    """Where the mask is 1."""


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
        return _where(self._old[place], self.mask[place])

    def passed(self, place: int) -> list[float]:
        return _where(self._passed[place], self.mask[place])

    def new(self, place: int) -> list[float]:
        return _where(self._new[place], self.mask[place])

    def row(self, place: int) -> _Row:
        return _Row(ids=self._ids[place], mask=self.mask[place], logprobs=self.new(place))

    def described(self, place: int) -> dict[str, Any]:
        _, sample, row = self._keys[place].rsplit("_", 2)
        mask, advantages = self.mask[place], self._advantages[place]
        return {
            "task_id": self._info[place]["task_id"],
            "sample": int(sample),
            "row": int(row),
            "num_trained": sum(mask),
            "advantages": sorted(set(_where(advantages, mask))),
            "outside": any(_where(advantages, [1 - bit for bit in mask])),
        }


def _lists(rows: Any) -> list[Any]:
    """Of a nested tensor, or of a column of plain values."""
    return [row.tolist() if hasattr(row, "tolist") else row for row in rows]


def _where(values: Sequence[float], mask: Sequence[int]) -> list[float]:
    return [float(value) for value, bit in zip(values, mask, strict=True) if bit]


def _difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """Of logprobs, in nats: over all tokens."""
    found = [abs(one - other) for ones, others in pairs for one, other in zip(ones, others, strict=True)]
    return {"tokens": len(found), "mean": sum(found) / max(1, len(found)), "max": max(found, default=0.0)}

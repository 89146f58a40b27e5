"""What an observed trainer computed in each step, written down beside what it was given: a line of JSON for each step.

`verl.observe` and `skyrl.observe` write it, `step_report` compares it with the run store. Nothing of torch or of a
trainer is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

NUM_KEPT = 8
"""Rows whose logprobs by the engine are kept, to be computed again after a restart."""

Difference: TypeAlias = dict[str, float]
"""Between logprobs, in nats: `mean` and `max` over so many `tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A sequence that was learnt from, and somebody's logprobs of its trained tokens."""

    ids: list[int]
    mask: list[int]
    """Of the response, the last part of `ids`."""
    logprobs: list[float]
    """Where the mask is 1."""


class StepLog:
    """The lines of one file, which goes on after a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def kept_of(self, step: int) -> list[ScoredRow]:
        """What the engine said after so many steps; empty if that step was not written."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found = [line for line in map(json.loads, lines) if line["step"] == step]
        return [ScoredRow(**row) for row in found[-1]["kept"]] if found else []

    def append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def kept_rows(rows: Sequence[ScoredRow], answered: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Some of the rows, with the engine's logprobs."""
    return [
        {"ids": row.ids, "mask": row.mask, "logprobs": list(said)}
        for row, said in list(zip(rows, answered, strict=True))[:NUM_KEPT]
    ]


def described_row(
    *, task_id: str, sample: int, row: int, mask: Sequence[int], advantages: Sequence[float], outside: bool
) -> dict[str, Any]:
    """Which row of which rollout it is, and the advantages that the trainer gave its trained tokens. `outside`: it gave
    one where nothing may have any."""
    return {
        "task_id": task_id,
        "sample": sample,
        "row": row,
        "num_trained": sum(mask),
        "advantages": sorted(set(where(advantages, mask))),
        "outside": outside,
    }


def of_prompt(said: Sequence[Any], row: ScoredRow) -> list[float]:
    """From an engine's logprobs for each token of `row.ids` as a prompt: those of the trained tokens."""
    return where(said[len(row.ids) - len(row.mask) :], row.mask)


def where(values: Sequence[float], mask: Sequence[int]) -> list[float]:
    return [float(value) for value, bit in zip(values, mask, strict=True) if bit]


def difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Difference:
    """Over all tokens of all rows."""
    found = [abs(one - other) for ones, others in pairs for one, other in zip(ones, others, strict=True)]
    return {"tokens": len(found), "mean": sum(found) / max(1, len(found)), "max": max(found, default=0.0)}

"""An exported sample as columns, the same in JSONL and in Parquet, and back.

The columns and their order are `COLUMNS`. Token columns are arrays, and text and numbers are not portable yet (see
`portable`). Invariant: reading back gives an equal sample.
"""

from __future__ import annotations

from array import array
from typing import Any

from slipstream.export.samples import ExportedSample
from slipstream.messages import ReadFields, from_chat, to_chat
from slipstream.types import EndReason, ForkReason, Trust, token_ids

COLUMNS = (
    "run", "phase", "step", "task_id", "sample", "attempt", "part", "branch", "fork", "end_reason", "end_detail",
    "trust", "answer", "in_loss", "reward", "reward_components", "reward_detail", "advantage", "input_ids",
    "loss_mask", "logprobs", "versions", "num_truncated", "turns", "messages",
)  # fmt: skip


def fields_of(sample: ExportedSample) -> dict[str, Any]:
    return {
        **{name: getattr(sample, name) for name in COLUMNS},
        "fork": None if sample.fork is None else sample.fork.value,
        "end_reason": sample.end_reason.value,
        "trust": sample.trust.value,
        "reward_components": [{"name": name, "value": value} for name, value in sample.reward_components.items()],
        "turns": list(sample.turns),
        "messages": [to_chat(message) for message in sample.messages],
    }


def sample_of(fields: ReadFields) -> ExportedSample:
    """The inverse of `fields_of`. Raises LookupError, ValueError or TypeError for anything else."""
    if fields.keys() != set(COLUMNS):
        differing = ", ".join(sorted(fields.keys() ^ set(COLUMNS)))
        raise ValueError(f"the columns are not those of an export: {differing}")
    return ExportedSample(
        **{
            **fields,
            "fork": None if fields["fork"] is None else ForkReason(fields["fork"]),
            "end_reason": EndReason(fields["end_reason"]),
            "trust": Trust(fields["trust"]),
            "reward_components": {item["name"]: item["value"] for item in fields["reward_components"]},
            "input_ids": None if fields["input_ids"] is None else token_ids(fields["input_ids"]),
            "loss_mask": None if fields["loss_mask"] is None else array("b", fields["loss_mask"]),
            "logprobs": None if fields["logprobs"] is None else array("f", fields["logprobs"]),
            "versions": None if fields["versions"] is None else array("i", fields["versions"]),
            "turns": tuple(fields["turns"]),
            "messages": tuple(from_chat(message) for message in fields["messages"]),
        }
    )

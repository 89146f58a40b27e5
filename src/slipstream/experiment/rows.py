"""What is kept of a rollout: a row of plain figures, without its tokens.

Input: a rollout. Output: a Row, and lines of a file that a kill cannot damage. Invariants: a row has no text of the
model or of a tool, except names of tools that the task offers; a rollout without a verdict has the reward None.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.types import Json, Role, Rollout, SpanKind

OTHER = "other"
"""Calls of tools that the task does not offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    task: str
    sample: int
    reward: float | None
    """None without a verdict."""
    ending: str
    turns: int
    prompt_tokens: int
    """Of the longest context."""
    sampled_tokens: int
    seconds: float
    """From the agent's first turn to its last, sandbox and grading not included."""
    calls: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    """Calls that were answered by an error."""
    malformed: int = 0
    """Calls that could not be read."""
    no_call: int = 0
    """Turns without a call."""
    hints: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.sample

    def as_json(self) -> list[Json]:
        return [
            self.task,
            self.sample,
            self.reward,
            self.ending,
            self.turns,
            self.prompt_tokens,
            self.sampled_tokens,
            round(self.seconds, 2),
            dict(self.calls),
            dict(self.failed),
            self.malformed,
            self.no_call,
            self.hints,
        ]

    @staticmethod
    def from_json(value: list[Any]) -> Row:
        """Raises ValueError if it is not what `as_json` gave."""
        return Row(**dict(zip(COLUMNS, value, strict=True)))


COLUMNS = (
    "task", "sample", "reward", "ending", "turns", "prompt_tokens", "sampled_tokens", "seconds", "calls", "failed",
    "malformed", "no_call", "hints",
)  # fmt: skip


def row_of(rollout: Rollout, *, tools: Collection[str]) -> Row:
    """`tools`: names that the task offers."""
    calls, failed = Counter[str](), Counter[str]()
    malformed = no_call = hints = 0
    for turn in rollout.turns:
        if not turn.messages:
            continue
        *told, reply = turn.messages
        no_call += not reply.calls
        for call in reply.calls:
            malformed += call.problem is not None
            calls[call.name if call.name in tools else OTHER] += 1
        for message in told:
            hints += len(message.hints)
            if message.role is Role.TOOL and message.is_error:
                failed[message.name if message.name in tools else OTHER] += 1
    return Row(
        task=rollout.job.key.task_id,
        sample=rollout.job.key.sample,
        reward=None if rollout.verdict is None else rollout.verdict.reward,
        ending=rollout.ending.reason.value,
        turns=len(rollout.turns),
        prompt_tokens=max((turn.num_kept + len(turn.added) for turn in rollout.turns), default=0),
        sampled_tokens=sum(len(turn.sampled.ids) for turn in rollout.turns if turn.sampled is not None),
        seconds=sum(span.seconds for span in rollout.spans if span.kind is SpanKind.RUN),
        calls=dict(calls),
        failed=dict(failed),
        malformed=malformed,
        no_call=no_call,
        hints=hints,
    )


class RowFile:
    """Rows as lines of JSON. What a killed process left unfinished at the end of the file is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[tuple[str, int], Row]:
        return {row.key: row for row in self._lines()}

    def _lines(self) -> Iterator[Row]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                yield Row.from_json(json.loads(line))
            except (ValueError, TypeError):  # torn by a kill: the rollout is in the run store
                continue

    def add(self, rows: Iterable[Row]) -> None:
        lines = [json.dumps(row.as_json(), separators=(",", ":")) for row in rows]
        if not lines:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            if file.tell() and not _ends_whole(self.path):
                file.write("\n")
            file.write("".join(f"{line}\n" for line in lines))


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"

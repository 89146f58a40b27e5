"""A recorded run, as text: its rollouts a line each, or one of them in full.

Invariants: what leaves can be printed. Control characters of a model or a tool are spelled out, so that none of
them reaches the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slipstream.batch.drift import drift, drift_lines
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.printable import one_line, printable
from slipstream.record import RunReader
from slipstream.types import Message, Rollout


def run_lines(rollouts: Iterable[Rollout], *, with_failures: bool = False) -> Iterator[str]:
    """One line for each rollout; `with_failures`: with the last thing that went wrong."""
    for rollout in rollouts:
        reward = "-" if rollout.verdict is None else f"{rollout.verdict.reward:g}"
        line = f"{one_line(str(rollout.job.key))}  {rollout.ending.reason}  reward {reward}  attempt {rollout.attempt}"
        yield f"{line}  {one_line(_what_failed(rollout))}".rstrip() if with_failures else line


def _what_failed(rollout: Rollout) -> str:
    if not rollout.failures:
        return rollout.ending.detail
    last = rollout.failures[-1]
    return f"{last.error} in {last.stage}: {last.message}"


def drift_report(reader: RunReader) -> Iterator[str]:
    """How many samples of the run forked and why, then the rollouts that did."""
    forked: list[tuple[str, str]] = []

    def watched() -> Iterator[Rollout]:
        for rollout in reader.rollouts():
            whys = [turn.fork.value for turn in rollout.turns if turn.fork is not None and turn.trainable]
            if whys:
                forked.append((one_line(str(rollout.job.key)), ", ".join(whys)))
            yield rollout

    yield from drift_lines(drift(watched()))
    for key, whys in forked:
        yield f"{key}  {whys}"


def rollout_lines(reader: RunReader, key: str) -> Iterator[str]:
    """One rollout, message by message."""
    return map(printable, _rollout_lines(reader, key))


def _rollout_lines(reader: RunReader, key: str) -> Iterator[str]:
    rollout = _find(reader, key)
    for turn in reader.turns(rollout.job.key, rollout.attempt):
        sampled = "" if turn.sampled is None else f", {len(turn.sampled.ids)} tokens sampled"
        fork = f", {turn.fork}" if turn.fork is not None else ""
        if turn.fork is not None and turn.parent is not None:
            fork += f", keeps {turn.num_kept} tokens of turn {turn.parent}"
        yield f"--- turn {turn.index}{sampled}{fork}"
        for message in turn.messages:
            yield from _message_lines(message)
    yield f"--- {rollout.ending.reason}" + (f": {rollout.ending.detail}" if rollout.ending.detail else "")
    if rollout.ending.answer is not None:
        yield f"answer: {rollout.ending.answer}"
    if rollout.verdict is not None:
        detail = f" ({rollout.verdict.detail})" if rollout.verdict.detail else ""
        yield f"reward: {rollout.verdict.reward:g}{detail}"
    for failure in rollout.failures:
        yield f"attempt {failure.attempt} failed in {failure.stage}: {failure.error}: {failure.message}"


def _find(reader: RunReader, key: str) -> Rollout:
    keys: list[str] = []
    for rollout in reader.rollouts(with_turns=False):
        name = str(rollout.job.key)
        if key in (name, one_line(name)):  # as it is, or as the list shows it
            return rollout
        keys.append(name)
    raise ConfigError(f'there is no rollout "{key}" in the run{did_you_mean(key, keys)}')


def _message_lines(message: Message) -> Iterator[str]:
    name = f" {message.name}" if message.name else ""
    yield f"[{message.role}{name}]"
    if message.thinking:
        yield f"(thinking) {message.thinking}"
    if message.content:
        yield message.content
    for call in message.calls:
        yield (
            f"{call.name}({call.arguments})" if call.problem is None else f"malformed call ({call.problem}): {call.raw}"
        )

"""A recorded run, as text."""

import asyncio
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.cli.displays.transcript import drift_report, rollout_lines, run_lines
from slipstream.errors import ConfigError
from slipstream.record import RunReader, RunStore
from slipstream.seams import RolloutDone
from slipstream.types import (
    CallProblem,
    Ending,
    EndReason,
    Failure,
    ForkReason,
    Job,
    JobKey,
    Message,
    Role,
    Rollout,
    Sampled,
    StopReason,
    ToolCall,
    Turn,
    Verdict,
    token_ids,
)

SAMPLED = Sampled(ids=token_ids([1, 2]), logprobs=None, versions=array("i", [0, 0]), stop=StopReason.STOP)
GOOD = Rollout(
    job=Job(key=JobKey(phase="eval", step=0, task_id="a", sample=0), seed=1),
    attempt=2,
    ending=Ending(reason=EndReason.FINISHED, answer="42"),
    verdict=Verdict(reward=0.5, detail="half right"),
    turns=(
        Turn(
            index=0,
            sampled=SAMPLED,
            messages=(
                Message(role=Role.USER, content="How many?"),
                Message(
                    role=Role.ASSISTANT,
                    thinking="Count.",
                    calls=(
                        ToolCall(id="1", name="bash", arguments={"command": "wc"}),
                        ToolCall(id="2", name="", problem=CallProblem.BAD_JSON, raw="{"),
                    ),
                ),
            ),
        ),
        Turn(
            index=1,
            branch=1,
            parent=0,
            num_kept=1,
            fork=ForkReason.CONTEXT_EDIT,
            sampled=Sampled.at_version([7], None, version=0, stop=StopReason.STOP),
            messages=(Message(role=Role.TOOL, name="bash", content="\x1b[2J42"), Message(role=Role.ASSISTANT)),
        ),
    ),
    failures=(Failure(attempt=1, stage="init", error="SandboxError", message="no room"),),
)
LOST = Rollout(
    job=Job(key=JobKey(phase="eval", step=0, task_id="b", sample=0), seed=1),
    attempt=3,
    ending=Ending(reason=EndReason.INFRASTRUCTURE, detail="gone"),
)


@pytest.fixture
def reader(tmp_path: Path) -> RunReader:
    async def main() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            for rollout in (GOOD, LOST):
                store.append(RolloutDone(rollout=rollout))

    asyncio.run(main())
    return RunStore.read(tmp_path / "run")


def test_a_run_is_a_line_for_each_rollout(reader: RunReader) -> None:
    assert list(run_lines(reader.rollouts())) == [
        "eval/0/a/0  finished  reward 0.5  attempt 2",
        "eval/0/b/0  infrastructure  reward -  attempt 3",
    ]


def test_a_rollout_is_told_message_by_message(reader: RunReader) -> None:
    assert list(rollout_lines(reader, "eval/0/a/0")) == [
        "--- turn 0, 2 tokens sampled",
        "[user]",
        "How many?",
        "[assistant]",
        "(thinking) Count.",
        "bash({'command': 'wc'})",
        "malformed call (bad_json): {",
        "--- turn 1, 1 tokens sampled, context_edit, keeps 1 tokens of turn 0",
        "[tool bash]",
        "\\x1b[2J42",
        "[assistant]",
        "--- finished",
        "answer: 42",
        "reward: 0.5 (half right)",
        "attempt 1 failed in init: SandboxError: no room",
    ]


def test_the_drift_of_a_run_is_told_with_the_rollouts_that_forked(reader: RunReader) -> None:
    assert list(drift_report(reader)) == [
        "1 of 2 samples forked: 1 context edit; 1 token carried twice",
        "1 of 1 rollout forked",
        "1 rollout without tokens, of which nothing is known",
        "eval/0/a/0  context_edit",
    ]


def test_a_rollout_without_a_verdict_says_why_it_ended(reader: RunReader) -> None:
    assert list(rollout_lines(reader, "eval/0/b/0")) == ["--- infrastructure: gone"]


def test_an_unknown_rollout_names_the_nearest(reader: RunReader) -> None:
    with pytest.raises(ConfigError, match=r'no rollout "eval/0/a" in the run \(did you mean "eval/0/a/0"\?\)'):
        list(rollout_lines(reader, "eval/0/a"))


def test_an_id_with_a_line_end_is_one_line_of_the_list_and_is_found_as_the_list_shows_it(tmp_path: Path) -> None:
    job = Job(key=JobKey(phase="eval", step=0, task_id="a\nb\x1b[2J", sample=0), seed=1)

    async def main() -> None:
        async with RunStore.create(tmp_path / "run", config={}) as store:
            store.append(RolloutDone(rollout=replace(LOST, job=job)))

    asyncio.run(main())
    reader = RunStore.read(tmp_path / "run")
    (line,) = run_lines(reader.rollouts())
    assert line == "eval/0/a\\nb\\x1b[2J/0  infrastructure  reward -  attempt 3"
    for name in (line.split("  ")[0], str(job.key)):
        assert list(rollout_lines(reader, name)) == ["--- infrastructure: gone"]

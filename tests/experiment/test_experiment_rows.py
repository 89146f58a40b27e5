"""Rows of rollouts: what is counted, and files that a kill cannot damage."""

from array import array
from pathlib import Path

from slipstream.experiment.rows import Row, RowFile, row_of
from slipstream.types import (
    Ending,
    EndReason,
    Job,
    JobKey,
    Message,
    Role,
    Rollout,
    Sampled,
    Span,
    SpanKind,
    StopReason,
    ToolCall,
    Turn,
    Verdict,
)
from slipstream.types.conversation import CallProblem


def call(name: str, problem: CallProblem | None = None) -> ToolCall:
    return ToolCall(id=name, name=name, problem=problem)


def sampled(num: int) -> Sampled:
    return Sampled(ids=array("i", [1] * num), logprobs=None, versions=array("i", [0] * num), stop=StopReason.STOP)


def test_a_row_counts_calls_by_tool_and_takes_no_text(tmp_path: Path) -> None:
    reply = Message(role=Role.ASSISTANT, calls=(call("bash"), call("bash"), call("secret text")))
    told = (
        Message(role=Role.TOOL, name="bash", content="x", is_error=True, hints=("traceback",)),
        Message(role=Role.TOOL, name="bash", content="x"),
        Message(role=Role.TOOL, name="secret text", content="x", is_error=True),
    )
    broken = Message(role=Role.ASSISTANT, calls=(call("bash", CallProblem.BAD_JSON),))
    turns = (
        Turn(index=0, added=array("i", [0] * 30), sampled=sampled(5), messages=(reply,)),
        Turn(index=1, parent=0, num_kept=35, added=array("i", [0] * 7), sampled=sampled(4), messages=(*told, broken)),
        Turn(index=2, num_kept=10, added=array("i"), sampled=sampled(1), messages=(Message(role=Role.ASSISTANT),)),
    )
    rollout = Rollout(
        job=Job(key=JobKey(phase="eval", step=0, task_id="t", sample=3), seed=0),
        attempt=1,
        ending=Ending(reason=EndReason.FINISHED),
        verdict=Verdict(reward=0.5),
        turns=turns,
        spans=(Span(kind=SpanKind.RUN, start_s=1.0, end_s=3.5), Span(kind=SpanKind.GRADE, start_s=4.0, end_s=9.0)),
    )
    assert row_of(rollout, tools={"bash", "finish"}) == Row(
        task="t",
        sample=3,
        reward=0.5,
        ending="finished",
        turns=3,
        prompt_tokens=42,
        sampled_tokens=10,
        seconds=2.5,
        calls={"bash": 3, "other": 1},
        failed={"bash": 1, "other": 1},
        malformed=1,
        no_call=1,
        hints=1,
    )


def row(sample: int, reward: float | None = 1.0) -> Row:
    return Row(
        task="t",
        sample=sample,
        reward=reward,
        ending="finished",
        turns=1,
        prompt_tokens=1,
        sampled_tokens=1,
        seconds=0.5,
    )


def test_a_torn_last_line_is_dropped_and_the_next_row_begins_a_line(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    file.add([row(0), row(1, None)])
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-9])
    assert file.read() == {("t", 0): row(0)}
    file.add([row(1, None)])
    assert file.read() == {("t", 0): row(0), ("t", 1): row(1, None)}

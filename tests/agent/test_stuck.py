"""When an agent is stuck: by what it called and what it was answered, turn after turn."""

import pytest

from slipstream.agent.config import StuckRules
from slipstream.agent.stuck import StuckWatch
from slipstream.errors import ConfigError
from slipstream.tools import Observation
from slipstream.tools.toolset import CallResult
from slipstream.types import CallProblem, EndReason, ToolCall

RULES = StuckRules()
OFF = StuckRules(same_turns=0, same_errors=0, idle_turns=0, alternations=0)
IDLE: list[CallResult] = []


def said(command: str, answer: str = "ok", *, is_error: bool = False, call_id: str = "1") -> list[CallResult]:
    call = ToolCall(id=call_id, name="bash", arguments={"command": command})
    outcome = Observation(text=answer, is_error=is_error)
    return [CallResult(call=call, outcome=outcome, text=answer, start_s=0.0, end_s=1.0)]


def unread(raw: str) -> list[CallResult]:
    call = ToolCall(id="1", name="", problem=CallProblem.BAD_JSON, raw=raw)
    outcome = Observation(text="not run", is_error=True)
    return [CallResult(call=call, outcome=outcome, text="not run", start_s=0.0, end_s=0.0)]


def stuck_at(turns: list[list[CallResult]], rules: StuckRules = RULES) -> int | None:
    """The number of the turn after which the agent counts as stuck."""
    watch = StuckWatch(rules)
    return next((number for number, turn in enumerate(turns, 1) if watch.note(turn)), None)


def test_the_same_again_and_again() -> None:
    assert stuck_at([said("ls", call_id=str(number)) for number in range(9)]) == 4


def test_the_same_call_with_new_answers_is_no_circle() -> None:
    assert stuck_at([said("date", str(number)) for number in range(9)]) is None


def test_the_same_call_that_keeps_failing() -> None:
    assert stuck_at([said("make", f"error {number}", is_error=True) for number in range(9)]) == 3
    assert stuck_at([said(f"make {number}", "error", is_error=True) for number in range(9)]) is None


def test_turns_in_which_nothing_could_be_run() -> None:
    assert stuck_at([IDLE, unread("{"), IDLE]) == 3
    assert stuck_at([IDLE, unread("{"), said("ls"), IDLE, IDLE]) is None


def test_replies_that_were_cut_off_are_a_limit_that_was_reached() -> None:
    watch = StuckWatch(RULES)
    endings = [watch.note(IDLE), watch.note(unread("{"), was_cut=True), watch.note(IDLE)]
    assert endings[:2] == [None, None]
    assert endings[2] is not None and endings[2].reason is EndReason.TOKEN_LIMIT
    assert endings[2].detail.endswith("1 of them cut off at the limit of a reply")


def test_a_cut_that_a_call_followed_is_forgotten() -> None:
    watch = StuckWatch(RULES)
    turns = [(IDLE, True), (said("ls"), False), (IDLE, False), (IDLE, False), (IDLE, False)]
    *before, last = [watch.note(turn, was_cut=cut) for turn, cut in turns]
    assert not any(before)
    assert last is not None and last.reason is EndReason.STUCK


def test_to_and_fro() -> None:
    assert stuck_at([said("a"), said("b")] * 4) == 6
    assert stuck_at([said("a"), said("b"), said("c")] * 4) is None
    assert stuck_at([said("a"), said("b", "1"), said("a"), said("b", "2"), said("a"), said("b", "1")]) is None


def test_each_rule_can_be_switched_off() -> None:
    circles = [[said("ls")] * 9, [said("make", is_error=True)] * 9, [IDLE] * 9, [said("a"), said("b")] * 9]
    assert [stuck_at(turns, OFF) for turns in circles] == [None] * 4
    assert stuck_at([IDLE] * 9, StuckRules(idle_turns=2)) == 2
    assert stuck_at([said("a")] * 9, StuckRules(same_turns=7)) == 7


@pytest.mark.parametrize("times", [-1, 1])
def test_once_is_no_circle(times: int) -> None:
    with pytest.raises(ConfigError, match="idle_turns"):
        StuckRules(idle_turns=times)

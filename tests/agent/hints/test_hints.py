"""The rules for hints, one by one, and what the adviser makes of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.agent.answers import NO_CALL, answers, with_hints, without_hints
from slipstream.agent.config import HintRules
from slipstream.agent.hints import FINISH_RULES, HELD, RULES, Adviser
from slipstream.agent.hints.adviser import MAX_CHARS, MAX_HINTS, QUIET_STEPS
from slipstream.agent.hints.seen import AnsweredCall, Situation, Step
from slipstream.dialogue.base import Window
from slipstream.tools import CallResult, ContextEdit, Finish, Hint, Observation, Outcome
from slipstream.types import CallProblem, Json, Role, ToolCall

TOOLS = frozenset({"bash", "edit", "search", "finish"})
ALL = HintRules(on=True)


def said(
    name: str, text: str = "", *, fails: bool = False, problem: CallProblem | None = None, **arguments: Json
) -> AnsweredCall:
    return AnsweredCall(
        call=ToolCall(id="c", name=name, arguments=arguments, problem=problem), text=text, is_error=fails
    )


def bash(command: str, text: str = "", *, fails: bool = False) -> AnsweredCall:
    return said("bash", text, fails=fails, command=command)


def hint(
    rule: str, *steps: AnsweredCall | tuple[AnsweredCall, ...], tools: frozenset[str] = TOOLS, **about: Any
) -> str | None:
    """What a rule says after these steps."""
    told = tuple(Step(answers=step if isinstance(step, tuple) else (step,)) for step in steps)
    situation = Situation(steps=told, tools=tools, turns_left=20)
    return {**RULES, **FINISH_RULES}[rule](replace(situation, **about))


def test_every_rule_has_a_switch_and_every_switch_a_rule() -> None:
    switches = {field.name for field in dataclasses.fields(HintRules)} - {"on", "from_tools"}
    assert switches == {*RULES, *FINISH_RULES}


# ---------------------------------------------------------------- calls


def test_a_malformed_call_is_answered_by_what_was_wrong_in_it() -> None:
    assert "line break as \\n" in (hint("malformed_call", said("bash", problem=CallProblem.BAD_JSON)) or "")
    assert "in parts" in (hint("malformed_call", said("", problem=CallProblem.UNCLOSED)) or "")
    for problem in CallProblem:
        assert hint("malformed_call", said("x", problem=problem))
    assert hint("malformed_call", bash("ls")) is None


def test_an_unknown_tool_leads_to_the_one_that_does_it() -> None:
    assert hint("unknown_tool", said("str_replace")) == 'Call edit with "command": "str_replace".'
    assert "is called edit here" in (hint("unknown_tool", said("str_replace_editor")) or "")
    assert "run by bash" in (hint("unknown_tool", said("grep")) or "")
    assert hint("unknown_tool", said("grep"), tools=frozenset({"finish"})) is None
    assert hint("unknown_tool", said("bash")) is None
    assert hint("unknown_tool", said("teleport")) is None


def test_a_reply_without_a_call_is_shown_one() -> None:
    assert hint("no_call", ()) == 'For example, call bash with {"command": "ls"}.'
    assert hint("no_call", (), tools=frozenset({"b", "a"})) == "The tools are: a, b."
    assert hint("no_call", bash("ls")) is None


def test_the_same_failure_again_is_told_unless_something_was_edited_between() -> None:
    failing = bash("pytest", "1 failed", fails=True)
    assert "failed before" in (hint("repeated_failure", failing, failing) or "")
    assert hint("repeated_failure", failing) is None
    assert hint("repeated_failure", failing, bash("pytest -x", "1 failed", fails=True)) is None
    assert hint("repeated_failure", failing, bash("ls"), failing)
    edited = said("edit", "Edited a.py", command="str_replace", path="a.py")
    assert hint("repeated_failure", failing, edited, failing) is None
    assert hint("repeated_failure", failing, replace(edited, is_error=True), failing)
    assert hint("repeated_failure", failing, bash("sed -i s/a/b/ a.py"), bash("pytest", "2 failed", fails=True)) is None


def test_the_same_answer_again_is_told() -> None:
    assert hint("repeated_call", bash("ls", "a"), bash("pwd", "/"), bash("ls", "a"))
    assert hint("repeated_call", bash("ls", "a"), bash("ls", "a b")) is None
    assert (
        hint("repeated_call", *[bash("ls", "a"), *[bash(f"echo {number}") for number in range(9)], bash("ls", "a")])
        is None
    )


# ---------------------------------------------------------------- code


MISS = said(
    "edit", "edit: old_str was not found in a.py. Closest:\n...", fails=True, command="str_replace", path="a.py"
)


def test_a_missed_edit_is_told_how_to_hit() -> None:
    assert "Copy old_str from the lines shown" in (hint("missed_edit", MISS) or "")
    assert "View a.py again" in (hint("missed_edit", MISS, bash("ls"), MISS) or "")
    assert "first, view it" in (hint("missed_edit", replace(MISS, text="edit: old_str was not found in a.py.")) or "")
    assert hint("missed_edit", said("edit", "Edited", command="str_replace", path="a.py")) is None
    assert hint("missed_edit", bash("grep 'old_str was not found' x", "old_str was not found", fails=True)) is None


def test_a_broken_syntax_is_to_be_mended() -> None:
    broken = said("edit", "Edited a.py:\n  1 x\n[new syntax error, line 1: oops]", command="insert", path="a.py")
    assert "broke the syntax of a.py" in (hint("syntax_error", broken) or "")
    old = replace(broken, text="Edited a.py:\n[syntax error, line 1: oops; there was one before this edit too: ...]")
    assert hint("syntax_error", old) is None


def test_a_missing_module_is_explained() -> None:
    missing = bash("pytest", "E   ModuleNotFoundError: No module named 'pkg.core'\n[exit code 2]", fails=True)
    assert "If pkg.core is part of this repository" in (hint("missing_module", missing) or "")
    name = bash("pytest", "ImportError: cannot import name 'f' from 'pkg' (/work/pkg/__init__.py)", fails=True)
    assert "pkg has no f" in (hint("missing_module", name) or "")
    assert hint("missing_module", bash("pytest", "1 failed", fails=True)) is None


def test_a_traceback_leads_to_its_last_frame_in_the_work_tree() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/work/run.py", line 3, in <module>\n    main()\n'
        '  File "/work/pkg/a.py", line 40, in main\n    json.loads(x)\n'
        '  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads\n'
        '  File "<frozen codecs>", line 1, in decode\nValueError: no\n[exit code 1]'
    )
    assert hint("traceback", bash("python run.py", text, fails=True)) == (
        "The last frame in your tree is /work/pkg/a.py, line 40, in main: look there first, "
        "with edit view_range [30, 50]."
    )
    pytest_text = "tests/test_a.py:7: in test_x\n    f()\npkg/b.py:9: ValueError\n[exit code 1]"
    assert "pkg/b.py, line 9: look" in (hint("traceback", bash("pytest", pytest_text, fails=True)) or "")
    assert hint("traceback", bash("python x.py | tail", text)), "a pipeline hides the exit code"
    assert hint("traceback", bash("ls", "a.py:1: x")) is None
    assert (
        hint("traceback", bash("x", 'Traceback (most recent call last):\n  File "<stdin>", line 1', fails=True)) is None
    )


@pytest.mark.parametrize(
    ("answer", "fires"),
    [
        (said("read_file", "x" * 9000, path="a"), True),
        (said("read_file", "x" * 9000, path="a", start_line=1, end_line=900), False),
        (said("edit", "x" * 9000, command="view", path="a"), True),
        (said("edit", "x" * 9000, command="view", path="a", view_range=[1, 500]), False),
        (bash("cat src/a.py", "x" * 9000), True),
        (bash("cd src && cat a.py", "x" * 9000), True),
        (bash("cat src/a.py", "x" * 100), False),
        (bash("cat src/a.py | head -500", "x" * 9000), False),
        (bash("cat > a.py <<E\nx\nE", "x" * 9000), False),
    ],
)
def test_reading_a_large_file_whole_is_told_and_reading_a_part_is_not(answer: AnsweredCall, fires: bool) -> None:
    assert (hint("whole_file", answer) is not None) is fires
    assert "with search first" in (hint("whole_file", bash("cat a", "x" * 9000)) or "")
    assert "with grep -n first" in (hint("whole_file", bash("cat a", "x" * 9000), tools=frozenset({"bash"})) or "")


def test_an_output_that_was_cut_is_told() -> None:
    assert hint("long_output", bash("make", "a\n[... 90 characters, 3 lines left out ...]\nb"))
    assert hint("long_output", bash("make", "a\n[... 90 bytes left out ...]\nb"))
    assert hint("long_output", bash("make", "a")) is None


# ---------------------------------------------------------------- limits and finishing


def test_turns_that_run_out_are_told_twice() -> None:
    steps = [bash(f"echo {number}") for number in range(8)]
    assert [left for left in range(10) if hint("few_turns", *steps, turns_left=left)] == [1, 5]
    assert hint("few_turns", bash("ls"), turns_left=5) is None, "of so few turns the task itself tells"


def test_turns_left_are_told_after_every_turn_and_early_on_more_are_asked_for() -> None:
    def told(num_done: int) -> str | None:
        return hint("turns_left", *[bash("ls")] * num_done, turns_left=20 - num_done)

    assert told(1) == "19 turns are left. Take at least 3 more before you finish."
    assert told(4) == "16 turns are left."
    assert [num for num in range(1, 20) if told(num) is None] == [15, 19], "`few_turns` speaks of these"


def test_a_window_that_fills_up_is_told_at_each_mark_once() -> None:
    def told(used: int, times: int) -> bool:
        steps = (Step(hints=(Hint(name="few_tokens", text="?"),) * times), Step())
        situation = Situation(steps=steps, tools=TOOLS, turns_left=9, window=Window(num_used=used, num_allowed=1000))
        return RULES["few_tokens"](situation) is not None

    assert [told(used, times) for used, times in ((700, 0), (750, 0), (800, 1), (900, 1), (990, 2), (950, 0))] == [
        *(False, True, False, True, False, True)
    ]
    assert hint("few_tokens", bash("ls"), window=None) is None


EDITED = said("edit", "Edited a.py", command="insert", path="a.py")


def test_finishing_without_a_change_is_asked_about() -> None:
    view = said("edit", "1 x", command="view", path="a.py")
    assert hint("finish_unchanged", bash("grep x a 2>&1 >/dev/null"), tools=frozenset({"bash"})) is None
    assert hint("finish_unchanged", bash("grep -rn x . | head"), view, said("search", "x"))
    assert hint("finish_unchanged", bash("ls 2>&1"))
    for change in (EDITED, bash("sed -i s/a/b/ x"), bash("echo a > x"), bash("python fix.py"), said("other_tool")):
        assert hint("finish_unchanged", change, view, tools=TOOLS | {"other_tool"}) is None
    assert hint("finish_unchanged", replace(EDITED, is_error=True))
    assert hint("finish_unchanged", said("other_tool"), tools=TOOLS | {"other_tool"}, pure=frozenset({"other_tool"}))
    assert hint("finish_unchanged", said("no_such_tool"))


def test_finishing_without_a_check_is_asked_about() -> None:
    assert hint("finish_unchecked", bash("ls"), EDITED)
    assert hint("finish_unchecked", EDITED, bash("pytest")) is None
    assert hint("finish_unchecked", bash("ls")) is None
    assert hint("finish_unchecked", EDITED, tools=frozenset({"edit", "finish"})) is None


# ---------------------------------------------------------------- the adviser


def result(answer: AnsweredCall, outcome: Outcome | None = None) -> CallResult:
    return CallResult(
        call=answer.call,
        outcome=outcome or Observation(text=answer.text, is_error=answer.is_error),
        text=answer.text,
        start_s=0,
        end_s=0,
    )


def names(adviser: Adviser, *results: CallResult, window: Window | None = None) -> list[str]:
    return [hint.name for hint in adviser.advise(results, window)[1]]


def test_without_hints_nothing_is_said() -> None:
    adviser = Adviser(HintRules(), tools=TOOLS, num_turns=2)
    assert names(adviser, result(MISS)) == names(adviser, result(MISS)) == []
    assert adviser.names == set()


def test_a_rule_that_is_off_is_silent() -> None:
    assert names(Adviser(ALL, tools=TOOLS, num_turns=50), result(MISS)) == ["missed_edit"]
    off = replace(ALL, missed_edit=False)
    assert names(Adviser(off, tools=TOOLS, num_turns=50), result(MISS)) == []


def test_the_same_is_not_said_again_for_some_turns_and_few_things_at_once() -> None:
    adviser = Adviser(ALL, tools=TOOLS, num_turns=50)
    long = bash("make", "a\n[... 90 characters, 3 lines left out ...]\nb")
    told = [names(adviser, result(replace(long, call=replace(long.call, arguments={"n": n})))) for n in range(8)]
    assert [n for n, hints in enumerate(told) if hints] == [0, QUIET_STEPS + 1]
    crowd = Adviser(ALL, tools=TOOLS, num_turns=50)
    full = Window(num_used=99, num_allowed=100)
    assert names(crowd, result(said("grep")), result(MISS), window=full) == ["few_tokens", "unknown_tool"]
    assert MAX_HINTS == 2


def finishing() -> CallResult:
    return result(said("finish", "42"), Finish(answer="42"))


def test_a_finish_is_held_once_by_each_rule_and_then_let_through() -> None:
    adviser = Adviser(ALL, tools=TOOLS, num_turns=50)
    (held,), hints = adviser.advise([finishing()], None)
    assert (held.text, held.is_error, held.outcome) == (HELD, True, Observation(text=HELD, is_error=True))
    assert [hint.name for hint in hints] == ["finish_unchanged"]
    adviser.advise([result(EDITED)], None)
    assert names(adviser, finishing()) == ["finish_unchecked"]
    assert adviser.advise([finishing()], None) == ((finishing(),), ())


def test_a_finish_is_not_held_where_no_time_is_left_or_nothing_speaks_against_it() -> None:
    assert Adviser(ALL, tools=TOOLS, num_turns=2).advise([finishing()], None) == ((finishing(),), ())
    assert Adviser(ALL, tools={"finish"}, num_turns=50).advise([finishing()], None) == ((finishing(),), ())
    off = Adviser(replace(ALL, finish_unchanged=False), tools=TOOLS, num_turns=50)
    assert off.advise([finishing()], None) == ((finishing(),), ())


def test_a_rewritten_conversation_gets_none() -> None:
    adviser = Adviser(ALL, tools=TOOLS, num_turns=50)
    edit = ContextEdit(messages=())
    assert names(adviser, result(MISS), result(said("forget"), edit)) == []


@given(st.text(max_size=600))
def test_texts_from_outside_make_no_line_of_their_own(path: str) -> None:
    adviser = Adviser(ALL, tools=TOOLS, num_turns=50)
    miss = said("edit", "edit: old_str was not found in it", fails=True, command="str_replace", path=path)
    _, (given_hint,) = adviser.advise([result(miss)], None)
    assert "\n" not in given_hint.text and len(given_hint.text) <= MAX_CHARS + 3


# ---------------------------------------------------------------- in messages


HINTS = st.lists(
    st.builds(Hint, name=st.sampled_from(["few_turns", "traceback"]), text=st.sampled_from(["Do.", "Hint: a", "x  y"])),
    max_size=3,
)


@given(st.text("aH\n: int", max_size=20) | st.just("a\n\nHint: b"), HINTS, st.booleans())
def test_hints_are_taken_out_of_a_message_as_they_were_put_in(text: str, hints: Sequence[Hint], own: bool) -> None:
    own_hints = (Hint(name="own", text="mine"),) if own else ()
    shown = f"{text}\n\nHint: mine" if own else text
    one = replace(result(bash("ls", shown)), outcome=Observation(text=text, hints=own_hints))
    told = with_hints(answers([one, one]), hints)
    assert told[0] == answers([one])[0]
    assert without_hints(told, RULES) == (answers([one, one]), tuple(hints))


def test_a_missing_call_is_answered_with_hints_too() -> None:
    hint = Hint(name="no_call", text="Call.")
    (told,) = with_hints(answers(()), [hint])
    assert (told.role, told.content, told.hints) == (Role.USER, f"{NO_CALL}\n\nHint: Call.", ("no_call",))
    assert without_hints((told,), RULES) == (answers(()), (hint,))

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from slipstream.errors import (
    ConfigError,
    ModelError,
    SandboxBroken,
    SandboxError,
    SandboxFileError,
    SandboxLimitError,
    ToolError,
    ToolFailure,
)
from slipstream.simulate.clock import run_virtual
from slipstream.tools import (
    TOOLS,
    CallResult,
    ContextEdit,
    Effect,
    Finish,
    Observation,
    Toolset,
    tool,
)
from slipstream.tools.bash import bash
from slipstream.types import CallProblem, Message, Role, ToolCall

from .support import Probe, StubSandbox, call, run_once


def texts(results: tuple[CallResult, ...]) -> list[tuple[str, bool]]:
    return [(result.text, result.is_error) for result in results]


# ---------------------------------------------------------------- which tools


def test_duplicate_names_are_refused() -> None:
    with pytest.raises(ConfigError, match='two tools are named "a"'):
        Toolset([Probe("a"), Probe("b"), Probe("a")])


def test_a_tool_without_a_deadline_is_refused() -> None:
    with pytest.raises(ConfigError, match='tool "probe" has timeout_s=inf'):
        Toolset([Probe(timeout_s=float("inf"))])


def test_named_tools_come_in_the_order_of_their_names() -> None:
    assert [spec.name for spec in Toolset.named(("finish", "bash")).specs] == ["finish", "bash"]
    mine = Probe("mine")
    assert Toolset.named(("mine",), {"mine": mine}).tools == {"mine": mine}


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as raised:
        Toolset.named(("bsh",))
    assert str(raised.value) == (
        f'there is no tool "bsh" (did you mean "bash"?): use one of {", ".join(TOOLS)}, or package.module:attribute'
    )


def test_a_tool_of_the_sandbox_needs_one() -> None:
    with pytest.raises(ConfigError, match="these tools need a sandbox, but there is none: bash"):
        run_virtual(run_once([bash, Probe()]))


# ---------------------------------------------------------------- what is not run


def test_malformed_calls_are_told_what_was_wrong_and_how_to_write_them() -> None:
    probe = Probe()
    calls = [
        ToolCall(id="1", name="", problem=CallProblem.NO_NAME, raw="{}"),
        ToolCall(id="2", name="bash", problem=CallProblem.BAD_JSON, raw='{"name": "bash", '),
        ToolCall(id="3", name="probe", problem=CallProblem.UNCLOSED),
    ]
    how = '\nWrite it as: {"name": "<tool>", "arguments": {"<argument>": <value>}}\n'
    assert texts(run_virtual(run_once([probe, bash], *calls, sandbox=StubSandbox()))) == [
        (f"This tool call was not run: it names no tool.{how}Known tools: probe, bash.", True),
        (
            f"This tool call was not run: it is not valid JSON.{how}"
            "bash: Arguments: command (string, required), timeout_s (number, optional).",
            True,
        ),
        (f"This tool call was not run: it was not closed.{how}probe: Arguments: none.", True),
    ]
    assert probe.log == ["close probe"]


def test_the_format_is_the_renderers() -> None:
    async def main() -> str:
        async with Toolset([]).open(call_format="<call>...</call>") as opened:
            results = await opened.run([ToolCall(id="1", name="", problem=CallProblem.BAD_SHAPE)], ())
            return results[0].text

    assert run_virtual(main()) == (
        "This tool call was not run: it is not an object with a name and an object of arguments.\n"
        "Write it as: <call>...</call>\nKnown tools: none."
    )


def test_every_problem_of_a_call_has_a_sentence() -> None:
    calls = [ToolCall(id="", name="", problem=problem) for problem in CallProblem]
    assert len(run_virtual(run_once([], *calls))) == len(CallProblem)


def test_unknown_tools_are_told_the_nearest_and_the_known() -> None:
    results = run_virtual(run_once([Probe("search"), Probe("finish")], call("serch"), call("zzz"), call("finish")))
    assert texts(results) == [
        ('There is no tool "serch" (did you mean "search"?). Known tools: search, finish.', True),
        ('There is no tool "zzz". Known tools: search, finish.', True),
        ("", False),
    ]


def test_validation_errors_are_observations() -> None:
    results = run_virtual(run_once([bash], call("bash", cmd="ls"), sandbox=StubSandbox()))
    assert texts(results) == [
        (
            'bash: argument "command" is missing; argument "cmd" is unknown (did you mean "command"?). '
            "Arguments: command (string, required), timeout_s (number, optional).",
            True,
        )
    ]


# ---------------------------------------------------------------- what a tool raises


@pytest.mark.parametrize("error", [ToolError("no"), SandboxFileError("no"), SandboxLimitError("no")])
def test_what_the_agent_did_is_an_observation(error: Exception) -> None:
    assert texts(run_virtual(run_once([Probe(outcome=error)], call("probe")))) == [("no", True)]


@pytest.mark.parametrize("error", [SandboxBroken("no"), SandboxError("no"), ModelError("no"), ToolFailure("no")])
@pytest.mark.parametrize("num_calls", [1, 2])
def test_errors_of_ours_pass(error: Exception, num_calls: int) -> None:
    with pytest.raises(type(error)) as raised:
        run_virtual(run_once([Probe(outcome=error)], *[call("probe")] * num_calls))
    assert raised.value is error


@pytest.mark.parametrize("num_calls", [1, 2])
@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("no")])
def test_anything_else_is_a_failure_of_the_tool(error: Exception, num_calls: int) -> None:
    with pytest.raises(
        ToolFailure, match=rf"^tool probe: {type(error).__name__}: no \(.*support\.py, line \d+, in call\)$"
    ) as raised:
        run_virtual(run_once([Probe(outcome=error)], *[call("probe")] * num_calls))
    assert raised.value.__cause__ is error


def test_a_wrong_return_value_is_a_failure_of_the_tool() -> None:
    async def lies() -> str:
        """Lie."""
        return 5  # type: ignore[return-value]

    with pytest.raises(ToolFailure, match="tool lies returned a int: not an outcome; return a str"):
        run_virtual(run_once([tool(effect=Effect.PURE)(lies)], call("lies")))


def test_a_failure_cancels_the_calls_beside_it() -> None:
    slow, bad = Probe("slow", wait_s=50), Probe("bad", wait_s=1, outcome=SandboxBroken("gone"))
    with pytest.raises(SandboxBroken, match="gone"):
        run_virtual(run_once([slow, bad], call("slow"), call("bad")))
    assert slow.log == ["start slow", "cancelled slow", "close slow"]


# ---------------------------------------------------------------- deadlines


def test_a_call_is_cancelled_at_its_deadline() -> None:
    probe = Probe(wait_s=1000, timeout_s=30)
    (result,) = run_virtual(run_once([probe], call("probe")))
    assert texts((result,)) == [("probe: timed out after 30 s", True)]
    assert (result.start_s, result.end_s) == (0, 30)
    assert probe.log == ["start probe", "cancelled probe", "close probe"]


def test_the_turns_deadline_holds_for_all_its_calls() -> None:
    async def main() -> tuple[CallResult, ...]:
        async with Toolset([Probe(wait_s=1000, concurrent=False)]).open() as opened:
            return await opened.run([call("probe")] * 2, (), deadline_s=12.5)

    assert texts(run_virtual(main())) == [
        ("probe: timed out after 12.5 s", True),
        ("probe: not run, no time is left for tools", True),
    ]


def test_a_tool_knows_its_deadline_its_messages_and_its_state() -> None:
    probe = Probe(wait_s=2, timeout_s=30, concurrent=False)
    said = Message(role=Role.USER, content="hello")

    async def main() -> list[float]:
        async with Toolset([probe]).open() as opened:
            await opened.run([call("probe")] * 2, [said])
            return [ctx.remaining_s() for ctx in probe.contexts]

    assert run_virtual(main()) == [26, 28]
    first, second = probe.contexts
    assert first.deadline_s == 30
    assert first.messages == (said,)
    assert first.state is second.state


def test_cancelling_a_turn_cancels_its_calls() -> None:
    probe = Probe(wait_s=1000)

    async def main() -> None:
        async with asyncio.timeout(5):
            await run_once([probe], call("probe"))

    with pytest.raises(TimeoutError):
        run_virtual(main())
    assert probe.log == ["start probe", "cancelled probe", "close probe"]


# ---------------------------------------------------------------- order


def spans(results: tuple[CallResult, ...]) -> list[tuple[str, float, float]]:
    return [(result.call.name, result.start_s, result.end_s) for result in results]


def test_calls_run_beside_each_other_if_all_allow_it() -> None:
    tools = [Probe("a", wait_s=3), Probe("b", wait_s=1)]
    results = run_virtual(run_once(tools, call("a"), call("b"), call("unknown"), call("a")))
    assert spans(results) == [("a", 0, 3), ("b", 0, 1), ("unknown", 0, 0), ("a", 0, 3)]


def test_calls_run_in_order_if_one_does_not_allow_it() -> None:
    tools = [Probe("a", wait_s=3), Probe("b", wait_s=1, concurrent=False)]
    results = run_virtual(run_once(tools, call("a"), call("b"), call("a")))
    assert spans(results) == [("a", 0, 3), ("b", 3, 4), ("a", 4, 7)]


def test_nothing_runs_after_a_finish() -> None:
    done, later = Probe("done", outcome=Finish(answer="42"), concurrent=False), Probe("later")
    results = run_virtual(run_once([done, later], call("later"), call("done"), call("later")))
    assert [result.outcome for result in results[:2]] == [Observation(), Finish(answer="42")]
    assert texts(results) == [
        ("", False),
        ("42", False),
        ("Not run: the call to done before it ended the rollout.", True),
    ]
    assert later.log == ["start later", "end later", "close later"]


def test_nothing_runs_after_a_context_edit() -> None:
    edit = ContextEdit(messages=(Message(role=Role.USER, content="short"),), note="summarised")
    tools = [Probe("edit", outcome=edit, concurrent=False), Probe("later")]
    results = run_virtual(run_once(tools, call("edit"), call("later"), call("nonsense")))
    assert results[0].outcome is edit
    assert texts(results) == [
        ("summarised", False),
        ("Not run: the call to edit before it rewrote the conversation.", True),
        ("Not run: the call to edit before it rewrote the conversation.", True),
    ]


def test_no_calls_no_results() -> None:
    assert run_virtual(run_once([Probe()])) == ()


# ---------------------------------------------------------------- output


def test_output_is_cut_to_the_tools_limit() -> None:
    probe = Probe(outcome=Observation(text="x" * 5000), max_output_chars=100)
    (result,) = run_virtual(run_once([probe], call("probe")))
    assert len(result.text) <= 100
    assert f"[... {result.num_chars_cut} characters, 0 lines left out ...]" in result.text
    assert result.text.count("x") + result.num_chars_cut == 5000


def test_text_can_always_be_encoded() -> None:
    (result,) = run_virtual(run_once([Probe(outcome=Observation(text="a\udcffb"))], call("probe")))
    assert result.text == "a?b"


# ---------------------------------------------------------------- closing


@pytest.mark.parametrize(
    "returned",
    [
        None,
        1.5,
        {"text": "x"},
        Observation(text=5),  # type: ignore[arg-type]
        Observation(text="x", images=(b"png",)),  # type: ignore[arg-type]
        Observation(text="x", hints=("look",)),  # type: ignore[arg-type]
        Finish(answer=42),  # type: ignore[arg-type]
        Finish(answer={1, 2}),  # type: ignore[arg-type]
        ContextEdit(messages=("x",)),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_outcome_is_a_failure_that_names_the_tool(returned: object) -> None:
    said = f"^tool probe returned a {type(returned).__name__}: .*; return a str"
    with pytest.raises(ToolFailure, match=said) as raised:
        run_virtual(run_once([Probe(outcome=returned)], call("probe")))  # type: ignore[arg-type]
    assert raised.value.origin is not None and raised.value.origin.place == "tool probe"


def test_every_tool_is_closed_even_if_one_fails_or_hangs(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    tools = [
        Probe("bad", close_error=ValueError("stuck"), log=log),
        Probe("hung", close_s=1000, log=log),
        Probe("good", log=log),
    ]
    with caplog.at_level(logging.WARNING):
        run_virtual(run_once(tools))
    assert log == ["close bad", "close good"]
    bad, hung = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"closing tool bad: ValueError: stuck \(.*support\.py, line \d+, in aclose\)", bad)
    assert hung == "closing tool hung: TimeoutError: "


def test_a_failure_to_close_does_not_hide_how_the_rollout_ended() -> None:
    probe = Probe(outcome=SandboxBroken("gone"), close_error=SandboxError("lost"))
    with pytest.raises(SandboxBroken, match="gone"):
        run_virtual(run_once([probe], call("probe")))


def test_closing_goes_on_however_often_it_is_cancelled() -> None:
    log: list[str] = []

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2), asyncio.timeout(1):
                await run_once([Probe("a", close_s=5, log=log), Probe("b", close_s=5, log=log)])
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10
    assert log == ["close a", "close b"]


def test_shared_tools_are_closed_with_the_toolset_alone() -> None:
    shared = Probe(is_shared=True)

    async def main() -> list[str]:
        toolset = Toolset([shared])
        async with toolset.open() as opened:
            await opened.run([call("probe")], ())
        before = list(shared.log)
        await toolset.aclose()
        return before

    assert run_virtual(main()) == ["start probe", "end probe"]
    assert shared.log[-1] == "close probe"


def test_closing_twice_is_fine() -> None:
    probe = Probe()

    async def main() -> None:
        async with Toolset([probe]).open() as opened:
            await opened.aclose()

    run_virtual(main())
    assert probe.log == ["close probe"]

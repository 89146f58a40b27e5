"""End to end, in real sandboxes: an agent searches, edits wrongly, is hinted, and recovers; what it was told is in the
run store.

The scripted model acts on what it last read, so it recovers if and only if it is hinted.
"""

import asyncio
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.agent.config import AgentConfig, HintRules
from slipstream.agent.prompts import code_prompt
from slipstream.batch.merge import merge
from slipstream.config import to_json
from slipstream.evaluation import evaluate
from slipstream.model.scripted import Line, Script, ScriptedCall, act
from slipstream.record import RunStore
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig
from slipstream.types import AgentLimits, Brief, EndReason, File, Grading, Message, Role, Rollout, SandboxSpec, Task

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")

CALC = b"def add(a, b):\r\n\treturn a - b\r\n"
CHECK = b"import calc\n\n\ndef check():\n    assert calc.add(2, 3) == 5\n\n\ncheck()\n"
TOOLS = ("bash", "search", "edit", "finish")
FIRED = {"traceback", "missed_edit", "syntax_error", "finish_unchecked"}


def tasks() -> list[Task]:
    return [
        Task(
            id="calc",
            brief=Brief(
                instruction="Make check.py pass.",
                system=code_prompt(TOOLS),
                tools=TOOLS,
                limits=AgentLimits(turns=20, context_tokens=100_000),
            ),
            sandbox=SandboxSpec(
                files={"calc.py": File(data=CALC, mode=0o755), "check.py": File(data=CHECK)},
                env={"PYTHONDONTWRITEBYTECODE": "1"},  # a model never edits twice in a second, a script does
            ),
            artifact=("calc.py",),
            grading=Grading(
                kind="command",
                spec={"command": "python3 check.py || exit 1", "files": {"check.py": CHECK.decode()}},
            ),
        )
    ]


def script() -> Script:
    """Each next step is taken because of what the last answer says."""

    def replace_text(old: str, new: str) -> Line:
        return act("edit", command="str_replace", path="calc.py", old_str=old, new_str=new)

    def next_step(scene: ScriptedCall) -> Line:
        last = scene.prompt_text.rsplit("<|im_start|>user", 1)[1]
        if "Make check.py pass" in last:
            return act("search", terms=["calc.add"])
        if "calc.py:1-2 function add" in last:
            return act("bash", command="python3 check.py")
        if "The last frame in your tree is /work/check.py, line 5, in check" in last:
            return replace_text("    return  a - b", "    return a + b")
        if "Copy old_str from the lines shown here" in last:
            return replace_text("\treturn a - b", "\treturn (a + b")
        if "take it back with edit's undo" in last:
            return act("edit", command="undo", path="calc.py")
        if "Undid the last edit" in last:
            return replace_text("a - b", "a + b")
        if "Nothing was run since your last edit" in last:
            return act("bash", command="python3 check.py && echo passed")
        return act("finish")

    return next_step


def run(folder: Path, hints: HintRules) -> Rollout:
    here = Path(__file__).resolve()
    config = EvalConfig(
        name="hinted",
        tasks=TasksConfig(source=f"{here}:tasks"),
        model=ModelConfig(kind="scripted", script=f"{here}:script"),
        agent=AgentConfig(hints=hints),
    )

    async def main() -> None:
        async with RunStore.create(folder, config=to_json(config)) as store:
            await evaluate(config, store)

    asyncio.run(main())
    (rollout,) = RunStore.read(folder).rollouts()
    return rollout


def told(rollout: Rollout) -> list[Message]:
    return [message for turn in rollout.turns for message in turn.messages[:-1] if message.role is Role.TOOL]


def test_an_agent_that_edits_wrongly_is_hinted_and_recovers(tmp_path: Path) -> None:
    rollout = run(tmp_path / "run", HintRules(on=True))
    assert rollout.ending.reason is EndReason.FINISHED
    assert rollout.verdict is not None and rollout.verdict.reward == 1.0
    fired = Counter(name for message in told(rollout) for name in message.hints)
    assert fired == dict.fromkeys({*FIRED, "search_callers"}, 1)
    assert [message.hints for message in told(rollout)] == [
        *[("search_callers",), ("traceback",), ("missed_edit",), ("syntax_error",), (), (), ("finish_unchecked",), ()]
    ]
    texts = [message.content for message in told(rollout)]
    assert "old_str has 4 spaces instead of 1 tab in line 2" in texts[2]
    assert "[new syntax error, line 2: " in texts[3]
    assert texts[7] == "passed"


def test_what_a_hint_says_is_observed_and_never_trained_on(tmp_path: Path) -> None:
    rollout = run(tmp_path / "run", HintRules(on=True))
    (sample,) = merge(rollout).samples
    sampled = [turn.sampled for turn in rollout.turns]
    assert sum(sample.mask) == sum(len(each.ids) for each in sampled if each is not None)
    trained = bytes(token for token, is_in in zip(sample.ids, sample.mask, strict=True) if is_in and token < 256)
    observed = bytes(token for token, is_in in zip(sample.ids, sample.mask, strict=True) if not is_in and token < 256)
    assert b"Hint: " in observed and b"Hint: " not in trained


@pytest.mark.parametrize("name", sorted(FIRED))
def test_without_one_of_the_hints_it_does_not_get_there(tmp_path: Path, name: str) -> None:
    rollout = run(tmp_path / "run", replace(HintRules(on=True), **{name: False}))
    fired = {hint for message in told(rollout) for hint in message.hints}
    assert name not in fired
    passed = [message for message in told(rollout) if message.content == "passed"]
    assert not passed


def test_without_hints_it_gives_up_and_nothing_is_on_record(tmp_path: Path) -> None:
    rollout = run(tmp_path / "run", HintRules(from_tools=False))
    assert rollout.verdict is not None and rollout.verdict.reward == 0.0
    assert not any(message.hints for message in told(rollout))

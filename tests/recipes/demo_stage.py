"""The demo's tasks played in memory: the real agent, dialogue, tools and solver; the programs are faked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.agent.loop import ToolAgent
from slipstream.dialogue.base import CallContext, TurnLog
from slipstream.dialogue.token import TokenDialogue
from slipstream.dispatch.gate import OpenGate
from slipstream.model.scripted import ScriptedModel
from slipstream.recipes.demo.solver import solver
from slipstream.render.renderer import Renderer
from slipstream.sandbox.fake import Answer, Command, FakeProvider, Files
from slipstream.simulate.clock import run_virtual
from slipstream.tools.toolset import Toolset
from slipstream.types import Ending, JobKey, SampleParams, Task, TokenIds, Turn, job_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """The result of one rollout."""

    task: Task
    ending: Ending
    turns: tuple[Turn, ...]

    @property
    def commands(self) -> list[str]:
        calls = [call for turn in self.turns for call in turn.messages[-1].calls]
        return [str(call.arguments["command"]) if call.name == "bash" else call.name for call in calls]

    @property
    def ids(self) -> TokenIds:
        """The whole conversation, the last reply included. No turn forks, so each adds to the one before."""
        last = self.turns[-1]
        assert last.sampled is not None
        return self.prompt(last) + last.sampled.ids

    def prompt(self, turn: Turn) -> TokenIds:
        if turn.parent is None:
            return turn.added
        parent = self.turns[turn.parent]
        assert parent.sampled is not None
        return (self.prompt(parent) + parent.sampled.ids)[: turn.num_kept] + turn.added


def programs(command: Command, files: Files) -> Answer:
    """Notes are read as they are; a file is made without a word."""
    assert isinstance(command, str)
    note = re.fullmatch(r"cat (\w+/note)", command)
    return (0, files[f"/work/{note[1]}"].data.decode()) if note else (0, "")


def play(tasks: Sequence[Task], renderer: Renderer, *, quality: float = 1.0, seed: int = 0) -> list[Play]:
    model = ScriptedModel(solver(quality=quality), decode=renderer.decode, encode=renderer.encode_reply)

    async def main() -> list[Play]:
        provider = FakeProvider(programs)
        toolset = Toolset.named(tasks[0].brief.tools)
        plays = []
        for task in tasks:
            key = JobKey(phase="eval", step=0, task_id=task.id, sample=0)
            terms = CallContext(
                params=SampleParams(max_tokens=256),
                max_context_tokens=task.brief.limits.context_tokens,
                gate=OpenGate(),
                key=key,
                attempt=1,
            )
            log = TurnLog(seed=job_seed(seed, key), on_turn=lambda turn: None, on_span=lambda span: None)
            assert task.sandbox is not None
            sandbox = await provider.open(task.sandbox)
            ending = await ToolAgent(toolset).run(
                task.brief, sandbox, TokenDialogue(renderer, model, terms, log), (), on_span=lambda span: None
            )
            plays.append(Play(task=task, ending=ending, turns=tuple(log.turns)))
        await toolset.aclose()
        return plays

    return run_virtual(main())

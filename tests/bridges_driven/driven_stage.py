"""A recipe for trainers that drive, whose agent does on purpose all that an agent can do to training data.

Four tasks without a sandbox: `plain` is solved by every other rollout, `pages` rewrites its context, `limits` never
ends in rollout 1 and is stuck in rollout 3, `broken` loses the engine in rollout 1 before its first turn and
in rollout 2 after it. What a rollout does follows from its name alone, so every bridge sees the same.
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slipstream.agent.config import AgentConfig
from slipstream.dispatch.base import Retries
from slipstream.errors import ModelError
from slipstream.model.scripted import Line, ScriptedCall, ScriptedModel, act
from slipstream.recipes.quickstart.model import make_model
from slipstream.render.load import open_renderer
from slipstream.settings import DispatchConfig, ModelConfig, TasksConfig, TrainConfig
from slipstream.tools import ContextEdit, Effect, ToolContext, tool
from slipstream.types import AgentLimits, Brief, EngineLoad, Grading, Message, Role, Sampled, SampleParams, Task

HERE = Path(__file__).resolve()
KINDS = ("plain", "pages", "limits", "broken")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@tool(effect=Effect.PURE)
async def turn_page(memory: str, *, ctx: ToolContext) -> ContextEdit:
    """Go on to the next page, and forget all but what is noted."""
    return ContextEdit(messages=(ctx.messages[0], Message(role=Role.USER, content=f"Memory: {memory}")))


def tasks() -> list[Task]:
    return [
        Task(
            id=kind,
            brief=Brief(
                instruction=f"This is {kind}.", tools=("finish", f"{HERE}:turn_page"), limits=AgentLimits(turns=3)
            ),
            grading=Grading(kind="exact", spec={"expected": "yes"}),
            sandbox=None,
        )
        for kind in KINDS
    ]


def recipe() -> TrainConfig:
    return TrainConfig(
        name="stage",
        tasks=TasksConfig(source=f"{HERE}:tasks"),
        held_out=TasksConfig(source=f"{HERE}:tasks"),
        model=ModelConfig(max_tokens=64, context_tokens=1024),
        agent=AgentConfig(),
        dispatch=DispatchConfig(retries=Retries(attempts=1)),
        groups=4,
        samples=4,
        seed=3,
    )


def play(scene: ScriptedCall) -> Line:
    """What the model of the rollout `phase/step/task/sample#attempt` says."""
    if scene.session == "probe":
        return "ready"
    task_id, sample = scene.session.split("#")[0].split("/")[2:]
    number = int(sample)
    if task_id == "broken" and number % 4 in (1, 2) and scene.num_calls == number % 4 - 1:
        raise ModelError("the engine is gone")
    if task_id == "limits" and number % 2:
        return act("turn_page", memory=f"again {scene.num_calls}") if number % 4 == 1 else f"Hm {scene.num_calls}."
    if scene.num_calls == 0:
        return act("turn_page", memory=f"note {number}") if task_id == "pages" else "Let me think."
    return act("finish", answer="no" if number % 2 else "yes")


class Served:
    """A scripted model over a model folder's own tokens, with logprobs and versions that can be told apart."""

    def __init__(self, folder: Path, *, version: int = 0, logprobs: bool = True) -> None:
        renderer = open_renderer(folder)
        self.version = version
        self._logprobs = logprobs
        self._model = ScriptedModel(
            play, decode=renderer.decode, encode=renderer.encode_reply, encode_text=renderer.encode_text
        )
        self.stop_ids = renderer.stop_ids

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        params = replace(params, stop_ids=self.stop_ids)
        sampled = await self._model.complete(prompt_ids, params, session=session, timeout_s=timeout_s)
        return Sampled(
            ids=sampled.ids,
            logprobs=array("f", [logprob_of(token) for token in sampled.ids]) if self._logprobs else None,
            versions=array("i", [self.version] * len(sampled.ids)),
            stop=sampled.stop,
        )

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None: ...


def logprob_of(token: int) -> float:
    return -(token % 97 + 1) / 64


def make_folder(folder: Path) -> Path:
    """A small model with a chat template."""
    make_model(folder, seed=0)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return folder


def counts(metrics: Mapping[str, float]) -> dict[str, int]:
    """How the rollouts of a batch were handed out."""
    return {name.removeprefix("outgoing/"): int(value) for name, value in metrics.items() if "outgoing/" in name}

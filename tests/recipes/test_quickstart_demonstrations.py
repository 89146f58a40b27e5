"""Demonstrations are the teacher's rollouts, to the token; the mask is on its replies and on nothing else."""

import asyncio
import sys
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import mkdtemp

import pytest

from slipstream import Demonstration
from slipstream.batch.merge import merge
from slipstream.config import to_json
from slipstream.evaluation import evaluate
from slipstream.recipes.demo.tasks import MAX_TURNS
from slipstream.recipes.quickstart import AGENT, FAMILY_ARGS
from slipstream.recipes.quickstart.demonstrations import demonstrations
from slipstream.recipes.quickstart.model import make_model
from slipstream.record import RunStore
from slipstream.render.load import open_renderer
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig
from slipstream.types import Rollout

pytest.importorskip("tokenizers")
pytest.importorskip("numpy")

NUM, SEED, QUALITY = 32, 3, 0.5


@cache
def folder() -> Path:
    return make_model(Path(mkdtemp()) / "model", seed=0)


def replies(one: Demonstration) -> list[str]:
    """The runs of tokens with mask 1, as text."""
    decode = open_renderer(folder(), args=FAMILY_ARGS).decode
    runs = groupby(zip(one.ids, one.mask, strict=True), key=lambda pair: pair[1])
    return [decode([index for index, _ in run]) for masked, run in runs if masked]


def test_the_mask_is_on_the_replies_and_nowhere_else() -> None:
    decode = open_renderer(folder(), args=FAMILY_ARGS).decode
    for one in demonstrations(folder(), num=NUM, seed=SEED, quality=QUALITY):
        text = decode(one.ids)
        said = [part.split("<|im_start|>")[0].removesuffix("\n") for part in text.split("<|im_start|>assistant\n")[1:]]
        assert replies(one) == said
        assert all(reply.startswith("<tool_call>\n") and reply.endswith("</tool_call><|im_end|>") for reply in said)
        assert 1 < len(said) <= MAX_TURNS


def test_a_perfect_teachers_demonstration_in_full() -> None:
    (one,) = demonstrations(folder(), num=1, seed=0, quality=1.0)
    _, *folders, operation, form = one.task_id.split("-")

    def bash(command: str) -> str:
        return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call><|im_end|>'

    assert replies(one) == [
        *(bash(f"cat {name}/note") for name in folders),
        bash(f"{operation} {folders[-1]}/data | {form} > out"),
        '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call><|im_end|>',
    ]


def test_the_same_seed_gives_the_same_demonstrations_and_another_gives_others() -> None:
    first = demonstrations(folder(), num=8, seed=1, quality=QUALITY)
    assert first == demonstrations(folder(), num=8, seed=1, quality=QUALITY)
    assert first != demonstrations(folder(), num=8, seed=2, quality=QUALITY)
    assert [one.task_id for one in first] == [one.task_id for one in demonstrations(folder(), num=8, seed=1, quality=0)]


def played_in_sandboxes(run: Path) -> list[Rollout]:
    config = EvalConfig(
        name="teacher",
        tasks=TasksConfig(
            source="slipstream.recipes.demo.tasks:demo_tasks", num=NUM, args={"seed": SEED, "split": "train"}
        ),
        model=ModelConfig(
            kind="scripted",
            script="slipstream.recipes.quickstart.teacher:teacher",
            script_args={"quality": QUALITY},
            folder=str(folder()),
            family_args=dict(FAMILY_ARGS),
            max_tokens=256,
        ),
        agent=AGENT,
        seed=SEED,
    )

    async def main() -> list[Rollout]:
        async with RunStore.create(run, config=to_json(config)) as store:
            await evaluate(config, store)
            return sorted(store.rollouts(), key=lambda rollout: rollout.job.key.task_id)

    return asyncio.run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local sandboxes need Linux")
def test_they_are_what_the_teacher_does_in_real_sandboxes_token_by_token(tmp_path: Path) -> None:
    real = played_in_sandboxes(tmp_path / "run")
    made = demonstrations(folder(), num=NUM, seed=SEED, quality=QUALITY)
    assert [rollout.job.key.task_id for rollout in real] == [one.task_id for one in made]
    for rollout, one in zip(real, made, strict=True):
        (sample,) = merge(rollout).samples
        assert (sample.ids, sample.mask) == (one.ids, one.mask)
    solved = {rollout.job.key.task_id for rollout in real if rollout.verdict is not None and rollout.verdict.reward}
    right = {one.task_id for one in made if _made_it_right(one)}
    assert right <= solved and 0 < len(solved) < NUM / 2, "the sandboxes agree, and chance may add a few"


def _made_it_right(one: Demonstration) -> bool:
    """Whether the file that was made last is the one that the task asks for, by the name of the task."""
    _, *folders, operation, form = one.task_id.split("-")
    made = [reply for reply in replies(one) if "> out" in reply]
    return bool(made) and f'"{operation} {folders[-1]}/data | {form} > out"' in made[-1]

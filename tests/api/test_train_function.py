"""`train` over objects: imitation of a teacher, a few updates, and the trained model in an evaluation."""

import random
from pathlib import Path

import pytest
from letter_tasks import solver, task

import slipstream as ss
from slipstream.api.imitation import from_run
from slipstream.hub.tiny import TinyShape
from slipstream.render.load import open_renderer

pytest.importorskip("torch")
pytest.importorskip("transformers")

TASKS = [
    task(word, letter, limits=ss.AgentLimits(turns=3, context_tokens=256))
    for word in ("pear", "plum")
    for letter in "pl"
]
SHAPE = TinyShape(hidden=32, layers=2, heads=2, kv_heads=1, head=16, inner=64)
SMALL = {
    "model.max_tokens": 40,
    "model.engine.num_slots": 8,
    "warm_start.learning.num_epochs": 30,
    "warm_start.learning.learning_rate": 1e-2,
    "warm_start.learning.tokens_per_step": 400,
    "learner.learning_rate": 1e-4,
    "samples": 2,
}


def hesitant(scene: ss.ScriptedCall) -> object:
    """Sometimes it asks twice."""
    again = len(scene.messages) == 3 and random.Random(scene.seed).random() < 0.5
    return solver(scene) if not again else ss.act("count", letter="p", word="pear")


def test_a_tiny_model_imitates_is_trained_and_can_be_evaluated(tmp_path: Path) -> None:
    model = ss.tiny_model(TASKS, solver, folder=tmp_path / "tiny", shape=SHAPE)
    shown = ss.demonstrations(TASKS, solver, samples=2, min_reward=1.0, runs=tmp_path)
    result = ss.train(
        TASKS, model=model, held_out=TASKS[:2], demonstrations=shown, steps=1, settings=SMALL, runs=tmp_path
    )
    assert set(result.curve()) == {0, 1}
    assert set(result.rewards()) == {0}
    assert result.num_rollouts == 4 * 2 + 2 * 2
    trained = ss.evaluate(TASKS, model=result.model_path, settings={"model.max_tokens": 40}, runs=tmp_path)
    assert trained.report.num_trusted == 4
    told = [message.content for rollout in trained.rollouts() for message in rollout.turns[0].messages[:-1]]
    assert all("tools" not in text for text in told)
    renderer = open_renderer(result.model_path)
    first = trained.rollouts()[0].turns[0]
    assert "<tools>" not in renderer.decode(first.added), "the trained folder carries that tools are not shown"


def test_demonstrations_are_the_teachers_replies_in_the_students_tokens(tmp_path: Path) -> None:
    model = ss.tiny_model(TASKS, solver, folder=tmp_path / "tiny", shape=SHAPE)
    shown = ss.demonstrations(TASKS, hesitant, samples=3, runs=tmp_path)
    made = from_run(model, seed=0, run=str(shown.run))
    assert len(made) == len(TASKS) * 3
    renderer = open_renderer(model)
    rollouts = ss.open_run(shown.run).rollouts()
    for demonstration, rollout in zip(made, rollouts, strict=True):
        said = [turn.messages[-1] for turn in rollout.turns]
        masked = [index for index, mask in zip(demonstration.ids, demonstration.mask, strict=True) if mask]
        assert masked == [index for reply in said for index in renderer.encode_reply(reply)]


def test_a_teacher_who_fails_is_told_with_the_reason(tmp_path: Path) -> None:
    def broken(scene: ss.ScriptedCall) -> object:
        raise ValueError("no idea")

    with pytest.raises(ss.SlipstreamError, match="no idea"):
        ss.demonstrations(TASKS, broken, runs=tmp_path)
    with pytest.raises(ss.ConfigError, match="give a teacher"):
        ss.demonstrations(TASKS, runs=tmp_path)


@pytest.mark.parametrize("model", ["http://localhost:1/v1", solver])
def test_what_cannot_be_trained_is_refused(tmp_path: Path, model: object) -> None:
    with pytest.raises(ss.ConfigError):
        ss.train(TASKS, model=model, steps=1, runs=tmp_path)  # type: ignore[arg-type]  # a script is fine for evaluate
    assert not list(tmp_path.iterdir())

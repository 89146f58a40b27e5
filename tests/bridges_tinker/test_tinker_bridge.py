"""The tinker bridge against a real server of the Tinker API."""

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bridges_tinker.tinker_server import Server
from slipstream.batch.advantages import leave_one_out
from slipstream.batch.rows import make_batch
from slipstream.bridges.tinker.client import connect
from slipstream.bridges.tinker.data import to_datums
from slipstream.bridges.tinker.learner import TinkerLearner
from slipstream.bridges.tinker.open import make_learner
from slipstream.engine.training.config import LearnerConfig, LoraConfig, LossConfig
from slipstream.errors import BridgeError, ConfigError
from slipstream.render.load import open_renderer
from slipstream.settings import ModelConfig, TasksConfig, TrainConfig
from slipstream.types import (
    Batch,
    Ending,
    EndReason,
    ForkReason,
    Group,
    Job,
    JobKey,
    Rollout,
    Sampled,
    SampleParams,
    Turn,
    Verdict,
    token_ids,
)

T = TypeVar("T")
PROMPT = list(range(40, 60))
IS = LearnerConfig(lora=LoraConfig(rank=8), learning_rate=3e-3, loss=LossConfig(kind="importance_sampling"))
PPO = replace(IS, loss=LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.3))
LOSSES = pytest.mark.parametrize("config", [IS, PPO], ids=["importance_sampling", "ppo"])


def settings(server: Server, config: LearnerConfig) -> TrainConfig:
    return TrainConfig(
        name="test",
        tasks=TasksConfig(),
        model=ModelConfig(kind="local", folder=str(server.model), context_tokens=128),
        bridge="tinker",
        base_url=server.url,
        learner=config,
    )


def with_learner(server: Server, config: LearnerConfig, work: Callable[[TinkerLearner], Awaitable[T]]) -> T:
    async def main() -> T:
        service = await connect(server.url, timeout_s=600.0)
        learner = await make_learner(service, settings(server, config), encode=encoder(server.model))
        try:
            await learner.start()
            return await work(learner)
        finally:
            await learner.aclose()

    return asyncio.run(main())


def encoder(folder: Path) -> Callable[[str], Sequence[int]]:
    return open_renderer(folder, args={"show_tools": False}).encode_text


def params(seed: int, **changed: Any) -> SampleParams:
    return replace(SampleParams(max_tokens=8, seed=seed, stop_ids=(0,)), **changed)


async def sampled_group(learner: TinkerLearner, rewards: Sequence[float]) -> Group:
    """A group of rollouts of two turns each; the last is a fork, so that it is two samples."""
    rollouts = []
    for number, reward in enumerate(rewards):
        first = await learner.completer.complete(PROMPT, params(number))
        prompt = [*PROMPT, *first.ids, 7, 8]
        forks = number == len(rewards) - 1
        kept = len(PROMPT) if forks else len(PROMPT) + len(first.ids)
        second = await learner.completer.complete([*prompt[:kept], 7, 8], params(100 + number))
        turns = (
            Turn(index=0, added=token_ids(PROMPT), sampled=first),
            Turn(
                index=1,
                parent=0,
                num_kept=kept,
                added=token_ids([7, 8]),
                sampled=second,
                fork=ForkReason.CONTEXT_EDIT if forks else None,
            ),
        )
        rollouts.append(
            Rollout(
                job=Job(key=JobKey(phase="train", step=0, task_id="t", sample=number), seed=number),
                attempt=1,
                ending=Ending(reason=EndReason.FINISHED),
                turns=turns,
                verdict=Verdict(reward=reward),
            )
        )
    return Group(phase="train", step=0, task_id="t", rollouts=tuple(rollouts))


async def scores(learner: TinkerLearner, batch: Batch) -> list[float]:
    """The summed logprob of every row's trained tokens, as the server's training side scores it now."""
    datums = to_datums(batch.rows)
    assert learner._adapter is not None
    result = await learner._adapter.forward(datums, learner._loss)
    return [
        sum(now for now, weight in zip(logprobs, datum.weights, strict=True) if weight)
        for datum, logprobs in zip(datums, result.logprobs, strict=True)
    ]


def test_sampled_logprobs_are_those_that_the_server_scores(server: Server) -> None:
    async def work(learner: TinkerLearner) -> tuple[Batch, list[float]]:
        batch = make_batch([await sampled_group(learner, [0.0, 1.0, 0.75])], leave_one_out)
        return batch, await scores(learner, batch)

    batch, scored = with_learner(server, IS, work)
    for row, score in zip(batch.rows, scored, strict=True):
        assert sum(row.sample.logprobs) == pytest.approx(score, abs=1e-3)


def test_the_same_seed_samples_the_same_and_stops_where_told(server: Server) -> None:
    async def work(learner: TinkerLearner) -> list[Sampled]:
        completer = learner.completer
        first = await completer.complete(PROMPT, params(5))
        stopped = await completer.complete(PROMPT, params(5, stop_ids=(first.ids[2],)))
        again, other = await completer.complete(PROMPT, params(5)), await completer.complete(PROMPT, params(6))
        return [first, again, other, stopped]

    first, again, other, stopped = with_learner(server, IS, work)
    assert first.ids == again.ids and first.ids != other.ids
    assert stopped.ids == first.ids[: first.ids.index(first.ids[2]) + 1] and stopped.stop == "stop"
    assert first.stop == "length" and len(first.ids) == 8


@LOSSES
def test_what_was_rewarded_becomes_likelier(server: Server, config: LearnerConfig) -> None:
    async def work(learner: TinkerLearner) -> None:
        batch = make_batch([await sampled_group(learner, [0.0, 1.0, 0.75])], leave_one_out)
        before = await scores(learner, batch)
        for version in (1, 2, 3):
            result = await learner.update(batch)
            assert result.version == learner.version == version
            assert all(math.isfinite(value) for value in result.metrics.values())
            assert result.metrics["learn/grad_norm"] > 0
        after = await scores(learner, batch)
        moved = zip(before, after, batch.rows, strict=True)
        gain = [(now - then) * row.advantage for then, now, row in moved]
        assert sum(gain) > 0.05, "rewarded rows gained on the others"
        sampled = await learner.completer.complete(PROMPT, params(0))
        assert set(sampled.versions) == {3}
        first = make_batch([await sampled_group(learner, [0.0, 1.0, 0.75])], leave_one_out)
        for row, score in zip(first.rows, await scores(learner, first), strict=True):
            assert sum(row.sample.logprobs) == pytest.approx(score, abs=1e-3), "the sampler has the trained weights"

    with_learner(server, config, work)


@LOSSES
def test_what_arrives_at_the_server_is_what_the_batch_made(server: Server, config: LearnerConfig) -> None:
    async def work(learner: TinkerLearner) -> tuple[Batch, float]:
        group = await sampled_group(learner, [0.0, 1.0, 0.75, 0.25])
        limited = replace(group.rollouts[0], ending=Ending(reason=EndReason.TURN_LIMIT))
        batch = make_batch([replace(group, rollouts=(limited, *group.rollouts[1:]))], leave_one_out)
        return batch, (await learner.update(batch)).metrics["learn/loss"]

    batch, loss = with_learner(server, config, work)
    arrived = server.requests("forward_backward")[-1]
    assert arrived["loss_fn"] == ("importance_sampling" if config is IS else "ppo")
    if config is PPO:
        assert arrived["loss_fn_config"] == pytest.approx({"clip_low_threshold": 0.8, "clip_high_threshold": 1.3})
    in_loss = [row for row in batch.rows if row.in_loss]
    assert (len(batch.rows), len(in_loss)) == (5, 4), "a rollout that hit its limit, two of one sample, one of two"
    assert len(arrived["data"]) == 4
    for row, datum in zip(in_loss, arrived["data"], strict=True):
        inputs = {name: field["data"] for name, field in datum["loss_fn_inputs"].items()}
        ids, mask = row.sample.ids.tolist(), row.sample.mask.tolist()
        assert [token for chunk in datum["model_input"]["chunks"] for token in chunk["tokens"]] == ids[:-1]
        assert inputs["target_tokens"] == ids[1:]
        assert inputs["weights"] == mask[1:]
        assert inputs["advantages"] == array("f", [row.advantage * bit for bit in mask[1:]]).tolist()
        assert inputs["logprobs"] == row.sample.logprobs[1:].tolist()
    assert loss == pytest.approx(own_loss(arrived), abs=1e-4), "the server's own loss function says the same"


def own_loss(arrived: dict[str, Any]) -> float:
    """SkyRL's loss of what arrived, when nothing is learnt yet, as a mean over trained tokens."""
    import numpy as np
    from skyrl.tinker.loss_fns import LOSS_FUNCTION_MAP, LossFnConfig

    clips = arrived["loss_fn_config"] or {}
    config = LossFnConfig(
        clip_low_threshold=np.asarray(clips.get("clip_low_threshold", 0.8)),
        clip_high_threshold=np.asarray(clips.get("clip_high_threshold", 1.2)),
    )
    total, num = 0.0, 0
    for datum in arrived["data"]:
        field = {name: np.asarray(value["data"]) for name, value in datum["loss_fn_inputs"].items()}
        losses = LOSS_FUNCTION_MAP[arrived["loss_fn"]](
            field["logprobs"], field["weights"], field["logprobs"], field["advantages"], config
        )
        total, num = total + float(losses.sum()), num + int(field["weights"].sum())
    return total / num


def test_several_optimiser_steps_arrive_in_order(server: Server) -> None:
    before = len(server.requests("optim_step"))
    config = replace(IS, num_epochs=4, learning_rate=1e-3, warmup_steps=4)

    async def work(learner: TinkerLearner) -> float:
        batch = make_batch([await sampled_group(learner, [0.0, 1.0, 0.75])], leave_one_out)
        return (await learner.update(batch)).metrics["learn/steps"]

    assert with_learner(server, config, work) == 4
    rates = [each["adam_params"]["learning_rate"] for each in server.requests("optim_step")[before:]]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3])


def test_a_checkpoint_is_gone_on_from_with_the_same_weights(server: Server, tmp_path: Path) -> None:
    async def first(learner: TinkerLearner) -> tuple[Batch, list[float], list[int]]:
        batch = make_batch([await sampled_group(learner, [0.0, 1.0, 0.75])], leave_one_out)
        await learner.update(batch)
        await learner.save(tmp_path / "version-000001")
        kept = await scores(learner, batch), (await learner.completer.complete(PROMPT, params(3))).ids.tolist()
        await learner.update(batch)
        return batch, *kept

    batch, scored, ids = with_learner(server, IS, first)

    async def second(learner: TinkerLearner) -> None:
        await learner.load(tmp_path / "version-000001")
        assert learner.version == 1
        assert await scores(learner, batch) == pytest.approx(scored, abs=1e-3)
        sampled = await learner.completer.complete(PROMPT, params(3))
        assert (sampled.ids.tolist(), set(sampled.versions)) == (ids, {1})
        assert (await learner.update(batch)).version == 2

    with_learner(server, IS, second)


def test_a_rank_above_the_servers_is_refused_in_its_words(server: Server) -> None:
    with pytest.raises(BridgeError, match=r"rank 64 \(learner\.lora\.rank\).* must be between 1 and 8"):
        with_learner(server, replace(IS, lora=LoraConfig(rank=64)), lambda learner: asyncio.sleep(0))


def test_another_tokenizer_is_refused(server: Server) -> None:
    async def main() -> None:
        service = await connect(server.url, timeout_s=600.0)
        learner = await make_learner(
            service, settings(server, IS), encode=lambda text: [ord(each) % 99 for each in text]
        )
        try:
            with pytest.raises(ConfigError, match=r"tokenizer in model\.folder is not that of"):
                await learner.start()
        finally:
            await learner.aclose()

    asyncio.run(main())


def test_a_model_that_is_not_served_is_refused(server: Server) -> None:
    async def main() -> None:
        service = await connect(server.url, timeout_s=60.0)
        config = settings(server, IS)
        with pytest.raises(ConfigError, match="does not train it"):
            await make_learner(
                service, replace(config, model=replace(config.model, name="other")), encode=lambda text: [1]
            )
        await service.aclose()

    asyncio.run(main())


def test_no_server_is_told_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="nothing answers at base_url"):
        asyncio.run(connect("http://127.0.0.1:9", timeout_s=5.0))

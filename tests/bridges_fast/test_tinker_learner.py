"""The tinker bridge against a server in memory."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tinker_stage import FakeServer, batch, learner_on, row

from slipstream.bridges.tinker.open import find_model
from slipstream.engine.training.config import LearnerConfig, LossConfig, WarmStartConfig
from slipstream.errors import BridgeError, ConfigError, ContextOverflow, ModelError
from slipstream.simulate.clock import run_virtual
from slipstream.types import SampleParams

TWO_STEPS = LearnerConfig(num_minibatches=2)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pass_and_step_of_every_minibatch_are_sent_before_any_is_waited_for() -> None:
    server = FakeServer()
    asyncio.run(learner_on(server, TWO_STEPS).update(batch(row(sample=0), row(sample=1))))
    sent = [line for line in server.log if line.startswith(("sent", "waits"))]
    assert sent[:4] == ["sent pass", "sent step"] * 2
    assert sorted(sent[4:]) == ["waits for pass"] * 2 + ["waits for step"] * 2


def test_an_update_counts_a_version_and_is_sampled_from() -> None:
    async def main() -> None:
        learner = learner_on(FakeServer())
        await learner.start()
        sampled = await learner.completer.complete([1], SampleParams())
        assert (sampled.ids.tolist(), sampled.versions.tolist()) == ([0, 9], [0, 0])
        result = await learner.update(batch(row()))
        assert result.version == learner.version == 1
        sampled = await learner.completer.complete([1], SampleParams())
        assert (sampled.ids.tolist(), sampled.versions.tolist()) == ([1, 9], [1, 1])

    asyncio.run(main())


def test_the_figures_of_an_update_are_those_of_its_logprobs() -> None:
    server = FakeServer(off_by=0.5)
    result = asyncio.run(learner_on(server).update(batch(row(advantage=1.0), row(sample=1, advantage=-1.0))))
    figures = result.metrics
    assert figures["learn/engine_diff_mean"] == pytest.approx(0.5)
    assert figures["learn/ratio_max"] == pytest.approx(1.6487, abs=1e-3)
    assert figures["learn/loss"] == pytest.approx(0.0, abs=1e-6)
    assert figures["learn/grad_norm"] == figures["tinker/some/grad_norm"] == 0.25
    assert (figures["learn/tokens"], figures["learn/rows"], figures["learn/steps"]) == (4, 2, 1)


def test_ppo_goes_out_with_its_thresholds() -> None:
    server = FakeServer()
    config = LearnerConfig(loss=LossConfig(kind="ppo_clip", clip_low=0.2, clip_high=0.3))
    result = asyncio.run(learner_on(server, config).update(batch(row())))
    ((_, loss),) = server.passes
    assert loss.name == "ppo"
    assert loss.config == pytest.approx({"clip_low_threshold": 0.8, "clip_high_threshold": 1.3})
    assert result.metrics["learn/clip_high"] == 0.0


def test_a_batch_with_nothing_to_learn_from_counts_and_asks_nothing() -> None:
    server = FakeServer()

    async def main() -> list[int]:
        learner = learner_on(server)
        await learner.update(batch(row(in_loss=False)))
        return (await learner.completer.complete([1], SampleParams())).versions.tolist()

    assert asyncio.run(main()) == [1, 1]
    assert not server.passes and not server.steps


@pytest.mark.parametrize("request_name", ["pass", "step", "sampler"])
def test_an_update_that_fails_leaves_no_version_and_no_checkpoint(request_name: str, tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeServer()
        learner = learner_on(server)
        await learner.update(batch(row()))
        await learner.save(tmp_path / "version-000001")
        server.refused = request_name
        with pytest.raises(BridgeError, match=f"refuses a {request_name}"):
            await learner.update(batch(row()))
        assert learner.version == 1
        server.refused = ""
        with pytest.raises(BridgeError, match="last checkpoint"):
            await learner.save(tmp_path / "version-000002")
        with pytest.raises(BridgeError, match="last checkpoint"):
            await learner.update(batch(row()))
        assert names(tmp_path) == ["version-000001"]
        await learner.load(tmp_path / "version-000001")
        assert (await learner.update(batch(row()))).version == 2
        assert (await learner.completer.complete([1], SampleParams())).ids.tolist() == [2, 9]

    asyncio.run(main())


def test_a_save_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeServer(refused="save")
        learner = learner_on(server)
        with pytest.raises(BridgeError, match="refuses a save"):
            await learner.save(tmp_path / "version-000000")
        assert names(tmp_path) == []

    asyncio.run(main())


def test_a_new_learner_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    server = FakeServer()
    config = LearnerConfig(learning_rate=1.0, warmup_steps=10)

    async def first() -> None:
        learner = learner_on(server, config)
        for _ in range(3):
            await learner.update(batch(row()))
        await learner.save(tmp_path / "v")
        await learner.aclose()

    async def second() -> None:
        learner = learner_on(server, config)
        await learner.load(tmp_path / "v")
        assert learner.version == 3
        sampled = await learner.completer.complete([1], SampleParams())
        assert (sampled.ids.tolist(), sampled.versions.tolist()) == ([3, 9], [3, 3])
        await learner.update(batch(row()))

    asyncio.run(first())
    assert server.log[-1] == "unload" and server.closed
    asyncio.run(second())
    assert [step.learning_rate for step in server.steps] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        server = FakeServer()
        learner = learner_on(server)
        await learner.save(tmp_path / "v")
        saved = json.loads((tmp_path / "v" / "tinker.json").read_text())
        (tmp_path / "v" / "tinker.json").write_text(json.dumps({**saved, "rank": 3}))
        with pytest.raises(ConfigError, match="rank 3"):
            await learner.load(tmp_path / "v")
        (tmp_path / "v" / "tinker.json").write_text(json.dumps({**saved, "state": "lost"}))
        with pytest.raises(BridgeError, match="has no lost"):
            await learner.load(tmp_path / "v")
        with pytest.raises(ConfigError, match="not a checkpoint of bridge=tinker"):
            await learner.load(tmp_path)

    asyncio.run(main())


def test_a_server_without_logprobs_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="without logprobs"):
        asyncio.run(learner_on(FakeServer(has_logprobs=False)).start())


def test_a_server_that_cannot_be_sampled_from_is_refused_at_the_start() -> None:
    """As SkyRL's cannot with an SDK from 0.29 on."""
    with pytest.raises(ConfigError, match=r"the server of this test cannot be sampled from.*: no such adapter"):
        asyncio.run(learner_on(FakeServer(has_lost_it=True)).start())


def test_a_server_that_does_not_sample_from_what_it_trains_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not sample from what it trains"):
        asyncio.run(learner_on(FakeServer(off_by=3.0)).start())


def test_a_server_without_the_loss_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="does not take the loss importance_sampling"):
        asyncio.run(learner_on(FakeServer(refused="forward")).start())


def test_another_tokenizer_than_the_servers_is_refused() -> None:
    server = FakeServer(encode=lambda text: [5, 6])
    asyncio.run(learner_on(server, encode=lambda text: [5, 6]).start())
    with pytest.raises(ConfigError, match=r"tokenizer in model\.folder is not that of base"):
        asyncio.run(learner_on(server, encode=lambda text: [5, 7]).start())


def test_the_base_model_is_found_by_name_or_is_the_only_one() -> None:
    one, two = FakeServer(served={"m": 512}), FakeServer(served={"m": None, "n": 64})
    assert asyncio.run(find_model(one, "")) == ("m", 512)
    assert asyncio.run(find_model(two, "n")) == ("n", 64)
    with pytest.raises(ConfigError, match="has m, n"):
        asyncio.run(find_model(two, ""))
    with pytest.raises(ConfigError, match="does not train it"):
        asyncio.run(find_model(one, "other"))


def test_a_warm_start_imitates_and_then_begins_with_a_clean_optimiser() -> None:
    server = FakeServer()
    config = WarmStartConfig(num_epochs=1, tokens_per_step=6)

    async def main() -> None:
        learner = learner_on(server)
        figures = await learner.warm_start([row(sample=number).sample for number in range(4)], config)
        assert figures["warm/steps"] == 2 and figures["warm/loss"] == pytest.approx(1.5)
        assert learner.version == 0
        assert (await learner.completer.complete([1], SampleParams())).ids.tolist() == [2, 9]

    asyncio.run(main())
    assert {loss.name for _, loss in server.passes} == {"cross_entropy"}
    (again,) = [line for line in server.log if "without optimiser" in line]
    assert again.startswith("train warm-")


def test_what_was_trained_is_named_in_a_folder(tmp_path: Path) -> None:
    asyncio.run(learner_on(FakeServer()).export(tmp_path / "trained"))
    assert json.loads((tmp_path / "trained" / "tinker.json").read_text())["adapter"].startswith("tinker://trained-")


# ---------------------------------------------------------------- sampling


def test_nothing_is_sampled_while_weights_change_and_late_requests_come_first() -> None:
    async def main() -> None:
        server = FakeServer()
        learner = learner_on(server)
        await learner.start()
        server.sample_s = 5.0
        late = asyncio.create_task(learner.completer.complete([1], SampleParams()))
        await asyncio.sleep(1.0)
        late.cancel()  # nobody waits for it, but the server has it
        updating = asyncio.create_task(learner.update(batch(row())))
        await asyncio.sleep(1.0)
        held = asyncio.create_task(learner.completer.complete([1], SampleParams()))
        await asyncio.sleep(0)
        assert "sent pass" not in server.log
        await updating
        assert (await held).versions.tolist() == [1, 1]
        assert server.log.index("sampled by 0", 2) < server.log.index("sent pass")
        assert server.log[-1] == "sampled by 1"

    run_virtual(main())


def test_with_overlap_an_update_waits_for_nobody() -> None:
    async def main() -> None:
        server = FakeServer()
        learner = learner_on(server, overlap=True)
        await learner.start()
        server.sample_s = 5.0
        asking = asyncio.create_task(learner.completer.complete([1], SampleParams()))
        await asyncio.sleep(1.0)
        await learner.update(batch(row()))
        assert asyncio.get_running_loop().time() < 2.0
        assert (await asking).versions.tolist() == [0, 0]

    run_virtual(main())


def test_a_sample_that_takes_too_long_is_a_model_error() -> None:
    async def main() -> None:
        server = FakeServer()
        learner = learner_on(server)
        await learner.start()
        server.sample_s = 100.0
        with pytest.raises(ModelError, match="within 60 s"):
            await learner.completer.complete([1], SampleParams())
        with pytest.raises(ModelError, match="within 2 s"):
            await learner.completer.complete([1], SampleParams(), timeout_s=2.0)
        await learner.aclose()

    run_virtual(main())


def test_a_lost_adapter_ends_the_run_and_fails_no_rollout() -> None:
    async def main() -> None:
        server = FakeServer()
        learner = learner_on(server)
        await learner.start()
        watching = asyncio.create_task(learner.watch())
        await asyncio.sleep(0)
        with pytest.raises(ModelError):  # it is the request that is at fault: nobody is told
            await learner.completer.complete([1] * 30, SampleParams())
        server.has_lost_it = True
        asking = asyncio.create_task(learner.completer.complete([1], SampleParams()))
        with pytest.raises(BridgeError, match="has lost the adapter"):
            await watching
        assert not asking.done()
        asking.cancel()

    asyncio.run(main())


def test_prompts_fit_the_window_or_overflow() -> None:
    async def main() -> None:
        learner = learner_on(FakeServer(), context_tokens=8)
        await learner.start()
        sampler = learner.completer._sampler
        await learner.completer.complete([1] * 5, SampleParams(max_tokens=50, seed=2**62, stop_ids=(9,)))
        asked = sampler.seen[-1]  # type: ignore[union-attr]
        assert asked.max_tokens == 3 and asked.stop_ids == (9,)
        assert asked.seed is not None and 0 <= asked.seed < 2**31
        with pytest.raises(ContextOverflow):
            await learner.completer.complete([1] * 8, SampleParams())

    asyncio.run(main())


def test_logprobs_of_another_distribution_are_left_out() -> None:
    async def main() -> None:
        learner = learner_on(FakeServer())
        await learner.start()
        assert (await learner.completer.complete([1], SampleParams())).logprobs is not None
        assert (await learner.completer.complete([1], SampleParams(temperature=0.5))).logprobs is None
        assert (await learner.completer.complete([1], SampleParams(top_p=0.9))).logprobs is None

    asyncio.run(main())


def test_losses_without_a_counterpart_are_refused() -> None:
    config = replace(LearnerConfig(), loss=LossConfig(kind="sequence"))
    with pytest.raises(ConfigError, match="importance_sampling and ppo_clip"):
        learner_on(FakeServer(), config)

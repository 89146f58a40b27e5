"""Whole steps of SkyRL-train's own loop: how its loss is scaled, and that what it computed is reported."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from driven_stage import KINDS, make_folder
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.train.dataset import PromptDataset
from skyrl.train.trainer import RayPPOTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from bridges_skyrl.cpu_worker import CpuDispatch, Engine, running
from bridges_skyrl.test_skyrl_bridge import arrived, by_task, generate, make_cfg, recorded, trained_on
from slipstream.batch.advantages import leave_one_out
from slipstream.batch.rows import make_batch
from slipstream.bridges.skyrl.observe import ObservedTrainer
from slipstream.bridges.skyrl.setup import make_generator
from slipstream.bridges.skyrl.trainer import NORMALISERS, SlipstreamTrainer
from slipstream.bridges.step_report import report
from slipstream.engine.training.losses import row_scales

MAX_LEN = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "model")


def gradients(trainer: Any, cfg: Any, data: Any) -> Any:
    """Of the loss of a whole batch by each token's logprob, through SkyRL-train's own scaling and loss."""
    trainer._normalize_advantages(data, [(0, len(data["sequences"]))], data.metadata["policy_prompt_boundaries"])
    logprobs = data["rollout_logprobs"].clone().requires_grad_()
    loss, _ = PolicyLossRegistry.get("regular")(
        logprobs, logprobs.detach(), data["advantages"], config=cfg.trainer.algorithm, loss_mask=data["loss_mask"]
    )
    loss.backward()
    return logprobs.grad


@pytest.mark.parametrize("reduction", NORMALISERS)
def test_a_tokens_gradient_is_what_the_embedded_learner_gives_it(folder: Path, tmp_path: Path, reduction: str) -> None:
    """With 16 rollouts, of which some are masked and some have several rows."""
    cfg = make_cfg(
        folder, tmp_path, f"trainer.algorithm.loss_reduction={reduction}", f"trainer.algorithm.max_seq_len={MAX_LEN}"
    )
    output, uids = generate(folder, cfg, KINDS)
    data = trained_on(folder, cfg, output, uids, SlipstreamTrainer)
    trainer = SlipstreamTrainer.__new__(SlipstreamTrainer)
    trainer.cfg = cfg
    found = gradients(trainer, cfg, data)

    rows = [row for row in make_batch(by_task(recorded(tmp_path), KINDS), leave_one_out).rows if row.in_loss]
    scales = row_scales(
        [row.sample.key for row in rows],
        [sum(row.sample.mask) for row in rows],
        NORMALISERS[reduction],
        fixed_length=MAX_LEN,
    )
    places = arrived(output, KINDS)
    assert len(rows) > len({row.sample.key for row in rows}) and len({row.sample.key for row in rows}) < 16
    wanted = torch.zeros_like(found)
    taken: dict[Any, int] = {}
    for row, scale in zip(rows, scales, strict=True):
        place = places[row.sample.key][taken.setdefault(row.sample.key, 0)]
        taken[row.sample.key] += 1
        wanted[place] = -row.advantage * scale * data["loss_mask"][place]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-9)


def test_skyrls_own_scale_is_smaller_by_the_rows_that_do_not_count(folder: Path, tmp_path: Path) -> None:
    cfg = make_cfg(
        folder,
        tmp_path,
        "trainer.algorithm.loss_reduction=seq_mean_token_sum_norm",
        f"trainer.algorithm.max_seq_len={MAX_LEN}",
    )
    output, uids = generate(folder, cfg, KINDS)
    norms = []
    for kind in (SlipstreamTrainer, RayPPOTrainer):
        trainer = kind.__new__(kind)
        trainer.cfg = cfg
        norms.append(float(gradients(trainer, cfg, trained_on(folder, cfg, output, uids, SlipstreamTrainer)).norm()))
    learnt = sum(
        any(any(output["loss_masks"][place]) for place in places) for places in arrived(output, KINDS).values()
    )
    assert learnt < 16 < len(output["response_ids"])
    assert norms[1] / norms[0] == pytest.approx(learnt / len(output["response_ids"]))


def train(folder: Path, run: Path, *, syncs: bool = True) -> dict[str, Any]:
    """Two steps on all four kinds of tasks, reported."""
    torch.manual_seed(0)
    cfg = make_cfg(
        folder,
        run / "rollouts",
        f"slipstream.observe={run / 'steps.jsonl'}",
        f"trainer.export_path={run}",
        "trainer.epochs=2",
        "trainer.eval_before_train=false",
        "trainer.eval_interval=-1",
        "trainer.ckpt_interval=-1",
        "trainer.hf_save_interval=1",
        "trainer.resume_mode=none",
        "trainer.enable_ray_gpu_monitor=false",
        "trainer.print_example_interval=0",
        "trainer.placement.colocate_all=false",
        "trainer.algorithm.use_kl_loss=false",
        "trainer.algorithm.off_policy_correction.tis_ratio_type=token",
        "generator.inference_engine.enable_ray_prometheus_stats=false",
        "data.dataloader.num_workers=0",
        "data.dataloader.persistent_workers=false",
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = Engine(folder, model)
    tracked: list[dict[str, float]] = []

    class Tracker:
        def log(self, metrics: dict[str, float], step: int, commit: bool) -> None:
            tracked.append(metrics)

        def finish(self) -> None: ...

    with running(engine) as url:
        client = RemoteInferenceClient(
            proxy_url=url, server_urls=[url], data_parallel_size=1, model_name="small", tokenizer=tokenizer
        )
        generator = make_generator(cfg, tokenizer, client)
        trainer = ObservedTrainer(
            cfg=cfg,
            tracker=Tracker(),
            tokenizer=tokenizer,
            train_dataset=PromptDataset(
                datasets=cfg.data.train_data, tokenizer=tokenizer, max_prompt_length=1024, num_workers=1
            ),
            inference_engine_client=client,
            generator=generator,
        )
        trainer.dispatch = CpuDispatch(cfg, model, engine, syncs=syncs)

        async def main() -> None:
            try:
                await trainer.train()
            finally:
                await generator.aclose()
                await client.aclose()

        asyncio.run(main())
    assert len(tracked) == 2 and tracked[0]["policy/grad_norm"] > 0
    return report(run)


def test_whole_steps_are_observed_and_pass_the_report(folder: Path, tmp_path: Path) -> None:
    found = train(folder, tmp_path)
    first, second = found["steps"]
    # A step's weights are compared with those of the step before: the first of a run has none.
    assert (first["failed"], second["failed"]) == ([], [])
    for step in (first, second):
        assert (step["rollouts"], step["groups"], step["mixed_groups"]) == (16, 4, 4)
        assert step["rows"] > 16
        assert step["max_advantage_difference"] < 1e-5
        assert step["trainer_against_passed"]["max"] < 1e-3 < step["update_moved"]["max"]
        assert step["engine_after_sync"]["max"] < 1e-3
        assert step["seconds"]["generate"] > 0
    assert found["passed"]


def test_an_engine_that_keeps_the_old_weights_fails_the_report(folder: Path, tmp_path: Path) -> None:
    found = train(folder, tmp_path, syncs=False)
    assert "engine_logprobs" in found["steps"][0]["failed"] or "trainer_logprobs" in found["steps"][1]["failed"]

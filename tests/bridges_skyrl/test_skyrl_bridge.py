"""The bridge against SkyRL-train itself: its client, its validation, its post-processing, its advantage code."""

import asyncio
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driven_stage import KINDS, make_folder
from skyrl.train.dataset import PromptDataset
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import validate_generator_output
from transformers import AutoTokenizer

from bridges_skyrl.skyrl_stage import RECIPE, STEP, make_input, serving
from slipstream.batch.advantages import dr_grpo, leave_one_out
from slipstream.batch.rows import make_batch
from slipstream.bridges.driven import check_version
from slipstream.bridges.skyrl.main import plan, read_config
from slipstream.bridges.skyrl.setup import SEAM, make_generator
from slipstream.errors import BridgeError, ConfigError
from slipstream.record import RunStore
from slipstream.types import Group, JobKey, Rollout, Row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "model")


def make_cfg(folder: Path, runs: Path, *changes: str) -> Any:
    return read_config(
        [
            f"slipstream.recipe={RECIPE}",
            f"slipstream.folder={runs}",
            f"trainer.policy.model.path={folder}",
            "trainer.train_batch_size=4",
            "trainer.policy_mini_batch_size=4",
            "trainer.max_prompt_length=1024",
            "trainer.logger=console",
            "generator.n_samples_per_prompt=4",
            *changes,
        ]
    )


def of_prompts(num: int) -> tuple[str, str]:
    """For batches of so many prompts."""
    return f"trainer.train_batch_size={num}", f"trainer.policy_mini_batch_size={num}"


def generate(
    folder: Path, cfg: Any, kinds: Sequence[str], *, num: int = 4, phase: str = "train", logprobs: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """One batch, through SkyRL-train's own client; its validation has accepted what comes out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    async def main() -> tuple[dict[str, Any], list[str]]:
        async with serving(folder, tokenizer, logprobs=logprobs) as client:
            generator = make_generator(cfg, tokenizer, client)
            try:
                given, uids = make_input(list(kinds), num=num, phase=phase)
                output = await generator.generate(given)
            finally:
                await generator.aclose()
        validate_generator_output(len(given["prompts"]), output, step_wise=cfg.generator.step_wise_trajectories)
        if cfg.generator.step_wise_trajectories:
            uids = [each.instance_id for each in output["trajectory_ids"]]
        return output, uids

    return asyncio.run(main())


def trained_on(folder: Path, cfg: Any, output: dict[str, Any], uids: list[str], kind: Any = RayPPOTrainer) -> Any:
    """What SkyRL-train's own trainer makes from it: its post-processing, its padding, its advantages."""
    trainer = kind.__new__(kind)
    trainer.cfg = cfg
    trainer.all_metrics = {}
    trainer.tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    output, uids = trainer.postprocess_generator_output(dict(output), uids)
    data = trainer.convert_to_training_input(output, uids)
    data["values"] = None
    return trainer.compute_advantages_and_returns(data)


def recorded(runs: Path) -> list[Rollout]:
    return sorted(RunStore.read(runs / "1").rollouts(), key=lambda rollout: rollout.job.key)


def by_task(rollouts: Sequence[Rollout], kinds: Sequence[str]) -> list[Group]:
    return [
        Group(
            phase="train",
            step=STEP,
            task_id=kind,
            rollouts=tuple(each for each in rollouts if each.job.key.task_id == kind),
        )
        for kind in kinds
    ]


def arrived(output: dict[str, Any], kinds: Sequence[str]) -> dict[JobKey, list[int]]:
    """Which rows of the output are of which rollout."""
    found: dict[JobKey, list[int]] = {}
    for place, each in enumerate(output["trajectory_ids"]):
        task_id = kinds[int(each.instance_id)]
        key = JobKey(phase="train", step=STEP, task_id=task_id, sample=each.repetition_id)
        found.setdefault(key, []).append(place)
    return found


def wanted_rows(rows: Sequence[Row]) -> dict[JobKey, list[Row]]:
    found: dict[JobKey, list[Row]] = {}
    for row in rows:
        found.setdefault(row.sample.key, []).append(row)
    return found


def test_this_is_skyrl_0_4_0() -> None:
    assert metadata.version("skyrl") == "0.4.0"
    check_version("skyrl", "0.0.1", SEAM)  # what the bridge uses of it is there


def test_what_arrives_is_what_batch_made_and_so_are_skyrls_advantages(folder: Path, tmp_path: Path) -> None:
    cfg = make_cfg(folder, tmp_path)
    assert cfg.generator.step_wise_trajectories and cfg.trainer.algorithm.advantage_estimator == "slipstream"
    output, uids = generate(folder, cfg, KINDS)
    made = wanted_rows(make_batch(by_task(recorded(tmp_path), KINDS), leave_one_out).rows)
    places = arrived(output, KINDS)
    data = trained_on(folder, cfg, output, uids)
    assert len(places) == 16 and set(made) < set(places)
    for key, rows in made.items():
        assert len(rows) == len(places[key])
        for row, place in zip(rows, places[key], strict=True):
            start = row.sample.mask.index(1)
            mask = [bit * row.in_loss for bit in row.sample.mask[start:]]
            assert output["prompt_token_ids"][place] == row.sample.ids[:start].tolist()
            assert output["response_ids"][place] == row.sample.ids[start:].tolist()
            assert output["loss_masks"][place] == mask
            assert output["rollout_logprobs"][place] == row.sample.logprobs[start:].tolist()
            # On the trainer's side: padded, and with the advantage on every token of the response.
            num = len(mask)
            inside = data["response_mask"][place].bool()
            assert data["loss_mask"][place][inside].tolist() == mask
            assert data["sequences"][place][data["attention_mask"][place].bool()].tolist() == row.sample.ids.tolist()
            assert data["rollout_logprobs"][place][inside].tolist() == output["rollout_logprobs"][place]
            assert data["advantages"][place][inside].tolist() == pytest.approx([row.advantage] * num)
    for key in set(places) - set(made):
        assert not any(bit for place in places[key] for bit in output["loss_masks"][place])
        assert all(output["stop_reasons"][place] == "error" for place in places[key])


def test_plain_failed_and_truncated_rollouts_are_accepted_without_steps(folder: Path, tmp_path: Path) -> None:
    cfg = make_cfg(folder, tmp_path, "generator.step_wise_trajectories=false", *of_prompts(2))
    output, uids = generate(folder, cfg, ["plain", "broken"])
    assert output["is_last_step"] is None
    assert [len(ids) for ids in output["response_ids"]].count(1) == 1  # lost before it spoke: one end token
    data = trained_on(folder, cfg, output, uids)
    reached = [bool((data["advantages"][place] * data["loss_mask"][place]).any()) for place in range(8)]
    assert reached == [True] * 4 + [True, False, False, True]
    # A window of 512 tokens cuts every rollout off: all are in the baseline, and none in the loss.
    window = ("trainer.max_prompt_length=460", "generator.max_input_length=460")
    short = make_cfg(folder, tmp_path / "short", *window, "generator.sampling_params.max_generate_length=52")
    with pytest.raises(BridgeError, match="token_limit"):
        generate(folder, short, ["plain"])


def test_a_truncated_rollout_is_masked_and_keeps_its_reward(folder: Path, tmp_path: Path) -> None:
    cfg = make_cfg(folder, tmp_path, "trainer.algorithm.advantage_estimator=rloo")
    output, _ = generate(folder, cfg, ["limits"])
    steps = arrived(output, ["limits"])
    ends = {key.sample: [output["stop_reasons"][place] for place in places] for key, places in steps.items()}
    assert {number: set(reasons) for number, reasons in ends.items()} == {
        0: {"stop"},
        1: {"length"},
        2: {"stop"},
        3: {"stop"},  # stuck, which is its own doing
    }
    assert len(ends[1]) == 3  # three steps, for its context was rewritten twice
    assert not any(bit for key, places in steps.items() if key.sample == 1 for bit in output["loss_masks"][places[0]])
    assert [output["rewards"][places[0]] for places in steps.values()] == [1.0, 0.0, 1.0, 0.0]


def test_skyrls_own_grpo_gives_the_trusted_what_they_would_get_without_the_untrusted(
    folder: Path, tmp_path: Path
) -> None:
    cfg = make_cfg(
        folder,
        tmp_path,
        "trainer.algorithm.advantage_estimator=grpo",
        "trainer.algorithm.grpo_norm_by_std=false",
    )
    output, uids = generate(folder, cfg, KINDS)
    made = wanted_rows(make_batch(by_task(recorded(tmp_path), KINDS), dr_grpo).rows)
    data = trained_on(folder, cfg, output, uids)
    for key, places in arrived(output, KINDS).items():
        for place in places:
            found = data["advantages"][place] * data["loss_mask"][place]
            rows = made.get(key, [])
            value = rows[0].advantage if rows and rows[0].in_loss else 0.0
            assert found[found != 0].tolist() == pytest.approx([value] * int((found != 0).sum()), abs=1e-6)
            assert bool((found != 0).any()) == (value != 0)


def test_skyrls_own_rloo_keeps_the_mean_and_is_smaller_by_a_known_factor(folder: Path, tmp_path: Path) -> None:
    """Leave-one-out divides by the rows that it sees: with 2 of 4 trusted, 4/3 in place of 2/1."""
    cfg = make_cfg(folder, tmp_path, "trainer.algorithm.advantage_estimator=rloo", *of_prompts(1))
    output, uids = generate(folder, cfg, ["broken"])
    data = trained_on(folder, cfg, output, uids)
    found = [float((data["advantages"][place] * data["loss_mask"][place]).abs().max()) for place in range(4)]
    trusted = make_batch(by_task(recorded(tmp_path), ["broken"]), leave_one_out).rows
    assert [abs(row.advantage) for row in trusted] == [1.0, 1.0]
    assert found == pytest.approx([(4 / 3) / (2 / 1), 0.0, 0.0, (4 / 3) / (2 / 1)])


def test_a_batch_that_is_masked_whole_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match=r"step 5 can be learnt from .*the engine is gone"):
        generate(folder, make_cfg(folder, tmp_path), ["broken"], num=3)
    assert len(recorded(tmp_path)) == 3


def test_evaluation_goes_by_rewards(folder: Path, tmp_path: Path) -> None:
    output, _ = generate(folder, make_cfg(folder, tmp_path), ["plain", "broken"], phase="eval")
    assert output["rewards"] == [1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.5, 0.0]
    assert output["rollout_metrics"]["slipstream/outgoing/untrusted"] == 2


def test_a_rollout_of_several_sequences_needs_steps(folder: Path, tmp_path: Path) -> None:
    cfg = make_cfg(folder, tmp_path, "generator.step_wise_trajectories=false")
    with pytest.raises(ConfigError, match=r"set generator\.step_wise_trajectories=true"):
        generate(folder, cfg, ["pages"])


def test_an_engine_without_logprobs_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gave no logprobs .* set generator.sampling_params.logprobs=1"):
        generate(folder, make_cfg(folder, tmp_path), ["plain"], logprobs=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("generator.sampling_params.logprobs=null", "so set it to 1"),
        ("generator.sampling_params.temperature=0.7", "logprobs_mode=processed_logprobs"),
        ("trainer.algorithm.use_kl_in_reward=true", "use_kl_loss=true"),
        ("slipstream.recipe=", "name a recipe"),
        ("generator.merge_stepwise_output=true", "merged already"),
        ("trainer.algorithm.advantage_batch_normalize=true", "so set it to false"),
        ("config=none", "those that ship are one_gpu, swe_32b"),
        ("trainer.run_name=${trainer.project_name}", "refers to another that is not given"),
    ],
)
def test_settings_that_cannot_work_are_refused(folder: Path, tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_cfg(folder, tmp_path, change)


def test_a_plan_says_what_would_be_done(folder: Path, tmp_path: Path) -> None:
    said = plan(make_cfg(folder, tmp_path, *of_prompts(2)))
    assert said.startswith("stage: 4 tasks from ") and f"recorded in {tmp_path}" in said
    assert said.endswith("SkyRL-train: 2 prompts of 4 rollouts a step; GPUs that train: 1, which sample too")


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 2, 3])
    with pytest.raises(ConfigError, match="is not the trainer's"):
        make_generator(make_cfg(folder, tmp_path), other, None)


def test_skyrls_dataset_reads_the_prompts_that_are_written(folder: Path, tmp_path: Path) -> None:
    cfg = make_cfg(folder, tmp_path)
    dataset = PromptDataset(
        datasets=cfg.data.train_data,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        max_prompt_length=cfg.trainer.max_prompt_length,
        num_workers=1,
    )
    assert [dataset[place][2]["task_id"] for place in range(len(dataset))] == list(KINDS)


def test_the_configuration_for_swe_at_32b_is_one_that_skyrl_takes(folder: Path, tmp_path: Path) -> None:
    cfg = read_config(
        [
            "config=swe_32b",
            f"slipstream.recipe={RECIPE}",
            f"slipstream.folder={tmp_path}",
            f"trainer.policy.model.path={folder}",
        ]
    )
    assert (cfg.trainer.train_batch_size, cfg.generator.n_samples_per_prompt) == (64, 8)
    assert cfg.trainer.policy.optimizer_config.lr == 1e-6
    assert cfg.data.train_data == [str(tmp_path / "data" / "train.jsonl")]


def test_the_configuration_for_one_gpu_keeps_all_in_one_folder(folder: Path, tmp_path: Path) -> None:
    cfg = read_config(["config=one_gpu", f"trainer.policy.model.path={folder}", f"trainer.export_path={tmp_path}"])
    assert cfg.slipstream.observe == str(tmp_path / "steps.jsonl")
    assert cfg.trainer.ckpt_path == str(tmp_path / "checkpoints")
    assert cfg.data.train_data == [str(tmp_path / "rollouts" / "data" / "train.jsonl")]
    assert cfg.generator.inference_engine.engine_init_kwargs["logprobs_mode"] == "processed_logprobs"

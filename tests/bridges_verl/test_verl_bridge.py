"""The bridge against verl itself: its workers on Ray, its queue, its post-processing, its advantage code."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
from driven_stage import KINDS, make_folder
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

import slipstream.bridges.verl.config
from bridges_verl.verl_stage import RECIPE, VERSION, make_client, make_config
from slipstream.batch.advantages import dr_grpo, leave_one_out
from slipstream.batch.rows import make_batch
from slipstream.bridges.driven import check_version
from slipstream.bridges.verl.main import plan, prepare
from slipstream.bridges.verl.manager import SlipstreamManager
from slipstream.bridges.verl.setup import SEAM, check_config, make_driver
from slipstream.errors import ConfigError
from slipstream.record import RunStore
from slipstream.types import Batch, Group, Rollout, Row

STEP = 7
FIELDS = ["prompts", "responses", "input_ids", "response_mask", "rollout_log_probs", "rm_scores"]


@dataclass
class Trainer:
    """What is there while verl trains: its configuration, our manager, and the folder of its runs."""

    config: Any
    manager: SlipstreamManager
    runs: Path
    num_batches: int = 0

    def ask(self, kinds: Sequence[str], *, num: int | None = None, validate: bool = False) -> list[str]:
        """Send a batch of prompts, as verl's trainer does."""
        dataset = RLHFDataset(
            self.config.data.train_files,
            AutoTokenizer.from_pretrained(self.config.actor_rollout_ref.model.path),
            self.config.data,
        )
        batch = collate_fn([dataset[KINDS.index(kind)] for kind in kinds])
        self.num_batches += 1
        uids = [f"{self.runs.name}-{self.num_batches}-{place}" for place in range(len(kinds))]
        batch["uid"] = np.array(uids, dtype=object)
        prompts = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(prompts, "global_steps", STEP)
        if num is not None:
            tu.assign_non_tensor_data(prompts, "__rollout_n__", num)
        if validate:
            tu.assign_non_tensor_data(prompts, "validate", True)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": STEP}] * len(uids)
        tq.kv_batch_put(keys=uids, partition_id="val" if validate else "train", tags=tags)
        self.manager.generate_sequences(prompts)
        return uids

    def sample(self, num: int, *, partition: str = "train") -> Any:
        """The rows of that many prompts, taken by verl's own replay buffer."""
        buffer = ReplayBuffer("sync", self.config.trainer, 1, "drop", {}, poll_interval=0.1)
        batch, _ = buffer.sample(STEP, partition, num)
        return batch

    def recorded(self) -> list[Rollout]:
        return sorted(RunStore.read(self.runs / "1").rollouts(), key=lambda rollout: rollout.job.key)


def start(folder: Path, runs: Path, *changes: str, recipe: str = RECIPE, is_engine: bool = False) -> Trainer:
    config = make_config(folder, runs, *changes, recipe=recipe)
    prepare(config)
    client = make_client(config, folder, is_engine=is_engine)
    manager = SlipstreamManager.create(
        config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=None
    )
    return Trainer(config=config, manager=manager, runs=runs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def queue(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    storage = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
    config = make_config(folder, tmp_path_factory.mktemp("none"), storage)
    ray.init(
        num_cpus=16,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _system_config={"worker_niceness": 0},
    )
    tq.init(config.transfer_queue)
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(scope="module")
def passing(folder: Path, queue: None, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """With our advantages passed through, as the configuration that ships has it."""
    return start(folder, tmp_path_factory.mktemp("passing"))


@pytest.fixture(scope="module")
def scoring(folder: Path, queue: None, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """verl makes the advantages, from rewards."""
    changes = ("algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false")
    return start(folder, tmp_path_factory.mktemp("scoring"), *changes)


def rows_in_queue(batch: Any) -> dict[str, dict[str, Any]]:
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=FIELDS)
    return {key: {name: data[name][place].tolist() for name in FIELDS} for place, key in enumerate(batch.keys)}


def by_task(rollouts: Sequence[Rollout]) -> list[Group]:
    return [
        Group(
            phase="train",
            step=STEP,
            task_id=kind,
            rollouts=tuple(rollout for rollout in rollouts if rollout.job.key.task_id == kind),
        )
        for kind in KINDS
    ]


def advantages_of(trainer: Trainer, batch: Any) -> dict[str, list[float]]:
    """By verl's own trainer, from the queue and back into it."""
    scored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rollout_log_probs"])
    scored["old_log_probs"] = scored.pop("rollout_log_probs")  # as if the policy had scored its own tokens
    tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=scored)
    named = SimpleNamespace(config=trainer.config)
    PPOTrainer._compute_advantage(named, batch, {})
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages"])
    return {key: data["advantages"][place].tolist() for place, key in enumerate(batch.keys)}


def expected_rows(made: Batch, uids: Sequence[str]) -> dict[str, Row]:
    """What `batch` made, under the names that verl knows it by: prompt, rollout, row."""
    named: dict[str, Row] = {}
    for row in made.rows:
        session = f"{uids[KINDS.index(row.sample.key.task_id)]}_{row.sample.key.sample}"
        named[f"{session}_{sum(name.startswith(session + '_') for name in named)}"] = row
    return named


def test_this_is_verl_0_9_1() -> None:
    assert metadata.version("verl") == "0.9.1"
    check_version("verl", "0.0.1", SEAM)  # what the bridge uses of it is there


def test_a_plan_says_what_would_be_done(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path)
    prepare(config)
    said = plan(config)
    assert said.startswith("stage: 4 tasks from ") and f"recorded in {tmp_path}" in said
    assert "rollouts a step, on " in said


def test_what_arrives_in_verls_queue_is_what_batch_made_and_so_are_its_advantages(passing: Trainer) -> None:
    uids = passing.ask(KINDS)
    batch = passing.sample(len(KINDS))
    arrived = rows_in_queue(batch)
    made = make_batch(by_task(passing.recorded()), leave_one_out)
    wanted = expected_rows(made, uids)

    assert set(wanted) <= set(arrived)
    for name, row in wanted.items():
        there, start_ = arrived[name], row.sample.mask.index(1)
        assert there["prompts"] == row.sample.ids[:start_].tolist()
        assert there["responses"] == row.sample.ids[start_:].tolist()
        assert there["input_ids"] == row.sample.ids.tolist()
        assert there["response_mask"] == [bit * row.in_loss for bit in row.sample.mask[start_:]]
        assert there["rollout_log_probs"] == row.sample.logprobs[start_:].tolist()
        assert there["rm_scores"][-1] == pytest.approx(row.advantage)
        assert not any(there["rm_scores"][:-1])

    # What batch left out is there too, and nothing of it is learnt from: one lost its engine before it spoke.
    others = set(arrived) - set(wanted)
    assert len(others) == 2
    assert not any(bit for name in others for bit in arrived[name]["response_mask"])
    assert sorted(len(arrived[name]["responses"]) for name in others)[0] == 1

    for name, advantages in advantages_of(passing, batch).items():
        mask = arrived[name]["response_mask"]
        value = wanted[name].advantage if name in wanted else 0.0
        assert advantages == pytest.approx([bit * value for bit in mask])
    tq.kv_clear(keys=[*uids, *batch.keys], partition_id="train")


def test_the_rows_say_which_policy_they_are_of_and_what_the_rollout_was_worth(passing: Trainer) -> None:
    uids = passing.ask(["plain"])
    batch = passing.sample(1)
    assert {(tag["min_global_steps"], tag["max_global_steps"]) for tag in batch.tags} == {(VERSION, VERSION)}
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["extra_fields", "num_turns"])
    named = [each["reward_extra_info"]["reward"] for each in data["extra_fields"]]
    assert named == [1.0, 0.0, 1.0, 0.0]
    assert list(data["num_turns"]) == [2, 2, 2, 2]
    tq.kv_clear(keys=[*uids, *batch.keys], partition_id="train")


def test_verls_own_grpo_gives_the_trusted_what_they_would_get_without_the_untrusted(scoring: Trainer) -> None:
    uids = scoring.ask(KINDS)
    batch = scoring.sample(len(KINDS))
    arrived = rows_in_queue(batch)
    wanted = expected_rows(make_batch(by_task(scoring.recorded()), dr_grpo), uids)
    found = advantages_of(scoring, batch)
    assert set(found) == set(arrived)
    for name, advantages in found.items():
        mask = arrived[name]["response_mask"]
        value = wanted[name].advantage if name in wanted else 0.0
        assert advantages == pytest.approx([bit * value for bit in mask], abs=1e-6)
    assert any(any(advantages) for advantages in found.values())
    tq.kv_clear(keys=[*uids, *batch.keys], partition_id="train")


def test_a_batch_that_is_masked_whole_is_a_failure_and_verl_stops(scoring: Trainer) -> None:
    (uid,) = scoring.ask(["broken"], num=3)
    deadline = time.monotonic() + 60
    while tq.kv_list()["train"][uid]["status"] in ("pending", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert tq.kv_list()["train"][uid]["status"] == "failure"
    assert set(tq.kv_list()["train"]) == {uid}
    with pytest.raises(RuntimeError, match="no materializable trajectories"):
        scoring.sample(1)
    tq.kv_clear(keys=[uid], partition_id="train")


def test_validation_goes_by_rewards_even_where_advantages_are_passed_through(passing: Trainer) -> None:
    uids = passing.ask(["plain", "broken"], num=4, validate=True)
    batch = passing.sample(2, partition="val")
    scores = [row["rm_scores"][-1] for row in rows_in_queue(batch).values()]
    assert scores == [1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 0.5, 0.0]
    tq.kv_clear(keys=[*uids, *batch.keys], partition_id="val")


def test_a_small_model_and_real_sandboxes_in_verls_worker(
    folder: Path, queue: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The quickstart's tasks, before any learning: the model babbles, is stuck, and is graded anyway."""
    trainer = start(
        folder,
        tmp_path_factory.mktemp("engine"),
        "slipstream.set=['tasks.num=4','held_out.num=1','groups=2']",
        recipe="quickstart",
        is_engine=True,
    )
    uids = trainer.ask(KINDS[:2], num=2)
    batch = trainer.sample(2)
    assert [rollout.verdict is not None for rollout in trainer.recorded()] == [True] * 4
    for row in rows_in_queue(batch).values():
        sampled = [each for each, bit in zip(row["rollout_log_probs"], row["response_mask"], strict=True) if bit]
        assert sampled and max(sampled) < 0
    assert all(sum(map(abs, each)) == 0 for each in advantages_of(trainer, batch).values())
    tq.kv_clear(keys=[*uids, *batch.keys], partition_id="train")


# ---------------------------------------------------------------- single rows, padded


@pytest.fixture(scope="module")
def worker(folder: Path, queue: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """verl's own agent loop worker, of the path that pads, with our agent loop by its name."""
    config_folder = Path(slipstream.bridges.verl.config.__file__ or "").parent
    config = make_config(
        folder,
        tmp_path_factory.mktemp("single"),
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={config_folder / 'agent_loop.yaml'}",
    )
    return ray.remote(AgentLoopWorker).remote(config, make_client(config, folder), None, None)


def single_rows(worker: Any, kinds: Sequence[str]) -> DataProto:
    rows = DataProto.from_dict(
        tensors={"dummy": torch.zeros(len(kinds), 1)},
        non_tensors={
            "raw_prompt": np.array([[{"role": "user", "content": kind}] for kind in kinds] + [None], dtype=object)[:-1],
            "extra_info": np.array([{"task_id": kind} for kind in kinds], dtype=object),
            "index": np.arange(len(kinds)),
        },
        meta_info={"global_steps": STEP},
    )
    return ray.get(worker.generate_sequences.remote(rows), timeout=120)


def test_verls_worker_pads_what_the_agent_loop_returns(worker: Any) -> None:
    batch = single_rows(worker, ["plain", "plain", "limits"]).batch
    assert batch["prompts"].shape == batch["responses"].shape == (3, 512)
    assert batch["rm_scores"].sum(dim=1).tolist() == [1.0, 0.0, 1.0]
    mask, attention = batch["response_mask"], batch["attention_mask"]
    for place in range(3):
        num_prompt, num_response = int(attention[place, :512].sum()), int(attention[place, 512:].sum())
        assert not attention[place, : 512 - num_prompt].any()
        assert 0 < int(mask[place].sum()) < num_response
        assert not mask[place, num_response:].any()
        assert batch["rollout_log_probs"][place][mask[place].bool()].max() < 0
        assert not batch["rollout_log_probs"][place][~mask[place].bool()].any()


def test_an_agent_loop_refuses_a_rollout_of_several_sequences(worker: Any) -> None:
    with pytest.raises(ray.exceptions.RayTaskError, match="is 2 sequences, and an agent loop returns one"):
        single_rows(worker, ["pages"])


def test_an_agent_loop_refuses_a_rollout_that_cannot_be_trusted(worker: Any) -> None:
    single_rows(worker, ["broken"])
    with pytest.raises(ray.exceptions.RayTaskError, match="cannot be trusted"):
        single_rows(worker, ["broken"])


# ---------------------------------------------------------------- what cannot work


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("actor_rollout_ref.rollout.calculate_log_probs=false", "so set it to true"),
        ("actor_rollout_ref.rollout.logprobs_mode=raw_logprobs", "set it to processed_logprobs"),
        ("algorithm.use_kl_in_reward=true", "use_kl_loss=true"),
        ("slipstream.recipe=''", "name a recipe"),
    ],
)
def test_settings_that_cannot_work_are_refused(folder: Path, tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_config(make_config(folder, tmp_path, change))


def test_several_workers_are_refused(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder, tmp_path, "actor_rollout_ref.rollout.agent.num_workers=8")
    with pytest.raises(ConfigError, match="so set it to 1"):
        SlipstreamManager(config=config, llm_client=None)


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 2, 3])
    with pytest.raises(ConfigError, match="is not the trainer's"):
        make_driver(make_config(folder, tmp_path), None, other)


def test_the_models_own_tokenizer_is_accepted(folder: Path, tmp_path: Path) -> None:
    make_driver(make_config(folder, tmp_path), None, AutoTokenizer.from_pretrained(folder))

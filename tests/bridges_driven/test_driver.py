"""The driver: a trainer's prompts through the dispatcher, with a client that answers from a script."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from driven_stage import HERE, Served, counts, logprob_of, make_folder

from slipstream.bridges.client import ClientAnswer, ClientCompleter, Request, Sampling
from slipstream.bridges.driven import (
    EVAL,
    TRAIN,
    Driver,
    PromptRequest,
    check_version,
    driven_settings,
    write_prompts,
)
from slipstream.bridges.outgoing import make_outgoing
from slipstream.errors import BridgeError, ConfigError, ModelError
from slipstream.record import RunStore
from slipstream.types import EndReason, SampleParams, StopReason

T = TypeVar("T")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "model")


def asking(served: Served, heard: list[Request] | None = None) -> ClientCompleter:
    async def ask(request: Request) -> ClientAnswer:
        if heard is not None:
            heard.append(request)
        sampled = await served.complete(request.prompt_ids, request.params, session=request.session)
        return ClientAnswer(
            ids=sampled.ids, logprobs=sampled.logprobs, is_cut=sampled.stop is StopReason.LENGTH, version=5
        )

    return ClientCompleter(ask, remedy="ask for them", sampling={TRAIN: Sampling(temperature=0.7, top_k=50)})


def driving(
    folder: Path, runs: Path, work: Callable[[Driver], Awaitable[T]], completer: ClientCompleter | None = None
) -> T:
    async def main() -> T:
        settings = driven_settings(f"{HERE}:recipe", model_folder=str(folder))
        driver = Driver(settings, completer or asking(Served(folder)), folder=runs)
        try:
            return await work(driver)
        finally:
            await driver.aclose()

    return asyncio.run(main())


def test_rollouts_come_in_the_order_asked_for_and_the_store_keeps_the_truth(folder: Path, tmp_path: Path) -> None:
    async def work(driver: Driver) -> dict[str, int]:
        asked = [PromptRequest(task_id=kind, num=4) for kind in ("broken", "plain")]
        groups = await driver.run(asked, phase=TRAIN, step=2)
        assert [[str(rollout.job.key) for rollout in group] for group in groups] == [
            [f"train/2/{kind}/{sample}" for sample in range(4)] for kind in ("broken", "plain")
        ]
        out = make_outgoing(groups, end_id=driver.end_id)
        await driver.note(out.metrics, phase=TRAIN, step=2)
        return counts(out.metrics)

    wanted = {"learnt": 6, "limit": 0, "untrusted": 2, "too_few": 0, "empty": 0, "groups_masked": 0}
    assert driving(folder, tmp_path, work) == wanted
    stored = RunStore.read(tmp_path / "1")
    endings = {str(rollout.job.key): rollout.ending.reason for rollout in stored.rollouts()}
    assert endings["train/2/broken/1"] is endings["train/2/broken/2"] is EndReason.INFRASTRUCTURE
    assert endings["train/2/broken/0"] is EndReason.FINISHED
    assert stored.measured()[(2, TRAIN)]["outgoing/untrusted"] == 2


def test_tokens_carry_the_clients_logprobs_and_version(folder: Path, tmp_path: Path) -> None:
    async def work(driver: Driver) -> None:
        ((rollout,),) = await driver.run([PromptRequest(task_id="plain", num=1)], phase=TRAIN, step=0)
        for turn in rollout.turns:
            assert turn.sampled is not None and turn.sampled.logprobs is not None
            assert turn.sampled.logprobs.tolist() == [logprob_of(token) for token in turn.sampled.ids]
            assert set(turn.sampled.versions) == {5}

    driving(folder, tmp_path, work)


def test_the_trainers_sampling_holds_by_phase(folder: Path, tmp_path: Path) -> None:
    heard: list[Request] = []

    async def work(driver: Driver) -> None:
        for phase in (TRAIN, EVAL):
            await driver.run([PromptRequest(task_id="plain", num=1)], phase=phase, step=0)

    driving(folder, tmp_path, work, asking(Served(folder), heard))
    by_phase = {each.session.split("/")[0]: (each.params.temperature, each.top_k) for each in heard}
    assert by_phase == {"probe": (1.0, -1), TRAIN: (0.7, 50), EVAL: (1.0, -1)}


def test_batches_side_by_side_and_a_task_asked_for_twice_are_kept_apart(folder: Path, tmp_path: Path) -> None:
    async def work(driver: Driver) -> None:
        asked = [PromptRequest(task_id="plain", num=2), PromptRequest(task_id="plain", num=2)]
        first, second = await asyncio.gather(
            driver.run(asked, phase=TRAIN, step=0), driver.run(asked[:1], phase=TRAIN, step=0)
        )
        assert [[rollout.job.key.sample for rollout in group] for group in first] == [[0, 1], [2, 3]]
        assert [[rollout.job.key.sample for rollout in group] for group in second] == [[4, 5]]

    driving(folder, tmp_path, work)


def test_a_batch_that_is_given_up_leaves_no_rollout_under_way(folder: Path, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def never(request: Request) -> ClientAnswer:
        if request.session == "probe":
            return ClientAnswer(ids=[1], logprobs=[0.0], is_cut=True)
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def work(driver: Driver) -> None:
        batch = asyncio.create_task(driver.run([PromptRequest(task_id="plain", num=3)], phase=TRAIN, step=0))
        await begun.wait()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        while len(list(RunStore.read(driver.run_folder).rollouts())) < 3:  # noqa: ASYNC110  another thread writes
            await asyncio.sleep(0.01)

    driving(folder, tmp_path, work, ClientCompleter(never, remedy=""))
    reasons = {rollout.ending.reason for rollout in RunStore.read(tmp_path / "1").rollouts()}
    assert reasons == {EndReason.CANCELLED}


def test_every_session_is_a_run_of_its_own(folder: Path, tmp_path: Path) -> None:
    async def work(driver: Driver) -> str:
        await driver.run([PromptRequest(task_id="plain", num=1)], phase=TRAIN, step=0)
        return driver.run_folder.name

    assert [driving(folder, tmp_path, work) for _ in range(2)] == ["1", "2"]


def test_an_engine_without_logprobs_is_refused_before_the_first_rollout(folder: Path, tmp_path: Path) -> None:
    async def work(driver: Driver) -> None:
        await driver.run([PromptRequest(task_id="plain", num=1)], phase=TRAIN, step=0)

    with pytest.raises(ConfigError, match="gave no logprobs for 1 tokens: ask for them"):
        driving(folder, tmp_path, work, asking(Served(folder, logprobs=False)))
    assert not (tmp_path / "1").exists()


def test_an_engine_that_dies_makes_rollouts_untrusted_and_a_batch_of_them_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    async def dead(request: Request) -> ClientAnswer:
        if request.session == "probe":
            return ClientAnswer(ids=[1], logprobs=[0.0], is_cut=True)
        raise OSError("connection refused")

    async def work(driver: Driver) -> None:
        groups = await driver.run([PromptRequest(task_id="plain", num=2)], phase=TRAIN, step=0)
        with pytest.raises(BridgeError, match="connection refused"):
            make_outgoing(groups, end_id=driver.end_id)

    driving(folder, tmp_path, work, ClientCompleter(dead, remedy=""))


def test_an_engine_that_takes_too_long_is_a_model_error() -> None:
    async def slow(request: Request) -> ClientAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(ModelError, match=r"longer than 0\.01 s"):
        asyncio.run(ClientCompleter(slow, remedy="").complete([1], SampleParams(), timeout_s=0.01))


def test_another_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    settings = driven_settings(f"{HERE}:recipe", model_folder=str(folder))
    with pytest.raises(ConfigError, match="is not the trainer's"):
        Driver(settings, asking(Served(folder)), folder=tmp_path, encode=lambda text: list(text.encode()))


def test_a_task_that_is_not_there_is_refused(folder: Path, tmp_path: Path) -> None:
    async def work(driver: Driver) -> None:
        await driver.run([PromptRequest(task_id="plane", num=1)], phase=TRAIN, step=0)

    with pytest.raises(ConfigError, match="asks for task 'plane'"):
        driving(folder, tmp_path, work)


def test_another_version_of_a_trainer_is_refused_where_it_lacks_what_the_bridge_uses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match="pip install no-such-trainer==1"):
        check_version("no-such-trainer", "1", {})
    there = {"json:dumps": ("obj", "indent"), f"{__name__}:PromptRequest": ("task_id", "num")}
    check_version("pytest", "0.0.1", there)
    assert "this bridge was tested with 0.0.1" in caplog.text
    for lacking in ({"json:dumps": ("obj", "colour")}, {"json:paint": ("colour",)}, {"jsony:dumps": ("colour",)}):
        with pytest.raises(ConfigError, match=r"has no colour: this bridge is for pytest==0\.0\.1"):
            check_version("pytest", "0.0.1", {**there, **lacking})


def test_the_trainers_window_holds_where_it_is_smaller(folder: Path) -> None:
    name = f"{HERE}:recipe"
    assert driven_settings(name, model_folder=str(folder), context_tokens=512).model.context_tokens == 512
    assert driven_settings(name, model_folder=str(folder), context_tokens=4096).model.context_tokens == 1024
    changed = driven_settings(name, ["model.max_tokens=9"], model_folder=str(folder))
    assert (changed.model.max_tokens, changed.model.folder) == (9, str(folder))


def test_the_data_files_have_the_brief_and_nothing_that_grades(folder: Path, tmp_path: Path) -> None:
    settings = driven_settings(f"{HERE}:recipe", model_folder=str(folder))
    train, held_out = write_prompts(settings, tmp_path / "data")
    assert held_out is not None
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert [row["task_id"] for row in rows] == [row["extra_info"]["task_id"] for row in rows]
    assert rows[0]["prompt"] == [{"role": "user", "content": "This is plain."}]
    assert "yes" not in train.read_text() and "exact" not in train.read_text()

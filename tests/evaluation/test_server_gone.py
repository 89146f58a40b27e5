"""A run whose model server goes away ends with an error message, loses nothing, and can be resumed when the server is
back."""

import asyncio
from pathlib import Path

import pytest

from slipstream.config import to_json
from slipstream.errors import ModelError
from slipstream.evaluation import evaluate
from slipstream.model.scripted import ScriptedChat, act, replies
from slipstream.model.server import ModelServer
from slipstream.record import RunStore
from slipstream.seams import JobAdmitted, TurnTaken
from slipstream.settings import DispatchConfig, EvalConfig, ModelConfig, TasksConfig
from slipstream.types import EndReason

LINES = (act("bash", command="true"), act("bash", command="ls"), act("finish"))


def test_a_run_whose_server_goes_away_ends_and_can_be_gone_on_with(tmp_path: Path) -> None:
    async def main() -> None:
        async with ModelServer(chat=ScriptedChat(replies(*LINES))) as server:
            port = int(server.base_url.split(":")[2].removesuffix("/v1"))
            config = EvalConfig(
                name="gone",
                tasks=TasksConfig(source="slipstream.recipes.demo.tasks:demo_tasks", num=12),
                model=ModelConfig(kind="chat", base_url=server.base_url, max_retries=0),
                dispatch=DispatchConfig(policy="bounded", slots=2),
            )
            async with RunStore.create(tmp_path / "run", config=to_json(config)) as store:
                closing = asyncio.create_task(_closed_after(server, 10))
                with pytest.raises(ModelError, match=r"server is gone \(.*\): restart it, then resume the run"):
                    await evaluate(config, store)
                await closing
                before = store.done_keys()
                async with ModelServer(chat=ScriptedChat(replies(*LINES)), port=port) as back:
                    report = await evaluate(config, store)
                    assert back.num_requests <= 1 + (12 - len(before)) * len(LINES)
        assert 0 < len(before) < 12 == report.num_rollouts == report.num_trusted
        assert report.endings == {EndReason.FINISHED: 12} and not report.failures

    asyncio.run(main())


def test_what_a_stopped_evaluation_has_not_written_yet_is_gone_on_from(tmp_path: Path) -> None:
    config = EvalConfig(
        name="stopped",
        tasks=TasksConfig(source="slipstream.recipes.demo.tasks:demo_tasks", num=1),
        model=ModelConfig(kind="scripted", script="slipstream.recipes.demo.solver:solver", max_tokens=256),
    )

    async def main() -> None:
        async with RunStore.create(tmp_path / "whole", config=to_json(config)) as whole:
            await evaluate(config, whole)
            begun = [event for event in whole.events() if isinstance(event, JobAdmitted | TurnTaken)][:2]
        async with RunStore.create(tmp_path / "stopped", config=to_json(config)) as store:
            for event in begun:
                store.append(event)
            report = await evaluate(config, store)
        assert isinstance(begun[1], TurnTaken) and report.num_trusted == 1 and not report.failures

    asyncio.run(main())


async def _closed_after(server: ModelServer, num_requests: int) -> None:
    while server.num_requests < num_requests:  # noqa: ASYNC110  it tells nobody
        await asyncio.sleep(0.01)
    await server.aclose()

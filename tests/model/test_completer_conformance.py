"""What every Completer does, run on each that ships."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from model_stage import STOP_ID, assistant, completing, connected, encode_text, scripted

from slipstream.errors import ContextOverflow, ModelError
from slipstream.model.base import Completer
from slipstream.model.direct import DirectClient
from slipstream.model.openai import OpenAICompleter
from slipstream.model.scripted import Script, ScriptedCall, ScriptedModel, replies
from slipstream.types import SampleParams, StopReason, token_ids

WINDOW = 64
Opener = Callable[[Script], AbstractAsyncContextManager["ScriptedModel | OpenAICompleter | Beside"]]


@asynccontextmanager
async def in_process(script: Script) -> AsyncIterator[ScriptedModel]:
    yield scripted(script, context_tokens=WINDOW)


@asynccontextmanager
async def over_http(script: Script) -> AsyncIterator[OpenAICompleter]:
    async with completing(scripted(script, context_tokens=WINDOW)) as (client, _):
        yield client


class Beside(DirectClient):
    """Of a model that is in the same process for once, so that its version can be set."""

    def __init__(self, behind: ScriptedModel) -> None:
        super().__init__()
        self._behind = behind

    @property
    def version(self) -> int:
        return self._behind.version

    @version.setter
    def version(self, version: int) -> None:
        self._behind.version = version


@asynccontextmanager
async def over_a_socket(script: Script) -> AsyncIterator[Beside]:
    async with connected(behind := scripted(script, context_tokens=WINDOW), Beside(behind)) as client:
        yield client


every_completer = pytest.mark.parametrize("opened", [in_process, over_http, over_a_socket])


def echo(scene: ScriptedCall) -> str:
    return f"{scene.num_calls}:{scene.session}:{scene.seed}:{scene.prompt_text}"


@every_completer
def test_returns_the_sampled_ids_with_logprobs_and_the_stop_token(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies(assistant("ok"))) as model:
            sampled = await model.complete([104, 105], SampleParams())
            assert sampled.ids == token_ids([111, 107, STOP_ID])
            assert sampled.logprobs is not None
            assert list(sampled.logprobs) == [0.0, 0.0, 0.0]
            assert sampled.stop is StopReason.STOP

    asyncio.run(main())


@every_completer
def test_the_prompt_session_and_seed_arrive(opened: Opener) -> None:
    async def main() -> None:
        async with opened(echo) as model:
            await model.complete(b"hi", SampleParams(seed=2**62), session="é\n/1 %2F")
            second = await model.complete(b"hi", SampleParams(seed=2**62), session="é\n/1 %2F")
            assert second.ids == token_ids(encode_text(f"1:é\n/1 %2F:{2**62}:hi"))

    asyncio.run(main())


@every_completer
def test_max_tokens_cuts_with_length(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies("abc", "abc", "abc")) as model:
            cut = await model.complete([1], SampleParams(max_tokens=3))
            assert (cut.ids, cut.stop) == (token_ids([97, 98, 99]), StopReason.LENGTH)
            whole = await model.complete([1], SampleParams(max_tokens=4))
            assert (whole.ids, whole.stop) == (token_ids([97, 98, 99, STOP_ID]), StopReason.STOP)
            late = await model.complete([1] * (WINDOW - 2), SampleParams(max_tokens=10))
            assert (late.ids, late.stop) == (token_ids([97, 98]), StopReason.LENGTH)

    asyncio.run(main())


@every_completer
def test_a_stop_id_ends_the_sample_and_is_part_of_it(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies("a;b")) as model:
            sampled = await model.complete([1], SampleParams(stop_ids=(ord(";"),)))
            assert (sampled.ids, sampled.stop) == (token_ids([97, 59]), StopReason.STOP)

    asyncio.run(main())


@every_completer
def test_every_token_carries_the_version_that_was_set(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies("ab", "ab")) as model:
            assert list((await model.complete([1], SampleParams())).versions) == [0, 0, 0]
            model.version = 5
            assert list((await model.complete([1], SampleParams())).versions) == [5, 5, 5]

    asyncio.run(main())


@every_completer
def test_a_prompt_that_fills_the_window_is_a_context_overflow(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies("a")) as model:
            with pytest.raises(ContextOverflow):
                await model.complete([1] * WINDOW, SampleParams())

    asyncio.run(main())


@every_completer
def test_a_failing_engine_is_a_model_error(opened: Opener) -> None:
    def broken(scene: ScriptedCall) -> str:
        raise KeyError("nothing here")

    async def main() -> None:
        async with opened(broken) as model:
            with pytest.raises(ModelError, match="nothing here"):
                await model.complete([1], SampleParams())

    asyncio.run(main())


@every_completer
def test_closing_twice_is_fine(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies("a")) as model:
            await model.complete([1], SampleParams())
            await model.aclose()
            await model.aclose()

    asyncio.run(main())


@every_completer
def test_it_is_a_completer(opened: Opener) -> None:
    async def main() -> None:
        async with opened(replies("a")) as model:
            as_protocol: Completer = model
            as_protocol.load()

    asyncio.run(main())

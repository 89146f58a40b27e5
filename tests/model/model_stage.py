"""What the model tests share: a byte tokenizer, servers around models, and clients that do not wait between tries."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from slipstream.model.base import ChatModel, Completer
from slipstream.model.direct import DirectClient, DirectServer
from slipstream.model.http import Retries
from slipstream.model.openai import LogprobsKind, OpenAIChat, OpenAICompleter, OpenAIConfig
from slipstream.model.scripted import Script, ScriptedModel
from slipstream.model.server import Faults, FixedAnswer, ModelServer
from slipstream.types import EngineLoad, Json, Message, Role, Sampled, SampleParams

STOP_ID = 256
AT_ONCE = Retries(backoff_s=0.0)
PROMPT = [104, 105]


def decode(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < STOP_ID).decode()


def encode_text(text: str) -> list[int]:
    return [*text.encode(), STOP_ID]


def encode(message: Message) -> list[int]:
    calls = "".join(f"<call>{call.name}{json.dumps(dict(call.arguments))}</call>" for call in message.calls)
    return encode_text(message.thinking + message.content + calls)


def assistant(content: str) -> Message:
    return Message(role=Role.ASSISTANT, content=content)


def user(content: str) -> Message:
    return Message(role=Role.USER, content=content)


def scripted(script: Script, **options: Any) -> ScriptedModel:
    return ScriptedModel(script, decode=decode, encode=encode, encode_text=encode_text, **options)


Client = TypeVar("Client", bound=DirectClient)


@asynccontextmanager
async def connected(model: Completer, client: Client) -> AsyncIterator[Client]:
    """`client` at one end of a socket, and `model` at the other."""
    near, far = socket.socketpair()
    lost = asyncio.Event()
    await DirectServer(model, lambda server: lost.set()).connect(far)
    await client.connect(near)
    try:
        yield client
    finally:
        await client.aclose()
        await lost.wait()


class Recorded:
    """A Completer that remembers what it was asked and does as `act` says."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act
        self.calls: list[dict[str, Any]] = []
        self.num_cancelled = 0

    async def complete(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        session: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Sampled:
        call = {"prompt_ids": list(prompt_ids), "params": params, "session": session, "priority": priority}
        self.calls.append({**call, "cache_salt": cache_salt})
        try:
            sampled: Sampled = await self.act()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return sampled

    def load(self) -> EngineLoad | None:
        return EngineLoad(running=3, waiting=4, kv_used=0.25, kv_tokens=1000)

    async def aclose(self) -> None: ...


def config(server: ModelServer, **options: Any) -> OpenAIConfig:
    settings = {"logprobs": LogprobsKind.PROCESSED, "retries": AT_ONCE, "api_key_env": "", **options}
    return OpenAIConfig(base_url=server.base_url, model=server.model, **settings)


@asynccontextmanager
async def completing(
    model: Completer, *, faults: Faults | None = None, sleep: Any = asyncio.sleep, **options: Any
) -> AsyncIterator[tuple[OpenAICompleter, ModelServer]]:
    """A client of a server around `model`."""
    async with ModelServer(completer=model, faults=faults, decode=decode) as server:
        client = OpenAICompleter(config(server, **options), sleep=sleep)
        try:
            yield client, server
        finally:
            await client.aclose()


@asynccontextmanager
async def chatting(
    model: ChatModel, *, faults: Faults | None = None, **options: Any
) -> AsyncIterator[tuple[OpenAIChat, ModelServer]]:
    async with ModelServer(chat=model, faults=faults) as server:
        client = OpenAIChat(config(server, **options))
        try:
            yield client, server
        finally:
            await client.aclose()


def saying(body: Json, status: int = 200) -> Faults:
    """Every request is answered with `body`."""
    return lambda number: FixedAnswer(status=status, body=json.dumps(body).encode())

"""From the settings of a model to what samples, renders and holds conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.aio import outlast, task_group
from slipstream.config import checked_arguments
from slipstream.dialogue.base import CallContext, Dialogue, TurnLog
from slipstream.dialogue.chat import ChatDialogue
from slipstream.dialogue.token import TokenDialogue
from slipstream.errors import ConfigError
from slipstream.hub import find_model
from slipstream.model.base import ChatModel, Completer
from slipstream.model.process import Hosted, Tell, open_model_process
from slipstream.names import load_object, user_code
from slipstream.render.load import open_renderer
from slipstream.render.renderer import Renderer
from slipstream.rollout.attempt import DialogueMaker
from slipstream.seams import TurnGate
from slipstream.settings import ModelConfig
from slipstream.types import NO_LIMIT, Job, SampleParams, Task

REFRESH_S = 2.0
"""How often a server is asked for its load."""


@asynccontextmanager
async def open_model(config: ModelConfig, *, asks_load: bool = False) -> AsyncIterator[Completer | ChatModel]:
    """The model that the settings name, checked. If its server is lost, the body is cancelled and ModelError raised.
    With `asks_load` a server is asked for its load regularly."""
    async with AsyncExitStack() as stack:
        model = await _open_chat(config, stack) if config.kind == "chat" else await _open_completer(config, stack)
        if asks_load and (refresh := getattr(model, "refresh_load", None)):
            await stack.enter_async_context(refreshing(refresh))
        if watch := getattr(model, "watch", None):
            await stack.enter_async_context(_watched(watch))
        yield model


async def _open_chat(config: ModelConfig, stack: AsyncExitStack) -> ChatModel:
    from slipstream.model.openai import OpenAIChat

    chat = OpenAIChat(_endpoint(config))
    stack.push_async_callback(chat.aclose)
    await chat.probe()
    if not chat.is_listed:
        await chat.check_answers()
    return chat


async def _open_completer(config: ModelConfig, stack: AsyncExitStack) -> Completer:
    renderer = make_renderer(config)
    if config.kind == "tokens":
        from slipstream.model.openai import OpenAICompleter

        client = OpenAICompleter(_endpoint(config))
        stack.push_async_callback(client.aclose)
        await client.probe()
        await client.check_sampling()
        return client
    if config.kind == "local" and config.engine.process == "own":
        return await stack.enter_async_context(open_model_process(f"{__name__}:{host_engine.__name__}", config))
    if config.kind == "local":
        engine = open_engine(config)
    else:
        from slipstream.model.scripted import ScriptedModel

        engine = ScriptedModel(
            _script(config), decode=renderer.decode, encode=renderer.encode_reply, encode_text=renderer.encode_text
        )
    stack.push_async_callback(engine.aclose)
    return engine


@asynccontextmanager
async def _watched(watch: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    async with task_group() as group:
        watching = group.create_task(watch(), name="watching the model's server")
        try:
            yield
        finally:
            watching.cancel()


@asynccontextmanager
async def refreshing(refresh: Callable[[], Awaitable[object]], every_s: float = REFRESH_S) -> AsyncIterator[None]:
    """Ask a server for its load again and again, while the context is open."""

    async def ask() -> None:
        while True:
            await refresh()
            await asyncio.sleep(every_s)

    asking = asyncio.create_task(ask(), name="asking the server for its load")
    try:
        yield
    finally:
        asking.cancel()
        await outlast([asking])


def open_engine(config: ModelConfig) -> Completer:
    """The embedded engine over the model in a folder."""
    from slipstream.engine.inference.load import open_engine as from_folder

    asked = config.engine.context_tokens or config.context_tokens
    return from_folder(model_folder(config), replace(config.engine, context_tokens=asked))


@asynccontextmanager
async def host_engine(config: ModelConfig, tell: Tell) -> AsyncIterator[Hosted]:
    """The embedded engine, for a process of its own."""
    engine = await asyncio.to_thread(open_engine, config)
    try:
        yield Hosted(completer=engine)
    finally:
        await engine.aclose()


def model_folder(config: ModelConfig) -> Path:
    if config.folder == "bytes":
        raise ConfigError(f"model.kind={config.kind} needs a model: set model.folder to its folder, or its name")
    return find_model(config.folder)


def _script(config: ModelConfig) -> Any:
    make: Any = load_object(config.script, "model.script")
    arguments = checked_arguments(make, config.script_args, "model.script_args") if callable(make) else {}
    with user_code(f"model.script {config.script}"):
        script = make(**arguments)
    if not callable(script):
        raise ConfigError(
            f"model.script {config.script} gave a {type(script).__name__}: return a function of a ScriptedCall"
        )
    return script


def _endpoint(config: ModelConfig) -> Any:
    from slipstream.model.http import Retries
    from slipstream.model.openai import LogprobsKind, OpenAIConfig

    return OpenAIConfig(
        base_url=config.base_url,
        model=config.name,
        api_key_env=config.api_key_env,
        extra=config.extra_body,
        headers=config.extra_headers,
        max_tokens_field=config.max_tokens_field,
        resend_thinking=config.resend_thinking,
        logprobs=LogprobsKind(config.logprobs),
        context_tokens=config.context_tokens,
        retries=Retries(max_retries=config.max_retries),
    )


def make_renderer(config: ModelConfig) -> Renderer:
    has_own = config.folder != "bytes" or config.kind in ("tokens", "local")
    return open_renderer(
        model_folder(config) if has_own else None,
        family=config.family,
        thinking=None if config.thinking == "auto" else config.thinking,
        args=config.family_args,
    )


def trained_folder(config: ModelConfig) -> Path | None:
    """The model's folder, if there is one already."""
    has_folder = config.kind in ("local", "tokens") and config.folder != "bytes"
    return find_model(config.folder) if has_folder else None


def dialogue_maker(config: ModelConfig, model: Any, gate: TurnGate) -> DialogueMaker:
    """`model` is a ChatModel if the settings say so, else a Completer."""
    limit = NO_LIMIT if config.max_tokens is None else config.max_tokens
    params = SampleParams(max_tokens=limit, temperature=config.temperature, top_p=config.top_p)
    renderer = None if config.kind == "chat" else make_renderer(config)

    def make(job: Job, attempt: int, task: Task, log: TurnLog) -> Dialogue:
        context = CallContext(
            params=params,
            max_context_tokens=_window(config, task),
            gate=gate,
            key=job.key,
            attempt=attempt,
            timeout_s=config.timeout_s,
        )
        return ChatDialogue(model, context, log) if renderer is None else TokenDialogue(renderer, model, context, log)

    return make


def _window(config: ModelConfig, task: Task) -> int:
    asked = task.brief.limits.context_tokens
    return asked if config.context_tokens is None else min(asked, config.context_tokens)

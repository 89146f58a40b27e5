"""An OpenAI-compatible endpoint around any Completer or ChatModel.

It answers in the JSON of vLLM's server, including token ids and logprobs.
Invariants: a request whose client disconnected is cancelled in the model; an error in one request never ends the
server; unsupported requests (streams, several choices, text prompts, scores without a scorer) are refused, never
ignored.

For tests of clients: `faults` makes chosen requests fail, and `log` has the requests that came.

    async with ModelServer(completer=model) as server:
        client = OpenAICompleter(OpenAIConfig(base_url=server.base_url, model=server.model))
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeAlias

from aiohttp import web

from slipstream.errors import ContextOverflow, SlipstreamError
from slipstream.model.base import ChatModel, Completer, Scorer
from slipstream.model.metrics import load_to_metrics
from slipstream.model.wire import (
    BadBody,
    dig,
    dig_ids,
    dig_list,
    is_int,
    message_from_wire,
    reply_to_wire,
    sampled_to_wire,
    session_from_headers,
    text_of,
    tool_from_wire,
)
from slipstream.types import EngineLoad, Json, SampleParams

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
DEFAULT_MAX_TOKENS = 1024


# ---------------------------------------------------------------- faults


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAnswer:
    """Answer with exactly this to any request: a refusal, garbage, an incomplete body."""

    status: int = 200
    body: bytes = b""
    retry_after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Never answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Close the connection without an answer."""


Fault: TypeAlias = FixedAnswer | Hang | Drop
Faults: TypeAlias = Callable[[int], Fault | None]
"""From the number of a request, counted from 0 over all paths, to its fault."""


# ---------------------------------------------------------------- what came


class Outcome(StrEnum):
    PENDING = "pending"
    ANSWERED = "answered"
    FAULTY = "faulty"
    """A fault answered or dropped it."""
    DISCONNECTED = "disconnected"
    """The client disconnected before the answer."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request and its outcome."""

    number: int
    path: str
    session: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Json = None
    outcome: Outcome = Outcome.PENDING
    status: int | None = None


_SEEN = web.RequestKey("seen", Request)


class ModelServer:
    """Serves on `host:port` while the context is open; port 0 picks a free one. Clients use `base_url`."""

    def __init__(
        self,
        *,
        completer: Completer | None = None,
        chat: ChatModel | None = None,
        scorer: Scorer | None = None,
        model: str = "slipstream",
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        context_tokens: int | None = None,
        faults: Faults | None = None,
        num_logged: int = 1024,
        grace_s: float = 1.0,
        read_timeout_s: float = 60.0,
    ) -> None:
        """`scorer` answers `prompt_logprobs`, in vLLM's form; `decode` adds `text` to the ids; `context_tokens` is
        reported to clients; `log` has the last `num_logged` requests; running requests have `grace_s` to finish when
        the server closes; a client has `read_timeout_s` to send the body of a request."""
        self.model = model
        self.log: deque[Request] = deque(maxlen=num_logged)
        self.num_requests = 0
        self.num_in_flight = 0
        self.max_in_flight = 0
        self._completer = completer
        self._chat = chat
        self._scorer = scorer
        self._host = host
        self._port = port
        self._api_key = api_key
        self._decode = decode
        self._context_tokens = context_tokens
        self._faults = faults
        self._grace_s = grace_s
        self._read_timeout_s = read_timeout_s
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    @property
    def base_url(self) -> str:
        return f"http://{self._host}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._serve])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._reply)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=self._grace_s, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=4096)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self._closing.set()
        runner, self._runner = self._runner, None
        if runner is not None:
            await asyncio.shield(runner.cleanup())

    # ------------------------------------------------------------ every request

    @web.middleware
    async def _serve(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        seen = Request(
            number=self.num_requests,
            path=request.path,
            session=session_from_headers(request.headers),
            headers=request.headers,
        )
        self.num_requests += 1
        self.log.append(seen)
        request[_SEEN] = seen
        self.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        try:
            fault = self._faults(seen.number) if self._faults is not None else None
            if fault is not None:
                return await self._fail(request, fault, seen)
            response = await self._guarded(request, handler)
            seen.outcome, seen.status = Outcome.ANSWERED, response.status
            return response
        except asyncio.CancelledError:
            seen.outcome = Outcome.DISCONNECTED
            raise
        finally:
            self.num_in_flight -= 1

    async def _guarded(
        self, http: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._api_key is not None and not _same(http.headers.get("Authorization", ""), f"Bearer {self._api_key}"):
            return _error(401, "the API key is missing or wrong")
        try:
            return await handler(http)
        except web.HTTPException as refusal:
            return _error(refusal.status, f"{http.method} {http.path}: {refusal.reason}")
        except BadBody as bad:
            return _error(400, f"the request has a body that {bad}")
        except ContextOverflow as overflow:
            return _error(400, str(overflow), code="context_length_exceeded")
        except SlipstreamError as error:
            return _error(500, str(error))
        except Exception as raised:
            logger.exception("request to %s failed", http.path)
            return _error(500, f"{type(raised).__name__}: {raised}")

    async def _fail(self, http: web.Request, fault: Fault, seen: Request) -> web.StreamResponse:
        await self._read(http)
        if isinstance(fault, Hang):
            await self._closing.wait()
        seen.outcome = Outcome.FAULTY
        if isinstance(fault, FixedAnswer):
            seen.status = fault.status
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return web.Response(status=fault.status, body=fault.body, headers=headers)
        if http.transport is not None:
            http.transport.abort()
        return web.Response(status=500)

    # ------------------------------------------------------------ the paths

    async def _models(self, http: web.Request) -> web.Response:
        card: dict[str, Json] = {"id": self.model, "object": "model", "owned_by": "slipstream"}
        if self._context_tokens is not None:
            card["max_model_len"] = self._context_tokens
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, http: web.Request) -> web.Response:
        load = self._completer.load() if self._completer is not None else None
        # This request itself is in flight too.
        load = load or EngineLoad(running=self.num_in_flight - 1, waiting=0)
        return web.Response(text=load_to_metrics(load, model=self.model))

    async def _complete(self, http: web.Request) -> web.Response:
        if self._completer is None:
            return _error(404, "this server has no token mode; use /v1/chat/completions")
        body = await self._asked(http)
        prompt_ids = _prompt_ids(body)
        num_top = _num_top(body)
        if num_top is not None and self._scorer is None:
            raise BadBody("asks for prompt_logprobs, which this model does not have")
        priority = body.get("priority", 0)
        sampled = await self._completer.complete(
            prompt_ids,
            _params(body),
            session=session_from_headers(http.headers),
            priority=priority if is_int(priority) else 0,
            cache_salt=text_of(body.get("cache_salt")),
        )
        scores = None
        if num_top is not None and self._scorer is not None:
            scores = await self._scorer.score(prompt_ids, num_top=num_top)
        answer = sampled_to_wire(
            sampled,
            prompt_ids,
            model=self.model,
            text=self._decode(sampled.ids) if self._decode is not None else "",
            with_ids=body.get("return_token_ids") is True,
            with_logprobs=body.get("logprobs") is not None,
            scores=scores,
        )
        return web.json_response(answer)

    async def _reply(self, http: web.Request) -> web.Response:
        if self._chat is None:
            return _error(404, "this server has no chat mode; use /v1/completions with token ids")
        body = await self._asked(http)
        reply = await self._chat.chat(
            [message_from_wire(message) for message in dig_list(body, "messages")],
            [tool_from_wire(tool) for tool in dig_list(body, "tools")] if body.get("tools") else [],
            _params(body),
            session=session_from_headers(http.headers),
        )
        return web.json_response(reply_to_wire(reply, model=self.model))

    async def _read(self, http: web.Request) -> bytes:
        """The body; 408 if the client takes too long to send it."""
        try:
            async with asyncio.timeout(self._read_timeout_s):
                return await http.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(reason=f"the body did not arrive within {self._read_timeout_s:g} s") from None

    async def _asked(self, http: web.Request) -> dict[str, Json]:
        """The body of a request, checked for this model and for unsupported options."""
        try:
            body: Json = json.loads(await self._read(http))
        except (ValueError, RecursionError):
            raise BadBody("is not JSON") from None
        if not isinstance(body, dict):
            raise BadBody("is not a JSON object")
        seen = http[_SEEN]
        seen.body = body
        if (model := body.get("model", self.model)) != self.model:
            raise web.HTTPNotFound(reason=f"the model {text_of(model)!r} is not served; {self.model!r} is")
        if body.get("stream"):
            raise BadBody("asks for a stream, which is not supported")
        if body.get("n", 1) != 1:
            raise BadBody("asks for several choices; send several requests")
        return body


def _params(body: dict[str, Json]) -> SampleParams:
    def number(key: str, default: float) -> float:
        value = body.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadBody(f"has {json.dumps(value)[:80]} where {key} should be a number")
        if not math.isfinite(value):  # Python's JSON allows NaN and Infinity
            raise BadBody(f"has {json.dumps(value)} where {key} should be a finite number")
        return value

    seed = body.get("seed")
    max_tokens = number("max_tokens", number("max_completion_tokens", DEFAULT_MAX_TOKENS))
    if max_tokens < 1 or max_tokens != int(max_tokens):
        raise BadBody(f"asks for {max_tokens:g} tokens: max_tokens should be a whole number above 0")
    return SampleParams(
        max_tokens=int(max_tokens),
        temperature=number("temperature", 1.0),
        top_p=number("top_p", 1.0),
        seed=seed if is_int(seed) else None,
        stop_ids=tuple(dig_ids(body, "stop_token_ids")) if body.get("stop_token_ids") else (),
    )


def _num_top(body: dict[str, Json]) -> int | None:
    """How many of the most likely tokens to report for each token of the prompt; None if no scores are requested."""
    wanted = body.get("prompt_logprobs")
    if wanted is not None and (not is_int(wanted) or wanted < 0):
        raise BadBody(f"has {json.dumps(wanted)[:80]} where prompt_logprobs should be a count")
    return wanted


def _prompt_ids(body: dict[str, Json]) -> list[int]:
    """Of `[1, 2]` or `[[1, 2]]`."""
    prompt = dig(body, "prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], str)):
        raise BadBody("has a text prompt; send token ids")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        return dig_ids(prompt, 0)
    return dig_ids(body, "prompt")


def _error(status: int, message: str, *, code: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code, "type": "error"}}, status=status)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())

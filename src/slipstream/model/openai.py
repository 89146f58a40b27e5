"""Clients of OpenAI-compatible endpoints: token mode (OpenAICompleter) and chat mode (OpenAIChat).

Enters: token ids or messages. Leaves: exactly the ids that the server says it sampled, or its message.
Always holds: nothing is re-tokenised and no logprob is made up. Logprobs that are not those of the distribution that
was sampled from are left out, so that they cannot be trained on. Every token carries the version of the policy at the
time its request was made, which is never newer than the policy that sampled it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.model.base import ChatReply, TokenScore
from slipstream.model.http import Complaint, Endpoint, Retries, Sleep, TryAgain, shortened
from slipstream.model.metrics import load_from_metrics
from slipstream.model.wire import (
    BadBody,
    cached_from_wire,
    dig,
    dig_ids,
    dig_list,
    dig_object,
    is_int,
    logprobs_from_wire,
    message_to_wire,
    reply_from_wire,
    scores_from_wire,
    session_to_headers,
    text_of,
    tool_to_wire,
)
from slipstream.types import EngineLoad, Json, Message, Sampled, SampleParams, StopReason, ToolSpec

PROBE_TIMEOUT_S = 15.0
METRICS_TIMEOUT_S = 5.0

_STOPS: Mapping[str, StopReason] = {"stop": StopReason.STOP, "length": StopReason.LENGTH}

_OWN_DISTRIBUTION: Mapping[str, Json] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent with every completion: what is left out, vLLM fills in from the model's generation_config.json."""

_SHAPING = frozenset(
    {*_OWN_DISTRIBUTION, "temperature", "top_p", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens"}
    | {"structured_outputs", "response_format", "ignore_eos", "logits_processors", "thinking_token_budget"}
)


class LogprobsKind(StrEnum):
    """What the endpoint's logprobs are the logprobs of."""

    PROCESSED = "processed"
    """The distribution that was sampled from: vLLM started with `--logprobs-mode processed_logprobs`."""
    RAW = "raw"
    """The model's own distribution, before temperature and top-p: vLLM's default."""
    NONE = "none"
    """Not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIConfig:
    """`OpenAIConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-8B")`"""

    base_url: str
    """Up to and including `/v1`."""
    model: str
    """A name that the endpoint's `/models` lists; empty if it serves one alone, whose name `probe` then learns."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the API key, read by the client when it opens. Empty: no key is sent."""
    logprobs: LogprobsKind = LogprobsKind.RAW
    context_tokens: int | None = None
    """The model's window. Requests are cut to it; if None, `probe` learns it where the endpoint says."""
    concurrency: int = 1024
    """Connections open at once; requests beyond that wait for one."""
    timeout_s: float = 1_800.0
    """For a call that brings no deadline of its own: all its tries and pauses."""
    connect_timeout_s: float = 30.0
    retries: Retries = field(default_factory=Retries)
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Put into every request's body last, such as `chat_template_kwargs`; None leaves a field out."""
    max_tokens_field: str = "max_tokens"
    """`max_completion_tokens` for chat endpoints that insist on it."""
    resend_thinking: bool = False
    """Whether a chat request carries the thinking of earlier answers, for models that think between tool calls."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url {self.base_url!r} is no URL; write it like http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise ConfigError("base_url carries a user name or password; name the key's variable in api_key_env")
        if self.logprobs not in set(LogprobsKind):
            raise ConfigError(f"logprobs {self.logprobs!r} is none of {', '.join(LogprobsKind)}")
        object.__setattr__(self, "logprobs", LogprobsKind(self.logprobs))
        if self.concurrency < 1:
            raise ConfigError(f"concurrency {self.concurrency} lets no request through; set it to 1 or more")


class _Client:
    """What both clients share: the endpoint, the probe, and how long a call may take."""

    def __init__(
        self,
        config: OpenAIConfig,
        *,
        api_key: str | None = None,
        rng: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`api_key` goes before the variable that the config names; `rng` draws the jitter of retries."""
        self.config = config
        self.model = config.model
        self.context_tokens = config.context_tokens
        self._endpoint = Endpoint(
            config.base_url,
            api_key=api_key,
            api_key_env=config.api_key_env,
            concurrency=config.concurrency,
            connect_timeout_s=config.connect_timeout_s,
            retries=config.retries,
            rng=rng,
            sleep=sleep,
        )

    async def probe(self) -> None:
        """Raise ConfigError, with one sentence, unless the endpoint answers and serves the model."""
        url = self._endpoint.base_url + "/models"
        try:
            status, text = await self._endpoint.get(url, timeout_s=PROBE_TIMEOUT_S)
        except ModelError as error:
            raise ConfigError(f"{error}; start the server, or correct base_url") from error
        if status in (401, 403):
            key = self.config.api_key_env or "api_key"
            raise ConfigError(f"GET {url} answered {status}; set {key} to a key that this endpoint accepts")
        try:
            if status != 200:
                raise BadBody(f"says: {shortened(Complaint.read(text.encode()).message)}")
            cards = [dig_object(card) for card in dig_list(json.loads(text), "data")]
        except ValueError as bad:
            detail = str(bad) if isinstance(bad, BadBody) else "is no JSON"
            raise ConfigError(
                f"GET {url} answered {status} with a body that {shortened(detail)}; "
                "base_url should lead to an OpenAI-compatible server and usually ends in /v1"
            ) from bad
        served = {text_of(card.get("id")): card for card in cards}
        if not self.model and len(served) == 1:
            (self.model,) = served
        if self.model not in served:
            names = ", ".join(sorted(served)[:20]) or "no model"
            raise ConfigError(f"{url} does not list the model {self.model!r}; it serves {names}")
        window = served[self.model].get("max_model_len")
        if self.context_tokens is None and is_int(window):
            self.context_tokens = window

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    def _body(self, fields: Mapping[str, Json]) -> dict[str, Json]:
        left_out = {key for key, value in self.config.extra.items() if value is None}
        merged = {"model": self.model, **fields, **self.config.extra}
        return {key: value for key, value in merged.items() if key not in left_out}

    def _finish(self, choice: Json) -> str:
        """Why the choice ended. An abort is how vLLM ends what was running when it was paused or shut down."""
        finish = text_of(dig(choice, "finish_reason"))
        if finish == "abort":
            raise TryAgain(f"{self.config.base_url} aborted the request before it was done")
        return finish

    def _timeout_s(self, timeout_s: float | None) -> float:
        return self.config.timeout_s if timeout_s is None else timeout_s


class OpenAICompleter(_Client):
    """A Completer over `/completions` as vLLM serves it: token ids in, token ids out.

        async with contextlib.aclosing(OpenAICompleter(config)) as model:
            await model.probe()
            sampled = await model.complete(prompt_ids, SampleParams(max_tokens=64))

    `version` is the policy's version now; whoever updates the endpoint's weights sets it.
    """

    def __init__(
        self,
        config: OpenAIConfig,
        *,
        version: int = 0,
        api_key: str | None = None,
        rng: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        super().__init__(config, api_key=api_key, rng=rng, sleep=sleep)
        self.version = version
        self._load: EngineLoad | None = None

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
        version = self.version
        return await self._endpoint.post(
            "/completions",
            self._body(self._fields(prompt_ids, params, priority=priority, cache_salt=cache_salt)),
            lambda body: self._read(body, params, version),
            headers=session_to_headers(session),
            timeout_s=self._timeout_s(timeout_s),
        )

    async def answer(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Json]:
        """What the server answers to the request of `complete`: its first choice as it came, with the `usage` put in.

        For looking at the server itself; nothing of it is checked or repaired.
        """
        return await self._endpoint.post(
            "/completions",
            self._body(self._fields(prompt_ids, params)),
            lambda body: {"usage": dig_object(body).get("usage"), **dig_object(body, "choices", 0)},
            timeout_s=self._timeout_s(timeout_s),
        )

    async def score(
        self, ids: Sequence[int], *, num_top: int, timeout_s: float | None = None
    ) -> list[TokenScore | None]:
        """See Scorer. vLLM gives 20 at most unless it is started with a higher `--max-logprobs`."""
        fields = {**self._fields(ids, SampleParams(max_tokens=1)), "prompt_logprobs": num_top}
        return await self._endpoint.post(
            "/completions",
            self._body(fields),
            lambda body: scores_from_wire(dig_object(body, "choices", 0), ids, num_top=num_top),
            timeout_s=self._timeout_s(timeout_s),
        )

    def _fields(
        self, prompt_ids: Sequence[int], params: SampleParams, *, priority: int = 0, cache_salt: str = ""
    ) -> dict[str, Json]:
        max_tokens = params.max_tokens
        if self.context_tokens is not None:
            room = self.context_tokens - len(prompt_ids)
            if room < 1:
                raise ContextOverflow(f"{len(prompt_ids)} prompt tokens leave no room in {self.context_tokens}")
            max_tokens = min(max_tokens, room)
        fields: dict[str, Json] = {
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            **_OWN_DISTRIBUTION,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }
        optional: dict[str, Json] = {
            "seed": params.seed,
            "stop_token_ids": list(params.stop_ids) or None,
            "logprobs": None if self.config.logprobs is LogprobsKind.NONE else 1,
            "priority": priority or None,
            "cache_salt": cache_salt or None,
        }
        return fields | {key: value for key, value in optional.items() if value is not None}

    def check_trainable(self, params: SampleParams) -> None:
        """Raise ConfigError if what is sampled with `params` through this endpoint may not be trained on."""
        kind, at = self.config.logprobs, f"sampling from {self.config.base_url}"
        shaping = sorted(_SHAPING & set(self.config.extra))
        if kind is LogprobsKind.NONE:
            raise ConfigError(f"{at} asks for no logprobs; set logprobs to processed or raw to train on it")
        if params.temperature <= 0.0:
            raise ConfigError(f"{at} with temperature {params.temperature:g} is greedy; set it above 0 to train on it")
        if params.top_p < 1.0:
            raise ConfigError(f"{at} with top_p {params.top_p:g} cannot be trained on; set it to 1")
        if shaping:
            raise ConfigError(f"{at} with {shaping[0]} in `extra` cannot be trained on; take it out")
        if kind is LogprobsKind.RAW and params.temperature != 1.0:
            raise ConfigError(
                f"{at} with temperature {params.temperature:g} gives raw logprobs, not those of what was sampled from; "
                "set temperature to 1, or start vLLM with --logprobs-mode processed_logprobs and set "
                "logprobs to processed"
            )

    def load(self) -> EngineLoad | None:
        return self._load

    async def refresh_load(self) -> EngineLoad | None:
        """Read vLLM's `/metrics` for `load`; None where there is none. Never raises ModelError."""
        url = self._endpoint.base_url.removesuffix("/v1") + "/metrics"
        try:
            status, text = await self._endpoint.get(url, timeout_s=METRICS_TIMEOUT_S)
        except ModelError:
            self._load = None
        else:
            self._load = load_from_metrics(text) if status == 200 else None
        return self._load

    def _read(self, body: Json, params: SampleParams, version: int) -> Sampled:
        choice = dig_object(body, "choices", 0)
        finish = self._finish(choice)
        if finish not in _STOPS:
            raise BadBody(f"ended by the finish_reason {finish or None!r}, which is neither stop nor length")
        if choice.get("token_ids") is None:
            raise ModelError(
                f"{self.config.base_url} does not return token ids, without which nothing can be trained on; "
                "serve the model with vLLM 0.11 or newer, or use chat mode to evaluate only"
            )
        ids, logprobs = dig_ids(choice, "token_ids"), self._read_logprobs(choice, params)
        stop_id = choice.get("stop_reason")
        if logprobs is not None and len(logprobs) == len(ids) + 1 and finish == "stop" and is_int(stop_id):
            ids.append(stop_id)
        if logprobs is not None and len(logprobs) != len(ids):
            raise BadBody(f"has {len(ids)} token ids but {len(logprobs)} logprobs")
        return Sampled.at_version(
            ids, logprobs, version=version, stop=_STOPS[finish], num_cached=cached_from_wire(body)
        )

    def _read_logprobs(self, choice: Json, params: SampleParams) -> list[float] | None:
        kind = self.config.logprobs
        if kind is LogprobsKind.NONE:
            return None
        if dig_object(choice).get("logprobs") is None:
            raise BadBody("lacks logprobs, which were asked for; serve them, or set logprobs to none to evaluate only")
        logprobs = logprobs_from_wire(choice)
        sampled_from_own = params.temperature == 1.0 and params.top_p >= 1.0 and not _SHAPING & set(self.config.extra)
        return logprobs if kind is LogprobsKind.PROCESSED or sampled_from_own else None


class OpenAIChat(_Client):
    """A ChatModel over `/chat/completions`, of any provider. For evaluation: its tokens are not seen."""

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        # vLLM cuts to the room that is left, but refuses a limit beyond its whole window.
        max_tokens = min(params.max_tokens, self.context_tokens or params.max_tokens)
        fields: dict[str, Json] = {
            "messages": [message_to_wire(message, thinking=self.config.resend_thinking) for message in messages],
            self.config.max_tokens_field: max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
        }
        if tools:
            fields["tools"] = [tool_to_wire(tool) for tool in tools]
        if params.seed is not None:
            fields["seed"] = params.seed
        if params.stop_ids:
            fields["stop_token_ids"] = list(params.stop_ids)
        return await self._endpoint.post(
            "/chat/completions",
            self._body(fields),
            self._read,
            headers=session_to_headers(session),
            timeout_s=self._timeout_s(timeout_s),
        )

    def _read(self, body: Json) -> ChatReply:
        self._finish(dig(body, "choices", 0))
        return reply_from_wire(body)

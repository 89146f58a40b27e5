"""Clients of OpenAI-compatible endpoints: token mode (OpenAICompleter) and chat mode (OpenAIChat).

Input: token ids or messages. Output: exactly the ids that the server says it sampled, or its message.
Invariants: nothing is tokenised again and no logprob is invented. Logprobs of another distribution than the one that
was sampled from are left out, so that they cannot be trained on. Every token has the version of the policy when its
request was made, which is never newer than the policy that sampled it; requests of different versions share no cache.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from slipstream.errors import ConfigError, ContextOverflow, ModelError
from slipstream.messages import chat_tool
from slipstream.model.base import ChatReply, TokenScore
from slipstream.model.client import Client, LogprobsKind, OpenAIConfig
from slipstream.model.http import Refused, Sleep
from slipstream.model.metrics import load_from_metrics
from slipstream.model.wire import (
    BadBody,
    cached_from_wire,
    dig,
    dig_ids,
    dig_object,
    is_int,
    logprobs_from_wire,
    message_to_wire,
    reply_from_wire,
    scores_from_wire,
)
from slipstream.types import NO_LIMIT, EngineLoad, Json, Message, Role, Sampled, SampleParams, StopReason, ToolSpec

__all__ = ["LogprobsKind", "OpenAIChat", "OpenAICompleter", "OpenAIConfig"]

METRICS_TIMEOUT_S = 5.0
_ANY_PROMPT = (1, 2, 3)

_STOPS: Mapping[str, StopReason] = {"stop": StopReason.STOP, "length": StopReason.LENGTH}

_OWN_DISTRIBUTION: Mapping[str, Json] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sent with every completion, since vLLM takes missing values from the model's generation_config.json."""

_SHAPING = frozenset(
    {*_OWN_DISTRIBUTION, "temperature", "top_p", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens"}
    | {"structured_outputs", "response_format", "ignore_eos", "logits_processors", "thinking_token_budget"}
)


class OpenAICompleter(Client):
    """A Completer over `/completions` as vLLM serves it: token ids in, token ids out.

        async with contextlib.aclosing(OpenAICompleter(config)) as model:
            await model.probe()
            sampled = await model.complete(prompt_ids, SampleParams(max_tokens=64))

    `version` is the current version of the policy; set it after updating the endpoint's weights. A prefix cached under
    one version is not used under another: each version has its own salt, `policy-N`, unless the caller passes one.
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
        return await self._post(
            "/completions",
            self._body(self._fields(prompt_ids, params, priority=priority, cache_salt=cache_salt)),
            lambda body: self._read(body, params, version),
            session,
            timeout_s,
        )

    async def check_sampling(self) -> None:
        """Sample one token. Raises ConfigError if the endpoint does not return what training needs."""
        for _ in self._endpoint.base_urls:  # requests without a session go to the servers in turn
            try:
                await self.complete(_ANY_PROMPT, SampleParams(max_tokens=1))
            except Refused as refused:
                raise ConfigError(f"{refused}{self._remedy(str(refused))}") from refused

    def _remedy(self, complaint: str) -> str:
        if self.config.logprobs is LogprobsKind.NONE or "logprobs" not in complaint or "set logprobs" in complaint:
            return ""
        return (
            "; have the server give logprobs (vLLM: --max-logprobs 1 or more), or set logprobs to none to evaluate only"
        )

    async def answer(
        self,
        prompt_ids: Sequence[int],
        params: SampleParams,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Json]:
        """The server's answer to the request of `complete`: its first choice, with `usage` added.

        For examining the server: nothing in it is checked or repaired.
        """
        return await self._post(
            "/completions",
            self._body(self._fields(prompt_ids, params)),
            lambda body: {"usage": dig_object(body).get("usage"), **dig_object(body, "choices", 0)},
            "",
            timeout_s,
        )

    async def score(
        self, ids: Sequence[int], *, num_top: int, timeout_s: float | None = None
    ) -> list[TokenScore | None]:
        """See Scorer. vLLM returns at most 20 unless it is started with a higher `--max-logprobs`."""
        fields = {**self._fields(ids, SampleParams(max_tokens=1)), "prompt_logprobs": num_top}
        return await self._post(
            "/completions",
            self._body(fields),
            lambda body: scores_from_wire(dig_object(body, "choices", 0), ids, num_top=num_top),
            "",
            timeout_s,
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
            "cache_salt": cache_salt or f"policy-{self.version}",
        }
        optional: dict[str, Json] = {
            "seed": params.seed,
            "stop_token_ids": list(params.stop_ids) or None,
            "logprobs": None if self.config.logprobs is LogprobsKind.NONE else 1,
            "priority": priority or None,
        }
        return fields | {key: value for key, value in optional.items() if value is not None}

    def load(self) -> EngineLoad | None:
        return self._load

    async def refresh_load(self) -> EngineLoad | None:
        """Read vLLM's `/metrics` for `load`; None if there is none. All servers that answer count as one; while none
        does, the last reading stands. Never raises ModelError."""
        texts = await asyncio.gather(*map(self._metrics, self._endpoint.base_urls))
        if any(texts):
            self._load = load_from_metrics("\n".join(texts))
        return self._load

    async def _metrics(self, base_url: str) -> str:
        try:
            status, text = await self._endpoint.get(
                base_url.removesuffix("/v1") + "/metrics", timeout_s=METRICS_TIMEOUT_S
            )
        except ModelError:
            return ""
        return text if status == 200 else ""

    def _read(self, body: Json, params: SampleParams, version: int) -> Sampled:
        choice = dig_object(body, "choices", 0)
        finish = self._finish(choice)
        if finish not in _STOPS:
            raise BadBody(f"has the finish_reason {finish or None!r}, not stop or length")
        if choice.get("token_ids") is None:
            raise Refused(
                f"{self.config.base_url} does not return token ids, which training needs; "
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
            raise BadBody("lacks logprobs, which were requested; serve them, or set logprobs to none to evaluate only")
        logprobs = logprobs_from_wire(choice)
        sampled_from_own = params.temperature == 1.0 and params.top_p >= 1.0 and not _SHAPING & set(self.config.extra)
        return logprobs if kind is LogprobsKind.PROCESSED or sampled_from_own else None


class OpenAIChat(Client):
    """A ChatModel over `/chat/completions`, of any provider. For evaluation, since its tokens are hidden."""

    async def check_answers(self) -> None:
        """Ask one short question. Raises ConfigError if the endpoint refuses. For an endpoint that lists no models, so
        that a wrong address or name is found before the first rollout."""
        question = Message(role=Role.USER, content="Say ok.")
        try:
            await self.chat([question], [], SampleParams(max_tokens=64))
        except Refused as refused:
            raise ConfigError(
                f"{refused}; it lists no models either, so correct base_url (it usually ends in /v1) or model.name"
            ) from refused

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SampleParams,
        *,
        session: str = "",
        timeout_s: float | None = None,
    ) -> ChatReply:
        fields: dict[str, Json] = {
            "messages": [message_to_wire(message, thinking=self.config.resend_thinking) for message in messages],
            "temperature": params.temperature,
            "top_p": params.top_p,
        }
        if params.max_tokens != NO_LIMIT:
            # vLLM truncates to the room that is left, but refuses a limit larger than its window.
            fields[self.config.max_tokens_field] = min(params.max_tokens, self.context_tokens or params.max_tokens)
        if tools:
            fields["tools"] = [chat_tool(tool) for tool in tools]
        if params.seed is not None:
            fields["seed"] = params.seed
        if params.stop_ids:
            fields["stop_token_ids"] = list(params.stop_ids)
        return await self._post("/chat/completions", self._body(fields), self._read, session, timeout_s)

    def _read(self, body: Json) -> ChatReply:
        self._finish(dig(body, "choices", 0))
        return reply_from_wire(body)

"""What the clients of OpenAI-compatible endpoints share, and their settings.

Invariant: if the server is unreachable, requests block and the watcher, if there is one, ends the run, so that it can
be resumed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from slipstream.errors import ConfigError, ModelError
from slipstream.model.http import Complaint, Endpoint, NoServer, Retries, Sleep, T, TryAgain, shortened
from slipstream.model.wire import BadBody, dig, dig_list, dig_object, is_int, text_of
from slipstream.types import Json

PROBE_TIMEOUT_S = 15.0
_NO_SUCH_PATH = frozenset({404, 405, 501})


class LogprobsKind(StrEnum):
    """The distribution that the endpoint's logprobs are from."""

    PROCESSED = "processed"
    """The one that was sampled from: vLLM started with `--logprobs-mode processed_logprobs`."""
    RAW = "raw"
    """The model's own, before temperature and top-p: vLLM's default."""
    NONE = "none"
    """Not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIConfig:
    """`OpenAIConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-8B")`"""

    base_url: str
    """Up to and including `/v1`. Several servers of the same model are separated by commas: each session stays at one
    of them."""
    model: str
    """A name that the endpoint's `/models` lists. Empty if it serves only one model: `probe` then finds its name."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable with the API key, read when the client opens. Empty: no key is sent."""
    logprobs: LogprobsKind = LogprobsKind.RAW
    context_tokens: int | None = None
    """The model's context window, which limits requests. If None, `probe` asks the endpoint."""
    concurrency: int | None = None
    """Maximum of open connections. Further requests wait for one, which counts towards their timeout. None: no limit
    here, since dispatch limits requests."""
    timeout_s: float = 1_800.0
    """For a call without a deadline of its own: covers all its tries and pauses."""
    connect_timeout_s: float = 30.0
    retries: Retries = field(default_factory=Retries)
    extra: Mapping[str, Json] = field(default_factory=dict)
    """Merged into the body of every request last, such as `chat_template_kwargs`; None removes a field."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request. A value `env:NAME` is read from that environment variable when the client opens."""
    max_tokens_field: str = "max_tokens"
    """`max_completion_tokens` for chat endpoints that require it."""
    resend_thinking: bool = False
    """Whether chat requests include the thinking of earlier replies, for models that think between tool calls."""

    def __post_init__(self) -> None:
        for url in self.base_urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(f"base_url {url!r} is not a URL; write it like http://127.0.0.1:8000/v1")
            if parts.username or parts.password:
                raise ConfigError("base_url contains a user name or password; name the key's variable in api_key_env")
        if len(set(self.base_urls)) < len(self.base_urls):
            raise ConfigError(f"base_url {self.base_url!r} names a server twice; name each server once")
        if self.logprobs not in set(LogprobsKind):
            raise ConfigError(f"logprobs {self.logprobs!r} is not one of {', '.join(LogprobsKind)}")
        object.__setattr__(self, "logprobs", LogprobsKind(self.logprobs))
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"concurrency {self.concurrency} allows no request; set it to 1 or more")

    @property
    def base_urls(self) -> tuple[str, ...]:
        return tuple(url.strip().rstrip("/") for url in self.base_url.split(","))


class Client:
    """What both clients share: the endpoint, the probe, timeouts, and what happens when the server is gone."""

    def __init__(
        self,
        config: OpenAIConfig,
        *,
        api_key: str | None = None,
        rng: random.Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`api_key` overrides the variable that the config names; `rng` draws the jitter of retries."""
        self.config = config
        self.model = config.model
        self.context_tokens = config.context_tokens
        self.is_listed = True
        """Whether every probed server lists its models, and this one is among them."""
        self._lost: asyncio.Future[str] | None = None
        """Set to the reason once the server is gone; None if nothing watches it."""
        self._endpoint = Endpoint(
            config.base_urls,
            api_key=api_key,
            api_key_env=config.api_key_env,
            headers=config.headers,
            concurrency=config.concurrency,
            connect_timeout_s=config.connect_timeout_s,
            retries=config.retries,
            rng=rng,
            sleep=sleep,
        )

    async def probe(self) -> None:
        """Raise ConfigError unless the endpoint answers and serves the model. If it has no list of models, a configured
        model name is trusted."""
        for base_url in self._endpoint.base_urls:
            await self._probe(base_url + "/models")

    async def _probe(self, url: str) -> None:
        try:
            status, text = await self._endpoint.get(url, timeout_s=PROBE_TIMEOUT_S)
        except ModelError as error:
            raise ConfigError(f"{error}; start the server, or correct base_url") from error
        if status in (401, 403):
            key = self.config.api_key_env or "api_key"
            raise ConfigError(f"GET {url} answered {status}; set {key} to a key that this endpoint accepts")
        if status in _NO_SUCH_PATH and self.model:
            self.is_listed = False
            return
        try:
            if status in _NO_SUCH_PATH:
                raise BadBody("lists no models: set model.name if the server has no such list")
            if status != 200:
                raise BadBody(f"says: {shortened(Complaint.read(text.encode()).message)}")
            cards = [dig_object(card) for card in dig_list(json.loads(text), "data")]
        except ValueError as bad:
            detail = str(bad) if isinstance(bad, BadBody) else "is not JSON"
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
        if self.config.context_tokens is None and is_int(window):
            self.context_tokens = min(window, self.context_tokens or window)

    async def watch(self) -> None:
        """Never returns; raises ModelError once a request found no server in all its tries."""
        self._lost = asyncio.get_running_loop().create_future()
        why = await self._lost
        raise ModelError(f"the model's server is gone ({why}): restart it, then resume the run")

    def end_session(self, session: str) -> None:
        self._endpoint.end_session(session)

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def _post(
        self, path: str, body: Mapping[str, Json], read: Callable[[Json], T], session: str, timeout_s: float | None
    ) -> T:
        try:
            return await self._endpoint.post(
                path, body, read, session=session, timeout_s=self.config.timeout_s if timeout_s is None else timeout_s
            )
        except NoServer as raised:
            if self._lost is None or await self._endpoint.is_there(timeout_s=PROBE_TIMEOUT_S):
                raise
            if not self._lost.done():
                self._lost.set_result(str(raised))
        await asyncio.Event().wait()  # until the run ends
        raise AssertionError("unreachable: what was waited for never comes")

    def _body(self, fields: Mapping[str, Json]) -> dict[str, Json]:
        left_out = {key for key, value in self.config.extra.items() if value is None}
        merged = {"model": self.model, **fields, **self.config.extra}
        return {key: value for key, value in merged.items() if key not in left_out}

    def _finish(self, choice: Json) -> str:
        """Why the choice ended. vLLM aborts what is running when it is paused or shut down."""
        finish = text_of(dig(choice, "finish_reason"))
        if finish == "abort":
            raise TryAgain(f"{self.config.base_url} aborted the request before it was done")
        return finish

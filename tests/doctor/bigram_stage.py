"""What the endpoint tests share: a little language model with exact probabilities, and a server around it.

The next token depends on the last one alone. Its logits are drawn from a generator seeded by that token, so the model
is the same everywhere and needs no file; the softmax over them is computed in full.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import string
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from aiohttp import ClientSession, web

from slipstream.doctor.checks import Check, Status
from slipstream.doctor.endpoint import check_endpoint
from slipstream.model.base import TokenScore
from slipstream.model.openai import OpenAIConfig
from slipstream.model.server import ModelServer
from slipstream.render.probes import Conversation
from slipstream.render.renderer import Renderer
from slipstream.render.tokenizers import CHATML_TOKENS, ByteTokenizer
from slipstream.types import EngineLoad, Json, Message, Role, Sampled, SampleParams, StopReason

NUM_TOKENS = 256 + len(CHATML_TOKENS)
TOKENIZER = ByteTokenizer()
RENDERER = Renderer("chatml", TOKENIZER)

CERTAIN = 2
"""The number of a model that leaves nothing to chance."""


@cache
def own_logits(last: int, model: int) -> tuple[float, ...]:
    rng = random.Random(f"{model} {last}")
    logits = [rng.gauss(0.0, 500.0 if model == CERTAIN else 4.0) for _ in range(NUM_TOKENS)]
    for stop_id in RENDERER.stop_ids:
        logits[stop_id] = 7.5
    return tuple(logits)


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """Logprobs."""
    peak = max(logits)
    total = math.log(math.fsum(math.exp((logit - peak) / temperature) for logit in logits))
    return [(logit - peak) / temperature - total for logit in logits]


@cache
def own_logprobs(last: int, temperature: float, model: int) -> tuple[float, ...]:
    return tuple(softmax(own_logits(last, model), temperature))


@cache
def scored(last: int, index: int, num_top: int, model: int) -> TokenScore:
    logprobs = own_logprobs(last, 1.0, model)
    return TokenScore(logprob=logprobs[index], top={likely: logprobs[likely] for likely in ranked(logprobs)[:num_top]})


Distribution = Callable[[Sequence[int], float], Sequence[float]]
"""From the ids so far and the temperature to the logprobs of all tokens."""


def bigram(ids: Sequence[int], temperature: float) -> Sequence[float]:
    return own_logprobs(ids[-1], temperature, 0)


def another(ids: Sequence[int], temperature: float) -> Sequence[float]:
    """Another model."""
    return own_logprobs(ids[-1], temperature, 1)


def raw(ids: Sequence[int], temperature: float) -> Sequence[float]:
    """Before temperature."""
    return bigram(ids, 1.0)


def cut(keep: Callable[[Sequence[float]], set[int]]) -> Distribution:
    """All but the tokens that `keep` names are left out, as top_k and its kin do."""

    def distribution(ids: Sequence[int], temperature: float) -> Sequence[float]:
        logprobs = bigram(ids, temperature)
        kept = keep(logprobs)
        total = math.log(math.fsum(math.exp(logprobs[index]) for index in kept))
        return [logprob - total if index in kept else -math.inf for index, logprob in enumerate(logprobs)]

    return distribution


def top_k(number: int) -> Distribution:
    return cut(lambda logprobs: set(ranked(logprobs)[:number]))


def top_p(mass: float) -> Distribution:
    def keep(logprobs: Sequence[float]) -> set[int]:
        kept: set[int] = set()
        total = 0.0
        for index in ranked(logprobs):
            kept.add(index)
            total += math.exp(logprobs[index])
            if total >= mass:
                break
        return kept

    return cut(keep)


def shunning(ids: Sequence[int], temperature: float) -> Sequence[float]:
    """With a presence penalty too small to be seen at temperature 0."""
    seen = set(ids)
    logits = own_logits(ids[-1], 0)
    return softmax([logit - 0.7 * (index in seen) for index, logit in enumerate(logits)], temperature)


def ranked(logprobs: Sequence[float]) -> list[int]:
    return sorted(range(len(logprobs)), key=logprobs.__getitem__, reverse=True)


@dataclass(frozen=True, kw_only=True)
class BigramModel:
    """A Completer and a Scorer. What it samples from, what it reports and what it scores by may differ."""

    sampled: Distribution = bigram
    reported: Distribution | None = None
    """Where the logprobs of samples come from; None: from what was sampled from."""
    scored: int = 0
    """The number of the model that scores."""
    finish: Callable[[Sampled], Sampled] = field(default=lambda sampled: sampled)
    heed_seeds: bool = True
    heed_stops: bool = True
    rng: random.Random = field(default_factory=lambda: random.Random(17))

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
        rng = random.Random(params.seed) if self.heed_seeds and params.seed is not None else self.rng
        ids, start = list(prompt_ids), len(prompt_ids)
        logprobs: list[float] = []
        stop = StopReason.LENGTH
        while len(logprobs) < params.max_tokens and stop is StopReason.LENGTH:
            own = self.sampled(ids, params.temperature or 1.0)
            if params.temperature == 0.0:
                index = ranked(own)[0]
            else:
                (index,) = rng.choices(range(NUM_TOKENS), weights=[math.exp(logprob) for logprob in own])
            told = (self.reported or self.sampled)(ids, params.temperature or 1.0)
            logprobs.append(told[index])
            ids.append(index)
            if self.heed_stops and index in params.stop_ids:
                stop = StopReason.STOP
        return self.finish(Sampled.at_version(ids[start:], logprobs, version=0, stop=stop))

    async def score(
        self, ids: Sequence[int], *, num_top: int, timeout_s: float | None = None
    ) -> list[TokenScore | None]:
        pairs = pairwise(ids)
        return [None, *(scored(last, index, num_top, self.scored) for last, index in pairs)]

    def load(self) -> EngineLoad | None:
        return None

    async def aclose(self) -> None: ...


# ---------------------------------------------------------------- servers

Change = Callable[[dict[str, Json]], dict[str, Json]]


def unchanged(body: dict[str, Json]) -> dict[str, Json]:
    return body


@asynccontextmanager
async def tampered(server: ModelServer, on_request: Change, on_choice: Change) -> AsyncIterator[str]:
    """The base URL of a server that changes what goes in and out of `server`."""
    if on_request is on_choice is unchanged:
        yield server.base_url
        return

    async def forward(http: web.Request) -> web.Response:
        body = on_request(json.loads(await http.read()))
        async with session.post(server.base_url + "/completions", json=body) as response:
            answer = await response.json()
            if response.status == 200:
                answer = {"choices": [on_choice({"usage": answer["usage"], **answer["choices"][0]})]}
                answer["usage"] = answer["choices"][0].pop("usage")
            return web.json_response(answer, status=response.status)

    async def models(http: web.Request) -> web.Response:
        async with session.get(server.base_url + "/models") as response:
            return web.json_response(await response.json())

    app = web.Application(client_max_size=2**24)
    app.add_routes([web.post("/v1/completions", forward), web.get("/v1/models", models)])
    runner = web.AppRunner(app, access_log=None)
    async with ClientSession() as session:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


PROMPTS = (
    Conversation(name="plain", messages=(Message(role=Role.USER, content=string.printable),)),
    Conversation(name="names", messages=(Message(role=Role.USER, content="ß <|im_end|>"),)),
)


def examined(
    model: BigramModel | None = None,
    *,
    on_request: Change = unchanged,
    on_choice: Change = unchanged,
    server_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Check]:
    """The checks of an endpoint that serves `model`, by name."""

    async def main() -> list[Check]:
        made = model or BigramModel()
        served = {"completer": made, "scorer": made, "decode": TOKENIZER.decode, **(server_options or {})}
        async with ModelServer(**served) as server:
            async with tampered(server, on_request, on_choice) as base_url:
                config = OpenAIConfig(base_url=base_url, model="", api_key_env="")
                settings = {"prompts": PROMPTS, "num_samples": 12, "max_tokens": 24, **options}
                return await check_endpoint(config, RENDERER, **settings)

    checks = asyncio.run(main())
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def with_status(checks: Mapping[str, Check], status: Status) -> set[str]:
    return {name for name, check in checks.items() if check.status is status}

"""SkyRL-train's client of its inference engines as a Completer."""

from __future__ import annotations

from typing import Any

from slipstream.bridges.client import ClientAnswer, ClientCompleter, Request
from slipstream.errors import ModelError

REMEDY = "set generator.sampling_params.logprobs=1"


def make_completer(client: Any, *, model: str | None = None, salted: bool = True) -> ClientCompleter:
    """`client` is an InferenceEngineInterface. `salted`: caches of different policy versions are kept apart.
    (Any: skyrl is not typed.)"""

    async def ask(request: Request) -> ClientAnswer:
        version = getattr(client, "weight_version", None)
        output = await client.generate(
            {
                "prompts": None,
                "prompt_token_ids": [request.prompt_ids],
                # One session per attempt, so all its turns go to the engine that has its cache.
                "session_ids": [request.session],
                "sampling_params": {
                    "temperature": request.params.temperature,
                    "top_p": request.params.top_p,
                    "top_k": request.top_k,
                    "max_tokens": request.params.max_tokens,
                    "stop_token_ids": list(request.params.stop_ids),
                    "logprobs": 1,
                },
                "cache_salt": f"policy-{version}" if salted and version is not None else None,
            },
            model=model,
        )
        if output["stop_reasons"][0] == "abort":
            raise ModelError("SkyRL-train's engine aborted a request, as it does when weights change")
        logprobs = output.get("response_logprobs")
        return ClientAnswer(
            ids=output["response_ids"][0],
            logprobs=None if logprobs is None else logprobs[0],
            is_cut=output["stop_reasons"][0] == "length",
            version=version,
        )

    return ClientCompleter(ask, remedy=REMEDY)

"""verl's client of its rollout servers as a Completer."""

from __future__ import annotations

from typing import Any

from slipstream.bridges.client import ClientAnswer, ClientCompleter, Request, Sampling
from slipstream.bridges.driven import EVAL, TRAIN
from slipstream.errors import ModelError

REMEDY = "set actor_rollout_ref.rollout.calculate_log_probs=true"


def make_completer(client: Any, rollout: Any) -> ClientCompleter:
    """`client` is an LLMServerClient, `rollout` verl's settings of it. (Any: verl is not typed.)"""

    async def ask(request: Request) -> ClientAnswer:
        output = await client.generate(
            # One session per attempt, so all its turns go to the server that has its cache.
            request.session,
            prompt_ids=request.prompt_ids,
            sampling_params={
                "temperature": request.params.temperature,
                "top_p": request.params.top_p,
                "top_k": request.top_k,
                "repetition_penalty": 1.0,
                "max_tokens": request.params.max_tokens,
                "stop_token_ids": list(request.params.stop_ids),
                "logprobs": bool(rollout.calculate_log_probs),
            },
        )
        if output.stop_reason == "aborted":
            raise ModelError("verl's rollout server aborted a request, as it does when weights change")
        ended = bool(output.token_ids) and output.token_ids[-1] in request.params.stop_ids
        version = output.extra_fields.get("global_steps")
        return ClientAnswer(
            ids=output.token_ids,
            logprobs=output.log_probs,
            is_cut=not ended and len(output.token_ids) >= request.params.max_tokens,
            version=None if version is None else int(version),
            num_cached=output.extra_fields.get("num_cached_tokens"),
        )

    evaluation = rollout.val_kwargs
    sampling = {
        TRAIN: Sampling(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k),
        EVAL: Sampling(temperature=evaluation.temperature, top_p=evaluation.top_p, top_k=evaluation.top_k),
    }
    return ClientCompleter(ask, remedy=REMEDY, sampling=sampling)

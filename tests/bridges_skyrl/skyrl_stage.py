"""SkyRL-train's own client, in front of a server that answers as its vLLM does, from `driven_stage.Served`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from driven_stage import Served
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train.generators.utils import prepare_generator_input

from slipstream.errors import SlipstreamError
from slipstream.types import SampleParams, StopReason

RECIPE = f"{Path(__file__).resolve().parent.parent / 'bridges_driven' / 'driven_stage.py'}:recipe"
STEP = 5


@asynccontextmanager
async def serving(folder: Path, tokenizer: Any, *, logprobs: bool = True) -> AsyncIterator[RemoteInferenceClient]:
    """The client of a running server."""
    served = Served(folder)

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        named = body["sampling_params"]
        params = SampleParams(max_tokens=named["max_tokens"], temperature=named["temperature"])
        try:
            sampled = await served.complete(body["token_ids"], params, session=request.headers["X-Session-ID"])
        except SlipstreamError as raised:
            return web.json_response({"error": {"message": str(raised)}}, status=400)
        content = [{"logprob": logprob} for logprob in sampled.logprobs or ()]
        choice = {
            "token_ids": list(sampled.ids),
            "finish_reason": "length" if sampled.stop is StopReason.LENGTH else "stop",
            "logprobs": {"content": content} if logprobs else None,
        }
        return web.json_response({"choices": [choice]})

    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    url = f"http://127.0.0.1:{port}"
    client = RemoteInferenceClient(
        proxy_url=url, server_urls=[url], data_parallel_size=1, model_name="small", tokenizer=tokenizer
    )
    try:
        yield client
    finally:
        await client.aclose()
        await runner.cleanup()


def make_input(kinds: list[str], *, num: int, phase: str = "train") -> tuple[Any, list[str]]:
    """The input of a generator, and the prompt that each row is of, made by SkyRL-train."""
    prompts = [
        {
            "prompt": [{"role": "user", "content": kind}],
            "env_class": "slipstream",
            "env_extras": {"task_id": kind},
            "uid": str(place),
        }
        for place, kind in enumerate(kinds)
    ]
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 64, "logprobs": 1}
    given, uids = prepare_generator_input(prompts, num, sampling, "slipstream", phase, STEP)
    return given, uids

"""SkyRL-train's own training loop without a GPU: its workers need CUDA, so these stand in for them.

`CpuDispatch` computes, with a model of transformers in this process, what WorkerDispatch asks of FSDP workers; the loss
is SkyRL-train's own. `Engine` is an HTTP server that answers as its vLLM does: what it says is scripted, and the
logprobs of it are those of its own copy of the model, which `save_weights_for_sampler` replaces.
"""

import asyncio
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from driven_stage import Served
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry

from slipstream.errors import SlipstreamError
from slipstream.types import SampleParams, StopReason


def sequence_logprobs(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of each token but the first of left-padded rows."""
    places = (mask.long().cumsum(dim=-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask.long(), position_ids=places).logits[:, :-1]
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


class Engine:
    def __init__(self, folder: Path, model: Any) -> None:
        self._served = Served(folder)
        self.model = copy.deepcopy(model)

    def _logprobs(self, ids: Sequence[int]) -> list[float]:
        with torch.no_grad():
            row = torch.tensor([list(ids)])
            return [float(value) for value in sequence_logprobs(self.model, row, torch.ones_like(row))[0]]

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        named, prompt = body["sampling_params"], list(body["token_ids"])
        if named.get("prompt_logprobs") is not None:
            said = [
                {str(token): {"logprob": value}}
                for token, value in zip(prompt[1:], self._logprobs(prompt), strict=True)
            ]
            return web.json_response({"choices": [], "prompt_logprobs": [None, *said]})
        params = SampleParams(max_tokens=named["max_tokens"], temperature=named["temperature"])
        try:
            sampled = await self._served.complete(prompt, params, session=request.headers["X-Session-ID"])
        except SlipstreamError as raised:
            return web.json_response({"error": {"message": str(raised)}}, status=400)
        logprobs = self._logprobs([*prompt, *sampled.ids])[len(prompt) - 1 :]
        choice = {
            "token_ids": list(sampled.ids),
            "finish_reason": "length" if sampled.stop is StopReason.LENGTH else "stop",
            "logprobs": {"content": [{"logprob": value} for value in logprobs]},
        }
        return web.json_response({"choices": [choice]})


@contextmanager
def running(engine: Engine) -> Iterator[str]:
    """Its URL. It runs in a thread of its own, as it would in another process: the trainer's loop may be busy."""
    loop = asyncio.new_event_loop()

    async def start() -> tuple[web.AppRunner, str]:
        app = web.Application()
        app.router.add_post("/inference/v1/generate", engine.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, url = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class CpuDispatch:
    """What the trainer asks of WorkerDispatch, for one policy on one rank."""

    def __init__(self, cfg: Any, model: Any, engine: Engine, *, syncs: bool = True) -> None:
        self._cfg, self._model, self._engine, self._syncs = cfg, model, engine, syncs
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def get_lcm_dp_size(self) -> int:
        return 1

    def stage_data(self, model: str, data: Any, boundaries: Sequence[tuple[int, int]]) -> list[Any]:
        return [data[start:end] for start, end in boundaries]

    def forward_from_staged(self, model: str, chunk: Any) -> WorkerOutput:
        with torch.no_grad():
            return self._output(self._responses(chunk), {})

    def forward_backward_from_staged(self, model: str, chunk: Any) -> WorkerOutput:
        algorithm = self._cfg.trainer.algorithm
        logprobs = self._responses(chunk)
        loss, figures = PolicyLossRegistry.get(algorithm.policy_loss_type)(
            logprobs,
            chunk["action_log_probs"],
            chunk["advantages"],
            config=algorithm,
            loss_mask=chunk["loss_mask"],
            rollout_logprobs=chunk["rollout_logprobs"],
        )
        loss.backward()
        return self._output(logprobs.detach(), {"policy_loss": float(loss), **figures})

    def optim_step(self, model: str) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(norm)

    async def save_weights_for_sampler(self) -> None:
        if self._syncs:
            self._engine.model.load_state_dict(self._model.state_dict())

    def save_hf_model(self, model: str, folder: str, tokenizer: Any) -> None:
        self._model.save_pretrained(folder)

    def init_weight_sync_state(self, client: Any) -> None: ...

    def empty_cache(self, model: str | None = None) -> None: ...

    def finalize_pending_saves(self, model: str) -> None: ...

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def _responses(self, chunk: Any) -> torch.Tensor:
        length = chunk.metadata["response_length"]
        found: torch.Tensor = sequence_logprobs(self._model, chunk["sequences"], chunk["attention_mask"])
        return found[:, -length:]

    def _output(self, logprobs: torch.Tensor, metrics: Mapping[str, float]) -> WorkerOutput:
        rows = [{"logprobs": row.tolist()} for row in logprobs]
        return WorkerOutput(loss_fn_output_type="scalar", loss_fn_outputs=rows, metrics=dict(metrics))

"""verl's own parts on one machine without a GPU: its configuration, its client and load balancer, its workers on Ray.

What they sample from is `driven_stage.Served`, behind our own HTTP server, inside the Ray actor that stands where
verl starts vLLM.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from hydra import compose, initialize_config_module
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

STAGE = Path(__file__).resolve().parent.parent / "bridges_driven"
RECIPE = f"{STAGE / 'driven_stage.py'}:recipe"
VERSION = 6
"""Of the policy that is served."""

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import tests


class Server:
    """In vLLM's place: `generate` as verl's client calls it, answered over HTTP."""

    def __init__(self, folder: str, *, is_engine: bool = False) -> None:
        """`is_engine`: the embedded engine over the model's weights, in place of a script."""
        sys.path.insert(0, str(STAGE))
        self._folder, self._is_engine = Path(folder), is_engine
        self._client: Any = None

    async def _ask(self) -> Any:
        if self._client is None:
            from driven_stage import Served

            from slipstream.model.http import Retries
            from slipstream.model.openai import LogprobsKind, OpenAICompleter, OpenAIConfig
            from slipstream.model.server import ModelServer

            self._server = ModelServer(completer=self._engine() if self._is_engine else Served(self._folder))
            await self._server.__aenter__()
            self._client = OpenAICompleter(
                OpenAIConfig(
                    base_url=self._server.base_url,
                    model=self._server.model,
                    logprobs=LogprobsKind.PROCESSED,
                    retries=Retries(max_retries=0),
                )
            )
        return self._client

    def _engine(self) -> Any:
        from slipstream.engine.inference.config import EngineConfig
        from slipstream.engine.inference.load import open_engine

        return open_engine(self._folder, EngineConfig(context_tokens=512, num_slots=8, num_threads=1))

    async def generate(
        self, *, request_id: str, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **given: Any
    ) -> TokenOutput:
        from slipstream.types import SampleParams

        params = SampleParams(
            max_tokens=sampling_params["max_tokens"],
            temperature=sampling_params["temperature"],
            stop_ids=tuple(sampling_params["stop_token_ids"]),
        )
        sampled = await (await self._ask()).complete(list(prompt_ids), params, session=request_id)
        return TokenOutput(
            token_ids=list(sampled.ids),
            log_probs=list(sampled.logprobs) if sampling_params["logprobs"] else None,
            stop_reason="completed",
            extra_fields={"global_steps": VERSION},
        )


def make_config(folder: Path, runs: Path, *changes: str, recipe: str = RECIPE) -> Any:
    """verl's whole configuration over ours, as its entry script composes it."""
    with initialize_config_module("slipstream.bridges.verl.config", version_base=None):
        return compose(
            "slipstream",
            overrides=[
                f"slipstream.recipe='{recipe}'",
                f"slipstream.folder={runs}",
                f"actor_rollout_ref.model.path={folder}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.n=4",
                "actor_rollout_ref.rollout.full_determinism=true",
                "data.max_prompt_length=512",
                "data.max_response_length=512",
                "data.train_batch_size=4",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                "trainer.n_gpus_per_node=1",
                *changes,
            ],
        )


def make_client(config: Any, folder: Path, *, is_engine: bool = False) -> LLMServerClient:
    """verl's own client, with its own load balancer in front of the server."""
    server = ray.remote(Server).remote(str(folder), is_engine=is_engine)
    balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers={"s0": server}, full_determinism=True)
    return LLMServerClient(config=config, load_balancer_handle=balancer)

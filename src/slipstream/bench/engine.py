"""Measures how fast the embedded engine samples, compared with transformers on the same machine, model and dtype.

Three measurements. `speed`: requests of one length that arrive together, through the engine, through transformers'
continuous batching and through plain `generate`, in alternating rounds of one process. `rollouts`: the same for
rollouts of several turns, where each prompt is the one before with its answer and a tool's. The figures are medians, by
wall time and by the process's CPU time, which depends less on other work on the machine but, with several threads,
includes their waiting for each other. The engine returns logprobs with every token, the others do not. `re-entry`: the
number of tokens computed when a rollout of many turns comes back with a tool's answer, and the lengths of its prompts.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.engine.inference.config import EngineConfig
from slipstream.engine.inference.load import open_engine
from slipstream.errors import ConfigError
from slipstream.types import Json, SampleParams

Prompts = list[list[int]]
SLOW_ON_GPU = "continuous_batching"
"""On a GPU so much slower than the others that it is measured once, and not on long prompts and rollouts."""

Sampler = Callable[[Prompts], Prompts]
"""Samples one answer per prompt. The index of a prompt identifies its rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBenchLoad:
    """The amount of work."""

    requests: tuple[int, ...] = (1, 8, 32)
    prompt_tokens: int = 128
    new_tokens: int = 64
    rounds: int = 3
    """Not counting a warm-up: one short request to each, or on a GPU as many as are measured."""
    num_threads: int | None = None
    """CPU threads per operation; None leaves it to torch."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    rollouts: int = 8
    rollout_turns: int = 3
    """Turns of the rollouts whose speed is measured."""
    turns: int = 10
    """Turns of the rollout in `re-entry`."""
    tool_tokens: int = 50
    """Length of each tool's answer."""
    long_prompt_tokens: int = 0
    """If above 0, the requests are repeated with prompts of this length."""
    device: str = "cpu"
    against_transformers: bool = True
    on_status: Callable[[str], None] = lambda line: None
    """Called with a line for each measurement."""


def run(folder: Path, load: EngineBenchLoad) -> dict[str, Json]:
    figures: dict[str, Json] = {"prompt_tokens": load.prompt_tokens, "new_tokens": load.new_tokens}
    for dtype in load.dtypes:
        figures |= measure_speed(folder, load, dtype)
    return {**figures, **asyncio.run(measure_reentry(folder, load))}


# ---------------------------------------------------------------- speed


def measure_speed(folder: Path, load: EngineBenchLoad, dtype: str) -> dict[str, Json]:
    figures: dict[str, Json] = {}
    with _samplers(folder, load, dtype) as samplers:
        num_warm = 1 if load.device == "cpu" else max(load.requests)
        for name, sampler in samplers.items():
            sampler(_prompts(1 if name == SLOW_ON_GPU else num_warm, load.prompt_tokens, seed="warm"))
        for num in load.requests:
            figures |= _compare(samplers, load, f"{dtype}_{num}", num, num_turns=1)
        quick = {name: sampler for name, sampler in samplers.items() if load.device == "cpu" or name != SLOW_ON_GPU}
        if load.long_prompt_tokens:
            long = replace(load, prompt_tokens=load.long_prompt_tokens)
            figures |= _compare(quick, long, f"{dtype}_{max(load.requests)}_long", max(load.requests), num_turns=1)
        if load.rollout_turns:
            num = load.rollouts
            figures |= _compare(quick, load, f"{dtype}_{num}_rollouts", num, num_turns=load.rollout_turns)
    return figures


def _compare(
    samplers: Mapping[str, Sampler], load: EngineBenchLoad, title: str, num: int, *, num_turns: int
) -> dict[str, Json]:
    by_clock: dict[str, list[float]] = {name: [] for name in samplers}
    by_cpu: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(load.rounds):
        for name, sampler in samplers.items():
            if number and name == SLOW_ON_GPU and load.device != "cpu":
                continue
            prompts = _prompts(num, load.prompt_tokens, seed=f"{title}/{number}")
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            num_tokens = _play(sampler, prompts, load, num_turns)
            by_clock[name].append(num_tokens / (time.perf_counter() - start_s))
            by_cpu[name].append(num_tokens / (time.process_time() - start_cpu_s))
            load.on_status(f"{title}, round {number + 1}, {name}: {by_clock[name][-1]:.1f} tokens per second")
    figures: dict[str, Json] = {}
    for unit, speeds in (("s", by_clock), ("cpu_s", by_cpu)):
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        figures |= {f"{title}_{name}_tokens_per_{unit}": speed for name, speed in medians.items()}
        own, others = medians.pop("engine"), medians.values()
        if others:
            figures[f"{title}_times_the_better_per_{unit}"] = own / max(others)
    return figures


def _play(sampler: Sampler, prompts: Prompts, load: EngineBenchLoad, num_turns: int) -> int:
    """Run `num_turns` turns of every rollout; returns the number of tokens sampled."""
    num_tokens = 0
    for turn in range(num_turns):
        answers = sampler(prompts)
        num_tokens += sum(map(len, answers))
        tool_answers = _prompts(len(prompts), load.tool_tokens, seed=f"tool/{turn}")
        prompts = [[*ids, *answer, *tool] for ids, answer, tool in zip(prompts, answers, tool_answers, strict=True)]
    return num_tokens


@contextmanager
def _samplers(folder: Path, load: EngineBenchLoad, dtype: str) -> Iterator[dict[str, Sampler]]:
    """All samplers, with their weights loaded at once so that they can alternate."""
    config = EngineConfig(
        num_slots=max(*load.requests, load.rollouts),
        context_tokens=max(
            load.prompt_tokens + max(1, load.rollout_turns) * (load.new_tokens + load.tool_tokens),
            load.long_prompt_tokens + load.new_tokens,
        ),
        dtype=dtype,
        device=load.device,
        num_threads=load.num_threads,
    )
    with asyncio.Runner() as runner:
        engine = open_engine(folder, config)

        async def sample(prompts: Prompts) -> Prompts:
            requests = (
                engine.complete(ids, SampleParams(max_tokens=load.new_tokens, seed=place), session=f"rollout-{place}")
                for place, ids in enumerate(prompts)
            )
            return [list(sampled.ids) for sampled in await asyncio.gather(*requests)]

        def through_engine(prompts: Prompts) -> Prompts:
            return runner.run(sample(prompts))

        try:
            samplers: dict[str, Sampler] = {"engine": through_engine}
            yield samplers | (_transformers_samplers(folder, load, dtype) if load.against_transformers else {})
        finally:
            runner.run(engine.aclose())


def _transformers_samplers(folder: Path, load: EngineBenchLoad, dtype: str) -> dict[str, Sampler]:
    try:
        import torch
        import transformers
    except ImportError:
        raise ConfigError("the comparison needs transformers: pip install 'slipstream[local]'") from None
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if load.num_threads is not None:
        torch.set_num_threads(load.num_threads)

    # Any: transformers' models have no types that mypy can follow.
    def opened() -> Any:
        loader: Any = transformers.AutoModelForCausalLM
        model = loader.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
        return model.to(load.device)

    settings: Any = transformers.GenerationConfig
    free = settings(
        do_sample=True, top_k=0, max_new_tokens=load.new_tokens, pad_token_id=0, eos_token_id=-1, use_cache=True
    )
    plain, batching = opened(), opened()

    def through_generate(prompts: Prompts) -> Prompts:
        ids = torch.tensor(prompts, device=load.device)
        with torch.inference_mode():
            answer = plain.generate(ids, attention_mask=torch.ones_like(ids), generation_config=free)
        answers: Prompts = answer[:, ids.shape[1] :].tolist()
        return answers

    make_shape: Any = transformers.ContinuousBatchingConfig
    parameters = inspect.signature(make_shape).parameters
    page_size = "page_size" if "page_size" in parameters else "block_size"  # as older versions have it

    def through_batching(prompts: Prompts) -> Prompts:
        num_pages = -(-(len(prompts[0]) + load.new_tokens) // 32) + 1
        sizes = {page_size: 32, "num_blocks": num_pages * len(prompts), "max_batch_tokens": max(256, len(prompts))}
        shape = make_shape(**(sizes if load.device == "cpu" else {}))
        answers = batching.generate_batch(
            inputs=prompts, generation_config=free, continuous_batching_config=shape, progress_bar=False
        )
        return [answers[name].generated_tokens for name in sorted(answers, key=lambda name: int(name.split("_")[-1]))]

    if load.device == "cpu":
        return {"continuous_batching": through_batching, "generate": through_generate}
    from slipstream.bench.static_loop import StaticLoop

    return {"continuous_batching": through_batching, "static_loop": StaticLoop(plain, load.new_tokens)}


# ---------------------------------------------------------------- re-entry


async def measure_reentry(folder: Path, load: EngineBenchLoad) -> dict[str, Json]:
    """One rollout of many turns; each prompt is the one before, its answer, and a tool's answer."""
    answer_tokens = 16
    total = load.prompt_tokens + load.turns * (answer_tokens + load.tool_tokens)
    config = EngineConfig(num_slots=2, context_tokens=total, device=load.device)
    ids = _prompts(1, load.prompt_tokens, seed="first")[0]
    computed: list[int] = []
    prompts: list[int] = []
    async with open_engine(folder, config) as engine:
        for turn in range(load.turns):
            before = engine.counts.num_computed
            params = SampleParams(max_tokens=answer_tokens, seed=turn)
            sampled = await engine.complete(ids, params, session="rollout")
            prompts.append(len(ids))
            computed.append(engine.counts.num_computed - before - (len(sampled.ids) - 1))
            ids = [*ids, *sampled.ids, *_prompts(1, load.tool_tokens, seed=f"tool/{turn}")[0]]
    return {
        "reentry_turns": load.turns,
        "reentry_computed_last": computed[-1],
        "reentry_prompt_last": prompts[-1],
        "reentry_computed_total": sum(computed),
        "reentry_prompt_total": sum(prompts),
    }


def _prompts(num: int, num_tokens: int, *, seed: str) -> Prompts:
    """Random tokens, so that no two prompts share a prefix."""
    source = random.Random(seed)
    return [[source.randrange(200) for _ in range(num_tokens)] for _ in range(num)]

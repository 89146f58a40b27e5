"""A baseline on a GPU without an engine: transformers' model over a static cache, with each step as a CUDA graph.

Input: prompts of one length. Output: answers of one length, sampled at temperature 1. Attention covers the whole cache
behind a mask; there are no logprobs, and nothing is kept between calls.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch


class StaticLoop:
    """`model` is a transformers model, hence Any."""

    def __init__(self, model: Any, new_tokens: int) -> None:
        self._model = model
        self._new_tokens = new_tokens
        self._shapes: dict[tuple[int, int], _Shape] = {}

    def __call__(self, prompts: list[list[int]]) -> list[list[int]]:
        key = len(prompts), len(prompts[0])
        with torch.inference_mode():
            if key not in self._shapes:
                self._shapes.clear()  # their caches are large
                self._shapes[key] = _Shape(self._model, *key, self._new_tokens)
            return self._shapes[key].run(prompts)


class _Shape:
    def __init__(self, model: Any, num_rows: int, num_prompt: int, new_tokens: int) -> None:
        from transformers import StaticCache

        self._model, self._num_prompt, self._new_tokens = model, num_prompt, new_tokens
        length = num_prompt + new_tokens
        device = model.device
        make: Any = StaticCache
        self._cache = make(config=model.config, max_cache_len=length)
        self._ids = torch.zeros(num_rows, 1, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._places = torch.arange(length, device=device)
        self._sampled = torch.zeros(num_rows, new_tokens, dtype=torch.int64, device=device)
        self._takes_position = "cache_position" in inspect.signature(model.base_model.forward).parameters
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, prompts: list[list[int]]) -> list[list[int]]:
        self._cache.reset()
        self._start(torch.tensor(prompts, device=self._ids.device))
        for step in range(1, self._new_tokens):
            if self._graph is None and self._ids.is_cuda:
                self._step()  # it must have run before a graph is recorded
                if step > 2:
                    self._graph = torch.cuda.CUDAGraph()
                    torch.cuda.synchronize()
                    with torch.cuda.graph(self._graph):
                        self._step()
            elif self._graph is not None:
                self._graph.replay()
            else:
                self._step()
        answers: list[list[int]] = self._sampled.tolist()
        return answers

    def _start(self, prompts: torch.Tensor) -> None:
        """Run the prompts, and sample the first token."""
        own = torch.arange(self._num_prompt, device=prompts.device)
        seen = self._places[None, :] <= own[:, None]
        hidden = self._forward(prompts, own, seen)
        self._position.fill_(self._num_prompt - 1)
        self._sample(hidden)

    def _step(self) -> None:
        self._sample(self._forward(self._ids, self._position, self._places[None, :] <= self._position[:, None]))

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"cache_position": positions} if self._takes_position else {}
        hidden: torch.Tensor = self._model.base_model(
            input_ids=ids,
            position_ids=positions[None],
            attention_mask=seen[None, None],
            past_key_values=self._cache,
            use_cache=True,
            **options,
        ).last_hidden_state
        return hidden[:, -1]

    def _sample(self, hidden: torch.Tensor) -> None:
        drawn = torch.multinomial(self._model.get_output_embeddings()(hidden).float().softmax(dim=-1), 1)
        self._ids.copy_(drawn)
        self._position += 1
        self._sampled.index_copy_(1, (self._position - self._num_prompt).clamp(max=self._new_tokens - 1), drawn)

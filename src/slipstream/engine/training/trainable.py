"""A trainable model from a model folder, and its weights by the names of the folder.

Input: a Hugging Face folder of a causal model. Output: logprobs of chosen tokens, with a gradient; the trained
parameters by name; all weights by their Hugging Face names, adapters merged in.
Invariants: weights are float32, whatever the pass is computed in, since a step of 1e-6 would vanish in bfloat16. The
head runs in float32, on the chosen tokens alone, a piece at a time. No dropout. The base under an adapter is never
written to: published weights are base plus adapter, added up each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from slipstream.engine.training.config import LearnerConfig, LoraConfig
from slipstream.engine.training.memory import counted_activations
from slipstream.engine.training.microbatches import MicroBatch
from slipstream.engine.training.packing import Packed, can_pack, register
from slipstream.errors import ConfigError

MAX_LOGITS = 1 << 25
"""Numbers in one piece of logits on a CPU: 128 MiB. More are computed in pieces, and twice."""
LOGITS_SHARE = 64
"""On a GPU one piece is at most this part of its memory, so that it fits beside everything else."""

_PROBE_TOKENS = 64

EntropyMode: TypeAlias = Literal["none", "value", "gradient"]
"""Whether the entropy is computed, and whether it has a gradient."""

_EXTRA = "pip install 'slipstream[local]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Per chosen token."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None
    """Of the distribution it was chosen from."""


class Trainable:
    """Wraps a model of transformers, which has no types, hence Any."""

    def __init__(
        self,
        folder: Path,
        config: LearnerConfig,
        *,
        device: torch.device,
        seed: int,
        max_logits: int | None = None,
    ) -> None:
        self._compute = torch.bfloat16 if config.rounds_on(device.type) else None
        self.packs = can_pack(device, self._compute)
        """Whether to pack micro-batches."""
        self._model = _load(folder, attention=register() if self.packs else "sdpa")
        if config.method == "lora":
            _add_adapter(self._model, config.lora, seed)
        self._model.eval().to(device)
        if config.gradient_checkpointing:
            _checkpoint_layers(self._model)
        self._decoder: Any = self._model.base_model
        self._head: Any = self._model.get_output_embeddings()
        self._device = device
        self._max_logits = max_logits or _max_logits(device)
        self._check_head(folder)
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad
        }
        """Those that are trained, by name."""
        self._adapted = config.method == "lora"
        keeps_copy = bool(config.loss.kl) and not self._adapted
        self._start = [each.detach().clone() for each in self.parameters.values()] if keeps_copy else []

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the model computes what the folder's own weights do: the adapter is off, or the trained weights are
        exchanged for a copy of the folder's, which is kept only if the loss has a KL term."""
        if self._adapted:
            from peft.tuners.tuners_utils import BaseTunerLayer

            layers: list[Any] = [module for module in self._model.modules() if isinstance(module, BaseTunerLayer)]
            for layer in layers:
                layer.enable_adapters(False)
            try:
                yield
            finally:
                for layer in layers:
                    layer.enable_adapters(True)
            return
        assert self._start, "no copy of the folder's weights was kept"
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for place, parameter in enumerate(self.parameters.values()):
            parameter.data, self._start[place] = self._start[place], parameter.data

    @property
    def vocab_size(self) -> int:
        return int(self._model.get_input_embeddings().weight.shape[0])

    def score(
        self,
        ids: torch.Tensor,
        places: torch.Tensor,
        targets: torch.Tensor,
        *,
        temperature: float,
        entropy: EntropyMode = "value",
        packed: Packed | None = None,
    ) -> Scores:
        """`ids` are rows by tokens, padded on the right, or packed into a line; `places` say which of all its places
        predict the targets."""
        hidden = self._hidden(ids, packed).flatten(0, 1).index_select(0, places).float()
        size = max(1, self._max_logits // self.vocab_size)
        if len(targets) <= size:
            return self._score(hidden, targets, temperature, entropy)
        pieces = [
            checkpoint(
                self._score,
                hidden[start : start + size],
                targets[start : start + size],
                temperature,
                entropy,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, len(targets), size)
        ]
        entropies = [piece.entropy for piece in pieces if piece.entropy is not None]
        return Scores(
            logprobs=torch.cat([piece.logprobs for piece in pieces]),
            entropy=torch.cat(entropies) if entropies else None,
        )

    def score_batch(self, batch: MicroBatch, *, temperature: float, entropy: EntropyMode = "value") -> Scores:
        return self.score(
            batch.ids,
            batch.places,
            batch.targets,
            temperature=temperature,
            entropy=entropy,
            packed=batch.packed,
        )

    @property
    def num_parameters(self) -> int:
        """Of the whole model, trained or not."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def activation_bytes(self) -> float:
        """Bytes that a token keeps for the backward pass, without the head: measured on a short row."""
        ids = (torch.arange(_PROBE_TOKENS, device=self._device) % self.vocab_size)[None]
        packed = Packed.of(torch.tensor([_PROBE_TOKENS])).on(self._device) if self.packs else None
        with counted_activations(self._model.parameters) as count:
            hidden = self._hidden(ids, packed)
            num_bytes = count()
        del hidden
        return num_bytes / _PROBE_TOKENS

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights by their Hugging Face names; a head tied to the embedding is left out.

        Those without an adapter are the learner's own memory, not copies: copy them before the next update.
        """
        modules = dict(self._model.named_modules())
        seen: set[int] = set()
        for key, tensor in self._model.state_dict().items():
            owner, _, leaf = key.rpartition(".")
            if ".lora_" in key or tensor.data_ptr() in seen:
                continue
            seen.add(tensor.data_ptr())
            adapted = owner.removesuffix(".base_layer")
            if adapted != owner and leaf == "weight":
                with torch.no_grad():
                    tensor = tensor + modules[adapted].get_delta_weight("default")
            yield key.replace(".base_layer.", "."), tensor.detach()

    def _hidden(self, ids: torch.Tensor, packed: Packed | None = None) -> torch.Tensor:
        mixed = torch.autocast(self._device.type, self._compute) if self._compute is not None else nullcontext()
        with mixed, _attention_on(self._device):
            layout = {} if packed is None else packed.arguments()
            hidden: torch.Tensor = self._decoder(input_ids=ids, use_cache=False, **layout).last_hidden_state
        return hidden

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, mode: EntropyMode) -> Scores:
        logits = self._head(hidden) / temperature
        total = logits.logsumexp(dim=-1)
        logprobs = logits.gather(1, targets[:, None])[:, 0] - total
        if mode == "none":
            return Scores(logprobs=logprobs, entropy=None)
        with nullcontext() if mode == "gradient" else torch.no_grad():
            entropy = total - (logits.softmax(dim=-1) * logits).sum(dim=-1)
        return Scores(logprobs=logprobs, entropy=entropy)

    def _check_head(self, folder: Path) -> None:
        """Refuse families that transform their logits after the head: their logprobs would be wrong here."""
        ids = torch.arange(min(4, self.vocab_size), device=self._device)[None]
        with torch.no_grad():
            whole = self._model(input_ids=ids, use_cache=False).logits
            ours = self._head(self._decoder(input_ids=ids, use_cache=False).last_hidden_state)
        if not torch.allclose(whole.float(), ours.float(), rtol=1e-4, atol=1e-4):
            raise ConfigError(
                f"{folder}: this family transforms its logits after the head, which is not supported: use another model"
            )


def _max_logits(device: torch.device) -> int:
    if device.type != "cuda":
        return MAX_LOGITS
    return max(MAX_LOGITS, torch.cuda.get_device_properties(device).total_memory // LOGITS_SHARE // 4)


def _attention_on(device: torch.device) -> AbstractContextManager[Any]:
    """Without cuDNN's attention, which compiles for every new shape: batches hardly ever share one."""
    if device.type == "cpu":
        return nullcontext()
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    context: AbstractContextManager[Any] = sdpa_kernel(kinds)
    return context


def _load(folder: Path, *, attention: str) -> Any:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has no config.json: give a Hugging Face model folder")
    try:
        import transformers
    except ImportError:
        raise ConfigError(f"the embedded learner needs transformers: {_EXTRA}") from None

    auto: Any = transformers.AutoModelForCausalLM
    try:
        with _no_progress_bar():
            model, report = auto.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError) as raised:
        raise ConfigError(f"the model in {folder} cannot be read ({raised}): fetch it again") from raised
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ConfigError(f"the model in {folder} lacks weights ({missing}): fetch it again")
    return model


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws one on stderr, where the run draws its own."""
    import transformers.utils.logging

    logging: Any = transformers.utils.logging
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def _add_adapter(model: Any, config: LoraConfig, seed: int) -> None:
    """In place. Everything but the adapter is frozen, and the adapter starts at 0."""
    try:
        import peft
    except ImportError:
        raise ConfigError(f"method=lora needs peft: {_EXTRA}") from None

    settings: dict[str, Any] = {
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(config.targets) or "all-linear",
        "task_type": "CAUSAL_LM",
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(peft.LoraConfig(**settings), model)
        except ValueError as raised:
            raise ConfigError(f"lora.targets={', '.join(config.targets)}: {raised}") from None
    _check_shared(model, config)


def _check_shared(model: Any, config: LoraConfig) -> None:
    """Refuse an adapter on only one of a tied embedding and head: no single weight could express the result."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or embedding.weight is not head.weight:
        return
    adapted = [
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if (module is embedding or module is head) and hasattr(module, "base_layer")
    ]
    if adapted:
        raise ConfigError(
            f"lora.targets={', '.join(config.targets)}: embedding and head of this model share their weights, and an "
            f"adapter would separate them, so leave {' and '.join(adapted)} out"
        )


def _checkpoint_layers(model: Any) -> None:
    """Sets only the layers themselves to training mode, not their modules, so dropout stays off."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True

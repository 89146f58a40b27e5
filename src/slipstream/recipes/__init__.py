"""Recipes: one folder per agent, with a function that returns its full settings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace

from slipstream.config import checked
from slipstream.errors import ConfigError
from slipstream.names import did_you_mean, load_object, user_code
from slipstream.settings import EvalConfig, TrainConfig

RECIPES: Mapping[str, str] = {
    "demo": "slipstream.recipes.demo:recipe",
    "react": "slipstream.recipes.react:recipe",
    "quickstart": "slipstream.recipes.quickstart:recipe",
    "smollm2": "slipstream.recipes.smollm2:recipe",
    "research": "slipstream.recipes.research:recipe",
    "swe": "slipstream.recipes.swe:recipe",
    "swe-135m": "slipstream.recipes.swe:small",
    "swe-1.5b": "slipstream.recipes.swe:coder",
    "swe-levels": "slipstream.recipes.swe:levels",
}

SAMPLES: Mapping[str, str] = {"react": "slipstream.recipes.react:sample"}
"""What a recipe without tasks of its own runs if none are named: a sample that ships with it, and a scripted model."""

TRAINED: Mapping[str, str] = {"research": "slipstream.recipes.research:lookups"}
"""Recipes of an evaluation under whose names `slipstream train` has one too."""


def find_recipe(name: str, *, to_train: bool = False) -> EvalConfig | TrainConfig:
    """The settings of a built-in recipe, or of a function at `package.module:function` or `file.py:function`. Where a
    name has one for each command, `to_train` takes the training's."""
    path = (TRAINED.get(name) if to_train else None) or RECIPES.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f'there is no recipe "{name}"{did_you_mean(name, RECIPES)}: '
            f"use one of {', '.join(RECIPES)}, or file.py:function"
        )
    function = load_object(path, "recipe")
    with user_code(f'recipe "{name}"'):
        config = function() if callable(function) else function
    if not isinstance(config, EvalConfig | TrainConfig):
        raise ConfigError(f'recipe "{name}" gave a {type(config).__name__}: return an EvalConfig or a TrainConfig')
    try:
        return checked(config)
    except ConfigError as raised:
        raise ConfigError(f'recipe "{name}": {raised}') from raised


def with_sample(name: str, config: EvalConfig, *, keeps_model: bool) -> EvalConfig:
    """The recipe on its sample, with the sample's scripted model unless the recipe `keeps_model`; the recipe itself if
    it has no sample."""
    if name not in SAMPLES:
        return config
    sample = load_object(SAMPLES[name], "recipe")
    assert callable(sample)
    found = sample()
    assert isinstance(found, EvalConfig)
    return replace(found, model=config.model) if keeps_model else found


def describe(name: str) -> str:
    """What a built-in recipe is: the first sentences of its module's and its function's docstrings."""
    function, module = load_object(RECIPES[name], "recipe"), sys.modules[RECIPES[name].partition(":")[0]]
    docs = (" ".join((inspect.getdoc(each) or "").split()) for each in (module, function))
    return " ".join(f"{doc.partition('. ')[0].rstrip('.')}." for doc in docs if doc)

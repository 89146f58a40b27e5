"""What bridge=tinker does not support is refused before anything starts."""

import pytest

from slipstream.config import apply_overrides, from_json, to_json
from slipstream.errors import ConfigError
from slipstream.recipes import find_recipe
from slipstream.settings import TrainConfig, check_settings

TINKER = ("bridge=tinker", "base_url=http://127.0.0.1:8000", "steps=3")


def quickstart(*pairs: str) -> TrainConfig:
    recipe = find_recipe("quickstart")
    assert isinstance(recipe, TrainConfig)
    return apply_overrides(recipe, pairs)


def test_two_settings_put_the_quickstart_on_a_tinker_server() -> None:
    config = quickstart(*TINKER)
    check_settings(config)
    assert from_json(TrainConfig, to_json(config)) == config


@pytest.mark.parametrize(
    "pair",
    [
        "model.temperature=0.7",
        "deterministic=true",
        "learner.recompute_proximal=true",
        "learner.loss.normaliser=fixed",
        "learner.loss.kind=sequence",
        "learner.lora.alpha=16",
        'learner.lora.targets=["q_proj"]',
        "tinker.timeout_s=0",
    ],
)
def test_what_the_api_has_no_word_for_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings(quickstart(*TINKER, pair))
    assert raised.value.key == pair.split("=")[0]


def test_a_server_without_its_bridge_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings(quickstart("base_url=http://127.0.0.1:8000"))
    assert (raised.value.key, raised.value.remedies) == ("base_url", ("bridge=tinker",))

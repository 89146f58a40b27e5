"""Every setting says whether it may change on resume, in the code and on the page; what may not is refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.config import apply_overrides, leaves
from slipstream.engine.inference.config import EngineConfig
from slipstream.errors import ConfigError
from slipstream.feed import SolveRateFilter
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig, TrainConfig
from slipstream.settings.resume_rules import RULES, check_changes, rules_of

PAGE = (Path(__file__).parents[2] / "docs" / "resume.md").read_text()
EVAL = EvalConfig(name="x", tasks=TasksConfig())
TRAIN = TrainConfig(name="x", tasks=TasksConfig())


def keys() -> set[str]:
    whole = replace(TRAIN, solve_rate=SolveRateFilter())
    return {key for config in (EVAL, whole) for key, _ in leaves(config)}


def test_every_setting_has_one_rule_and_every_rule_a_setting() -> None:
    found = {key: rules_of(key) for key in keys()}
    assert {key: rules for key, rules in found.items() if len(rules) != 1} == {}
    assert {rule for rules in found.values() for rule in rules} == set(RULES)


def test_the_page_shows_the_rules() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+`) \|$", PAGE, flags=re.MULTILINE)
    shown = {key: rule for rule, listed in rows for key in re.findall(r"`([^`]+)`", listed)}
    assert shown == {key: str(rule) for key, rule in RULES.items()}


@pytest.mark.parametrize(
    "pair",
    [
        "model.base_url=http://other:8000/v1",
        "model.api_key_env=OTHER_KEY",
        "base_url=http://other:8000",
        "dispatch.slots=3",
        "dispatch.deadlines.run_s=7",
        "hardware.every_s=0",
        "tensorboard=true",
        "learner.tokens_per_microbatch=512",
        "learner.gradient_checkpointing=true",
        "model.engine.num_slots=4",
        "keep_checkpoints=1",
        "steps=101",
    ],
)
def test_whatleaves_results_alone_may_change(pair: str) -> None:
    (change,) = check_changes(TRAIN, apply_overrides(TRAIN, [pair]), run="r")
    assert change.key == pair.partition("=")[0] and change.was != change.now


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("learner.learning_rate=0.5", "learner.learning_rate was None and cannot become 0.5, which would change its"),
        ("seed=3", "seed was 0 and cannot become 3"),
        ("tasks.args.seed=3", "tasks.args was {} and cannot become {'seed': 3}"),
        ("solve_rate.above=0.1", "solve_rate"),
        ("agent.hints.on=true", "agent.hints.on was None and cannot become True"),
    ],
)
def test_what_would_change_results_is_refused_with_both_values(pair: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_changes(TRAIN, apply_overrides(TRAIN, [pair]), run="r")


@pytest.mark.parametrize(
    "config",
    [replace(TRAIN, deterministic=True), replace(EVAL, model=ModelConfig(engine=EngineConfig(deterministic=True)))],
)
def test_a_deterministic_run_keeps_what_decides_its_bits(config: TrainConfig | EvalConfig) -> None:
    with pytest.raises(ConfigError, match="the run is deterministic"):
        check_changes(config, apply_overrides(config, ["model.engine.num_slots=4"]), run="r")
    assert check_changes(config, apply_overrides(config, ["dispatch.slots=4"]), run="r")

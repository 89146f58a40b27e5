"""Settings: numbers that no run can use are refused before anything starts."""

import pytest

from slipstream.config import apply_overrides
from slipstream.errors import ConfigError
from slipstream.feed import SolveRateFilter
from slipstream.recipes import RECIPES, find_recipe
from slipstream.settings import EvalConfig, TasksConfig, TrainConfig, check_settings

CONFIG = EvalConfig(name="x", tasks=TasksConfig())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_in_order(name: str) -> None:
    check_settings(find_recipe(name))


@pytest.mark.parametrize(
    "pair",
    [
        "samples=0",
        "samples=-1",
        "tasks.num=0",
        "dispatch.slots=0",
        "dispatch.limits.sandboxes=0",
        "dispatch.limits.run=-2",
        "dispatch.limits.memory_mb=0",
        "dispatch.limits.cpus=-0.5",
        "dispatch.deadlines.run_s=-1.0",
        "dispatch.deadlines.total_s=nan",
        "dispatch.deadlines.grade_s=inf",
        "dispatch.retries.attempts=0",
        "sandbox.start_timeout_s=0",
        "model.max_tokens=0",
        "model.context_tokens=0",
        "model.timeout_s=0",
        "model.max_retries=-1",
        "model.temperature=-0.1",
        "model.top_p=0",
        "model.top_p=1.5",
        "hardware.every_s=-0.5",
    ],
)
def test_a_number_without_sense_is_named_with_its_key(pair: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings(apply_overrides(CONFIG, [pair]))
    assert f"{raised.value.key}={raised.value.value}" == pair
    assert str(raised.value).startswith(f"{pair}: give a ")


@pytest.mark.parametrize(
    "pair",
    [
        "seed=-3",
        "seed=0",
        "solved_at=-1",
        "solved_at=0",
        "model.temperature=0",
        "model.max_retries=0",
        "dispatch.deadlines.grace_s=0",
        "hardware=0",
        "dispatch.limits.sandboxes=null",
        "tasks.num=null",
        f"seed={10**400}",
    ],
)
def test_what_makes_sense_passes(pair: str) -> None:
    check_settings(apply_overrides(CONFIG, [pair]))


TRAINING = TrainConfig(name="x", tasks=TasksConfig(source="tasks.jsonl"))


@pytest.mark.parametrize(
    ("pairs", "key", "remedies"),
    [
        (["oversample=-1"], "oversample", ()),
        (["sandbox.warm=-1"], "sandbox.warm", ()),
        (["oversample=2", "deterministic=true"], "oversample", ("oversample=0", "deterministic=false")),
        (["carry=true", "staleness=1"], "carry", ("oversample=1",)),
        (["carry=true", "oversample=2"], "carry", ("staleness=1",)),
        (["carry=true", "oversample=2", "staleness=1", "replace_flat=1"], "replace_flat", ("replace_flat=0",)),
        (["replace_flat=2", "advantages=reinforce"], "replace_flat", ("replace_flat=0",)),
    ],
)
def test_rules_for_groups_that_do_not_go_together_are_refused_with_their_remedies(
    pairs: list[str], key: str, remedies: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings(apply_overrides(TRAINING, pairs))
    assert (raised.value.key, raised.value.remedies) == (key, remedies)
    for remedy in remedies:
        check_settings(apply_overrides(TRAINING, [*pairs, remedy]))


@pytest.mark.parametrize(
    "pairs",
    [
        ["oversample=2"],
        ["oversample=2", "carry=true", "staleness=1"],
        ["replace_flat=4", "deterministic=true"],
        ["oversample=2", "replace_flat=4", "staleness=2"],
    ],
)
def test_rules_for_groups_that_go_together_pass(pairs: list[str]) -> None:
    check_settings(apply_overrides(TRAINING, pairs))


@pytest.mark.parametrize(
    "pairs",
    [
        ["learner.temperature=0.7"],
        ["model.temperature=0.7", "learner.temperature=0.8"],
        ["warm_start.learning.seed=3"],
        ["seed=4", "warm_start.learning.seed=3"],
    ],
)
def test_what_another_setting_decides_cannot_be_set_otherwise(pairs: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings(apply_overrides(TRAINING, pairs))
    assert f"{raised.value.key}={raised.value.value}" == pairs[-1]
    for remedy in raised.value.remedies:
        check_settings(apply_overrides(TRAINING, [*pairs, remedy]))


@pytest.mark.parametrize(
    "pairs",
    [
        ["model.temperature=0.7"],
        ["model.temperature=0.7", "learner.temperature=0.7"],
        ["learner.temperature=1"],
        ["seed=3"],
        ["seed=3", "warm_start.learning.seed=3"],
    ],
)
def test_what_another_setting_decides_may_be_left_out_or_be_the_same(pairs: list[str]) -> None:
    check_settings(apply_overrides(TRAINING, pairs))


def test_tasks_that_teach_nothing_can_be_told_to_rest_by_dotted_keys() -> None:
    config = apply_overrides(TRAINING, ["solve_rate.above=0.1"])
    check_settings(config)
    assert config.solve_rate == SolveRateFilter(above=0.1)
    with pytest.raises(ConfigError, match=r"^solve_rate\.rest_epochs=0: give a number above 0"):
        check_settings(apply_overrides(TRAINING, ["solve_rate.rest_epochs=0"]))


def test_tasks_can_be_set_by_their_source_alone() -> None:
    config = EvalConfig(name="x", tasks=TasksConfig())
    assert apply_overrides(config, ["tasks=some/folder", "tasks.num=3"]).tasks == TasksConfig(
        source="some/folder", num=3
    )

"""Configs: changed by `key=value`, written and read back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from pydantic import JsonValue

from slipstream.config import apply_overrides, checked, checked_arguments, from_json, overrides_between, to_json
from slipstream.errors import ConfigError
from slipstream.recipes import RECIPES, find_recipe
from slipstream.settings import EvalConfig, ModelConfig, TasksConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    depth: int = 1
    kind: Literal["flat", "round"] = "flat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str = "outer"
    ratio: float = 0.5
    most: int | None = None
    inner: Inner = Inner()
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    spare: Inner | None = None


def refusal(*pairs: str) -> str:
    with pytest.raises(ConfigError) as raised:
        apply_overrides(Outer(), pairs)
    return str(raised.value)


def test_overrides_reach_nested_keys_in_order() -> None:
    changed = apply_overrides(Outer(), ["inner.depth=3", "ratio=2", "inner.depth=4", "most=7"])
    assert changed == Outer(ratio=2.0, most=7, inner=Inner(depth=4))


def test_without_overrides_a_config_stays_what_it_is() -> None:
    config = Outer()
    assert apply_overrides(config, []) is config


def test_a_config_is_never_changed_in_place() -> None:
    config = Outer(extra={"a": 1})
    apply_overrides(config, ["inner.depth=3", "extra.b=2"])
    assert config == Outer(extra={"a": 1})


def test_null_unsets_what_may_be_unset() -> None:
    assert apply_overrides(Outer(most=3), ["most=null"]).most is None


def test_a_group_that_may_be_absent_starts_from_its_defaults() -> None:
    changed = apply_overrides(Outer(), ["spare.kind=round"])
    assert changed.spare == Inner(kind="round")
    assert apply_overrides(changed, ["spare.depth=3"]).spare == Inner(kind="round", depth=3)
    assert apply_overrides(changed, ["spare=null"]).spare is None


@pytest.mark.parametrize("spare", [None, Inner()])
def test_a_group_that_may_be_absent_is_set_by_its_keys_alone(spare: Inner | None) -> None:
    for text in ("true", "3", '{"depth": 3}', "round"):
        with pytest.raises(ConfigError) as raised:
            apply_overrides(Outer(spare=spare), [f"spare={text}"])
        assert str(raised.value) == (
            '"spare" is a group of settings: set one of spare.depth, spare.kind, or spare=null for none'
        )


@pytest.mark.parametrize("text", ["7", "true", "null", "1e5", "NaN", "a=b", "", "[1]"])
def test_a_text_setting_takes_any_text_as_it_is(text: str) -> None:
    assert apply_overrides(Outer(), [f"name={text}"]).name == text


def test_a_mapping_takes_new_keys_and_json_values() -> None:
    changed = apply_overrides(Outer(), ["extra.seed=3", "extra.split=train", 'extra.list=["a", 1]', "extra.off=false"])
    assert changed.extra == {"seed": 3, "split": "train", "list": ["a", 1], "off": False}


def test_a_dotted_key_reaches_into_a_mapping() -> None:
    changed = apply_overrides(Outer(extra={"a": {"b": 1}}), ["extra.a.c=2", "extra.d.e.f=x"])
    assert changed.extra == {"a": {"b": 1, "c": 2}, "d": {"e": {"f": "x"}}}


def test_a_mapping_can_be_set_whole() -> None:
    assert apply_overrides(Outer(extra={"a": 1}), ['extra={"b": 2}']).extra == {"b": 2}


def test_not_a_number_stays_text_in_a_mapping_since_json_has_none() -> None:
    assert apply_overrides(Outer(), ["extra.x=NaN"]).extra == {"x": "NaN"}


def test_the_settings_of_a_run_take_the_documented_overrides() -> None:
    base = EvalConfig(name="x", tasks=TasksConfig(args={"split": "train"}))
    changed = apply_overrides(
        base, ["tasks.args.seed=3", "model.script_args.quality=0.5", "dispatch.limits.sandboxes=2"]
    )
    assert changed.tasks.args == {"split": "train", "seed": 3}
    assert changed.model.script_args == {"quality": 0.5}
    assert changed.dispatch.limits.sandboxes == 2


def test_an_unknown_key_names_the_nearest_and_the_known_ones() -> None:
    message = refusal("ration=2")
    assert 'there is no setting "ration"' in message
    assert 'did you mean "ratio"?' in message
    assert "name, ratio, most, inner, extra, spare" in message


def test_an_unknown_nested_key_is_named_in_full_and_compared_with_its_neighbours() -> None:
    message = refusal("inner.dept=2")
    assert '"inner.dept"' in message
    assert 'did you mean "depth"?' in message
    assert "ratio" not in message


def test_an_unknown_key_of_a_group_that_may_be_absent_is_refused_likewise() -> None:
    assert 'there is no setting "spare.dept" (did you mean "depth"?)' in refusal("spare.dept=2")
    with pytest.raises(ConfigError, match=r'there is no setting "spare\.dept" \(did you mean "depth"\?\)'):
        from_json(Outer, {"spare": {"dept": 3}})


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("inner.depth=abc", "valid integer"),
        ("inner.depth=1.5", "valid integer"),
        ("ratio=fast", "valid number"),
        ("inner.kind=square", "'flat' or 'round'"),
        ("extra=[1]", "valid dictionary"),
        ('extra={"a": 1', "valid dictionary"),
    ],
)
def test_a_wrong_type_names_key_value_and_what_would_do(pair: str, said: str) -> None:
    message = refusal(pair)
    assert message.startswith(f"{pair}: ")
    assert said in message


def test_a_group_is_no_setting_and_says_what_it_holds() -> None:
    assert refusal("inner=3") == '"inner" is a group of settings: set one of inner.depth, inner.kind'


def test_a_value_holds_no_settings() -> None:
    assert '"ratio.depth": ratio is a value' in refusal("ratio.depth=3")
    assert '"most.depth": most is a value' in refusal("most.depth=3")
    assert '"spare.depth.x": depth is a value' in refusal("spare.depth.x=3")


def test_what_is_no_pair_is_refused() -> None:
    assert refusal("fast") == '"fast" is not a setting: write key=value'


def test_a_config_reads_back_equal() -> None:
    config = Outer(name="ü", most=3, inner=Inner(kind="round"), extra={"a": [1, {"b": None}], "c": 0.1})
    assert from_json(Outer, to_json(config)) == config


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_reads_back_equal(name: str) -> None:
    config = find_recipe(name)
    assert from_json(type(config), to_json(config)) == config


def test_a_changed_setting_reads_back_unequal() -> None:
    config = find_recipe("demo")
    assert from_json(EvalConfig, to_json(replace(config, model=ModelConfig(temperature=0.5)))) != config


def test_an_unknown_stored_key_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r'there is no setting "inner\.dept" \(did you mean "depth"\?\)'):
        from_json(Outer, {"inner": {"dept": 3}})


def test_a_stored_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the setting inner\.depth is 'deep'"):
        from_json(Outer, {"inner": {"depth": "deep"}})


def test_what_is_stored_must_be_an_object() -> None:
    with pytest.raises(ConfigError):
        from_json(Outer, [1])


def make(*, num: int = 1, names: tuple[str, ...] = ()) -> None: ...


def test_arguments_of_a_function_are_checked_by_its_annotations() -> None:
    assert checked_arguments(make, {"num": "3", "names": ["a"]}, "tasks.args") == {"num": 3, "names": ("a",)}
    with pytest.raises(ConfigError, match=r"^tasks\.args\.num=abc: Input should be a valid integer"):
        checked_arguments(make, {"num": "abc"}, "tasks.args")
    with pytest.raises(
        ConfigError, match=r'no setting "tasks\.args\.nun" \(did you mean "num"\?\); known are num, names'
    ):
        checked_arguments(make, {"nun": 3}, "tasks.args")


def test_a_function_that_takes_anything_gets_everything() -> None:
    def anything(first: int, **rest: object) -> None: ...

    assert checked_arguments(anything, {"first": 1, "other": "x"}, "k") == {"first": 1, "other": "x"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    whole: int = 1
    part: float = 0.5
    most: int | None = None
    several: tuple[float, ...] = ()
    named: Mapping[str, int] = field(default_factory=dict)
    switch: bool = False
    either: bool | int | str = ""


@pytest.mark.parametrize(
    "pair", ["whole=true", "part=false", "most=true", "several=[1, true]", 'named={"a": 1, "b": false}']
)
def test_true_and_false_are_no_numbers(pair: str) -> None:
    with pytest.raises(ConfigError) as raised:
        apply_overrides(Numbers(), [pair])
    assert str(raised.value) == f"{pair}: give a number, not true or false"


@pytest.mark.parametrize(
    ("pair", "value"),
    [("switch=true", True), ("either=true", True), ("either=1", 1), ("several=[1, 2]", (1.0, 2.0)), ("whole=3", 3)],
)
def test_true_stays_true_where_it_may_stand_and_a_number_a_number(pair: str, value: object) -> None:
    found = getattr(apply_overrides(Numbers(), [pair]), pair.partition("=")[0])
    assert (found, type(found)) == (value, type(value))


def test_an_argument_that_is_a_number_takes_no_true() -> None:
    def function(seed: int = 0, noisy: bool = False) -> None: ...

    assert checked_arguments(function, {"noisy": True}, "tasks.args") == {"noisy": True}
    with pytest.raises(ConfigError, match=r"tasks\.args\.seed=True: give a number, not true or false"):
        checked_arguments(function, {"seed": True}, "tasks.args")


def test_what_code_made_is_read_as_the_command_line_is() -> None:
    config = EvalConfig(name="x", tasks="letters.py:tasks", samples="4")  # type: ignore[arg-type]
    assert checked(config) == EvalConfig(name="x", tasks=TasksConfig(source="letters.py:tasks"), samples=4)
    deep = replace(config, model=ModelConfig(temperature="0.5"))  # type: ignore[arg-type]
    assert checked(deep).model.temperature == 0.5


def test_what_is_right_stays_the_same_object() -> None:
    config = find_recipe("quickstart")
    assert checked(config) is config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Outer(inner=3), "inner=3 is a int: give a Inner(...)"),  # type: ignore[arg-type]
        (Outer(inner=None), "inner=None is a NoneType: give a Inner(...)"),  # type: ignore[arg-type]
        (Outer(spare="round"), "spare='round' is a str: give a Inner(...)"),  # type: ignore[arg-type]
        (Outer(inner=Inner(depth="deep")), "inner.depth='deep': Input should be a valid integer"),  # type: ignore[arg-type]
        (Outer(inner=Inner(depth=True)), "inner.depth=True: give a number, not true or false"),
        (Outer(spare=Inner(kind="square")), "spare.kind='square': Input should be 'flat' or 'round'"),  # type: ignore[arg-type]
        (Outer(name=3), "name=3: Input should be a valid string"),  # type: ignore[arg-type]
    ],
)
def test_what_code_made_wrong_is_named(config: Outer, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(config)
    assert str(raised.value).startswith(said)


RECIPE = EvalConfig(name="x", tasks=TasksConfig(source="demo:tasks", num=64, args={"seed": 1}))


@pytest.mark.parametrize("key", ["tasks", "tasks.source"])
def test_another_source_begins_with_its_own_defaults(key: str) -> None:
    assert apply_overrides(RECIPE, [f"{key}=mine.py:tasks"]).tasks == TasksConfig(source="mine.py:tasks")
    assert apply_overrides(RECIPE, [f"{key}=demo:tasks"]) == RECIPE
    for pairs in ([f"{key}=mine.py:tasks", "tasks.num=3"], ["tasks.num=3", f"{key}=mine.py:tasks"]):
        assert apply_overrides(RECIPE, pairs).tasks == TasksConfig(source="mine.py:tasks", num=3)


def test_a_recipe_takes_tasks_whose_function_knows_nothing_of_its_arguments() -> None:
    changed = apply_overrides(find_recipe("quickstart"), ["tasks=mine.py:tasks"])
    assert changed.tasks == TasksConfig(source="mine.py:tasks")


def test_the_pairs_between_two_configs_survive_another_source() -> None:
    wanted = replace(RECIPE, tasks=replace(RECIPE.tasks, source="mine.py:tasks"))
    assert apply_overrides(RECIPE, overrides_between(RECIPE, wanted)) == wanted

"""Every setting with its type, its default and its docstring."""

from slipstream.settings import ModelConfig, SandboxConfig
from slipstream.settings.reference import all_settings, field_docs

BY_KEY = {setting.key: setting for setting in all_settings()["train"]}


def test_types_are_in_words_and_defaults_as_one_types_them() -> None:
    found = {key: (BY_KEY[key].takes, BY_KEY[key].typed()) for key in BY_KEY}
    assert found["model.kind"] == ("local, tokens, chat, scripted", "local")
    assert found["model.engine.on_update"] == ("recompute, keep", "recompute")
    assert found["model.context_tokens"] == ("whole number or null", "null")
    assert found["learner.betas"] == ("two numbers", "[0.9, 0.95]")
    assert found["tasks.args"] == ("mapping", "{}")
    assert found["solve_rate.below"] == ("number", "1.0"), "a group that is not set is shown as it would begin"


def test_docstrings_are_those_below_the_fields() -> None:
    assert (
        field_docs(ModelConfig)["max_tokens"]
        == "Maximum tokens of one reply; null: all that the window leaves. The agent is told if a reply was cut off."
    )
    assert "container" in field_docs(SandboxConfig)["provider"]
    assert field_docs(SandboxConfig)["warm"].count("\n") == 0


def test_every_setting_says_what_it_is() -> None:
    assert [setting.key for settings in all_settings().values() for setting in settings if not setting.doc] == []


def test_a_setting_of_both_commands_has_one_text() -> None:
    evaluation, training = all_settings()["eval"], all_settings()["train"]
    texts = {setting.key: setting.doc for setting in training}
    assert [setting.key for setting in evaluation if texts[setting.key] != setting.doc] == []

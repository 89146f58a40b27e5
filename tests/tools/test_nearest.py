from __future__ import annotations

from slipstream.names import did_you_mean, nearest


def test_the_most_similar_name_is_found_in_any_case() -> None:
    assert nearest("readfile", ["ReadFiles", "ReadFile", "write"]) == "ReadFile"
    assert nearest("cmd", ["command", "timeout_s"]) == "command"


def test_an_abbreviation_goes_before_what_is_merely_similar() -> None:
    assert nearest("lr", ["lora", "loss", "learning_rate"]) == "learning_rate"
    assert nearest("LR", ["lora", "learning_rate"]) == "learning_rate"
    assert nearest("l", ["loss", "lora"]) is None


def test_nothing_similar_is_no_suggestion() -> None:
    assert nearest("zzz", ["bash"]) is None
    assert did_you_mean("zzz", ["bash"]) == ""
    assert did_you_mean("", []) == ""
